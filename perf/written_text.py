"""A text that is written at a rate, as a language model does: when its listener hears the first sound, and what stalls.

    perf/written_text --checkpoint DIR             starts a server
    perf/written_text --url HOST:8001 --rate 10,30,100

Two ways: `appended`, each token straight into the running speech; and `sentences`, each sentence spoken when it is
complete, one after the other. A piece of text is as long as a token of the checkpoint is on average. All times are
seconds from the first piece; a `stall` is a chunk that came after playback had run dry. Lengths of speeches are fixed
at four words a second, as speech has.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from voice_clone_client import Client

from perf import report
from perf.playback import Playback
from perf.reference import TRANSCRIPT, fresh_clip
from tools import guard
from tools.triton_server import TritonServer

TEXT = (
    "Every evening they came home, tired and content, to a house that smelled of bread and of the sea. "
    "Tell me again how the story ends, for I have forgotten it, and the night is long and the fire is warm. "
    "The boats lay still on the silver water, and nobody spoke."
)
FRAMES_A_WORD = 12.5 / 4
COLUMNS = ("tokens/s", "way", "first audio p50", "max", "stalls p50", "stalled s p50")

Write = Callable[[], Iterator[str]]
Way = Callable[[Client, Write, int, Playback], None]


def written(tokens: int, rate: float) -> Iterator[str]:
    """The text in so many pieces, `rate` of them a second, the first one at once."""
    began = time.monotonic()
    for number in range(tokens):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield TEXT[len(TEXT) * number // tokens : len(TEXT) * (number + 1) // tokens]


def frames_of(text: str) -> int:
    return round(FRAMES_A_WORD * len(text.split()))


def appended(client: Client, write: Write, seed: int, playback: Playback) -> None:
    """Token by token."""
    more: dict[str, Any] = {"voice": "listener", "x_vector_only": True, "seed": seed, "max_frames": frames_of(TEXT)}
    with client.speak_stream(write(), **more) as speech:
        for chunk in speech:
            playback.add(time.monotonic(), len(chunk.samples) / chunk.sample_rate)


def sentences(client: Client, write: Write, seed: int, playback: Playback) -> None:
    """Sentence by sentence: each begins when it is complete and the one before was heard by its client."""
    complete: list[str] = []
    changed = threading.Condition()

    def split() -> None:
        text = ""
        for piece in write():
            text += piece
            while "." in text:
                sentence, _, text = text.partition(".")
                with changed:
                    complete.append(f"{sentence.strip()}.")
                    changed.notify()

    threading.Thread(target=split, daemon=True).start()
    for number in range(TEXT.count(".")):
        with changed:
            changed.wait_for(lambda number=number: len(complete) > number)  # type: ignore[misc]
        more: dict[str, Any] = {"voice": "listener", "x_vector_only": True, "seed": seed}
        for chunk in client.speak(complete[number], max_frames=frames_of(complete[number]), **more):
            playback.add(time.monotonic(), len(chunk.samples) / chunk.sample_rate)


WAYS: dict[str, Way] = {"appended": appended, "sentences": sentences}


def measure(client: Client, tokens: int, rates: list[float], repeats: int) -> list[dict[str, Any]]:
    """Every rate and way in turn, so that a machine's moods are shared."""
    found: dict[tuple[float, str], list[Playback]] = {(rate, way): [] for rate in rates for way in WAYS}
    for seed in range(repeats + 1):
        for (rate, way), playbacks in found.items():
            playback = Playback(time.monotonic())
            WAYS[way](client, partial(written, tokens, rate), seed, playback)
            if seed:  # the first round warms up
                playbacks.append(playback)
    levels: list[dict[str, Any]] = []
    for (rate, way), playbacks in found.items():
        first = [playback.first_audio or 0.0 for playback in playbacks]
        levels.append(
            {
                "rate": rate,
                "way": way,
                "first_audio": report.summary(first),
                "stalls": statistics.median(len(playback.stalls) for playback in playbacks),
                "stalled": statistics.median(sum(playback.stalls) for playback in playbacks),
            }
        )
    return levels


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.checkpoint is None:
        yield arguments.url
        return
    with (
        guard.temporary_folder() as scratch,
        TritonServer(arguments.checkpoint, scratch / "voices", log=scratch / "log") as server,
    ):
        yield server.url


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/written_text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8001", help="gRPC endpoint")
    parser.add_argument("--checkpoint", type=Path, help="start a server with this checkpoint instead")
    parser.add_argument("--rate", default="10,30,100", help="tokens a second, one level each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    arguments = parser.parse_args()
    rates = [float(rate) for rate in arguments.rate.split(",")]
    with _server(arguments) as url, Client(url) as client:
        client.upload("listener", fresh_clip(1), reference_text=TRANSCRIPT, wait=True)
        everything = client.speak_stream([TEXT], voice="listener", x_vector_only=True, max_frames=2000)
        everything.read()
        tokens = int((everything.info or {})["read"])
        levels = measure(client, tokens, rates, arguments.repeats)
    rows = [
        (level["rate"], level["way"], first["p50"], first["max"], level["stalls"], level["stalled"])
        for level in levels
        for first in (level["first_audio"],)
    ]
    print(report.table(COLUMNS, rows))
    given = {
        "repeats": arguments.repeats,
        "text_tokens": tokens,
        "checkpoint": arguments.checkpoint and arguments.checkpoint.name,
    }
    report.write(arguments.output, {"arguments": given, "levels": levels})
    return 0


if __name__ == "__main__":
    sys.exit(main())
