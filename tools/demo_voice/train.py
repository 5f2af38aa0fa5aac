"""Makes the demo's checkpoint from nothing: synthetic speech, training, export. Run it again to continue.

It may be stopped at any time, also by kill -9 or a power cut; the same command continues where it was. All states are
in one folder. On two cores it takes hours, with a GPU less; one thread for each process is fastest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import platformdirs
import torch
from voice_clone_program.arguments import Parser

from tools.demo_voice.options import Options
from tools.demo_voice.qwen3_tts.stages import STAGES
from tools.demo_voice.training import Stopped

WORK = Path(platformdirs.user_cache_dir("voice-clone")) / "demo_voice"


def main() -> int:
    """The command line."""
    parser = Parser(
        prog="tools/demo_voice/train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=WORK, help="folder of all states (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all chance (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=240, help="of 200 sentences each (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that make data (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of a training (default: %(default)s)")
    parser.add_argument("--only", choices=STAGES, nargs="+", help="these stages alone; those before must be complete")
    parser.add_argument(
        "--steps", nargs=2, action="append", default=[], metavar=("STAGE", "N"), help="length of a stage's training"
    )
    parser.add_argument("--base", type=Path, metavar="DIR", help="a checkpoint that is trained on (default: none)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps = {stage: int(count) for stage, count in arguments.steps}
    options = Options(arguments.seed, arguments.shards, jobs=arguments.jobs, steps=steps, base=arguments.base)
    try:
        for name in arguments.only or STAGES:
            print(f"Stage {name}", flush=True)
            for news in STAGES[name](arguments.work, options):
                print(f"{name}: {news}", flush=True)
    except (Stopped, KeyboardInterrupt):
        print("Stopped; the same command continues.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
