"""Judges how well a checkpoint, or a server, speaks: word errors, and whether the voice is the right one.

pocketsphinx hears the words of sentences that are none of the training, in a closed set (each word one of 20) and with
its own language model. The speaker is looked for among the eight that are held out, by pitch and spectral envelope.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import torch
from voice_clone_client import Client
from voice_clone_program.arguments import Parser

from tools.demo_voice.evaluation import MODES, Evaluation, Voice
from tools.demo_voice.qwen3_tts.bare_engine import BareEngine
from tools.demo_voice.served import ServedVoice
from tools.demo_voice.train import WORK


def main() -> int:
    """The command line."""
    parser = Parser(
        prog="tools/demo_voice/evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder of the training's states (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", type=Path, help="default: the one that the training exported")
    parser.add_argument("--server", metavar="URL", help="of a server that speaks, instead of a checkpoint")
    parser.add_argument("--sentences", type=int, default=64, help="of each kind of speakers (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        voice: Voice
        if arguments.server:
            voice = ServedVoice(stack.enter_context(Client(arguments.server)))
        else:
            voice = BareEngine(arguments.checkpoint or arguments.work / "checkpoint")
        evaluation = Evaluation(arguments.work, arguments.sentences)
        scored = {"source": evaluation.source(), **{mode: evaluation.scores(voice, mode) for mode in MODES}}
        for mode, scores in scored.items():
            for part, score in scores:
                print(f"{part.replace('_', '-') + ' speakers, ' + mode:32} {score}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
