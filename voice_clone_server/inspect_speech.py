"""Runs one speech and shows where its time went, and which tensors went from model to model.

    tools/inspect --checkpoint DIR                    one warm speech on a new server
    tools/inspect --checkpoint DIR --cold             the same in a voice that nothing keeps: the encoder makes it
    tools/inspect --checkpoint DIR --voice NAME       the same in a voice that the checkpoint brings
    tools/inspect --trace FILE                        the requests in the trace file of any server

A server writes such a file with the options --trace-config mode=triton --trace-config triton,file=FILE
--trace-config rate=1 --trace-config level=TIMESTAMPS --trace-config level=TENSORS (without the last: neither spans nor
shapes).

First come the spans of the speech, those of the gateway's traces (docs/operations.md): what the server reports of its
stages, in milliseconds. They and `the way` (of requests and tensors between the models) add up to `first audio`: until
the server sends the first chunk. Then the tree of the ensemble's steps, by Triton's clock: `at` since the start of the
request, `queue` before the model took it, `in` for its tensors. The outputs of a step are the inputs of the next one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from voice_clone_client import Client, VoiceCloneError
from voice_clone_client.spans import Span, first_audio_spans
from voice_clone_program.arguments import Parser

from voice_clone_server import guard
from voice_clone_server.demo import DATA
from voice_clone_server.families.recognition import FamilyError, add_repository_option
from voice_clone_server.program import program
from voice_clone_server.steps import step
from voice_clone_server.trace import ModelRequest, read_trace
from voice_clone_server.triton_server import MODELS, ServerFailed, TritonServer

VOICE = "inspected"
BAR = 40  # characters


class Output(Console):
    """A console that leaves a reader who has left to tools/run.py."""

    def on_broken_pipe(self) -> None:
        raise


def speech_spans(root: ModelRequest) -> list[Span]:
    """The spans of a request: of the stages, `the way`, and `frames` from the first chunk to the last.

    They have no way and no frames where the trace does not say when chunks were sent, and are empty where it has no
    `info`.
    """
    spans = first_audio_spans(root.infos[0]) if root.infos else []
    if spans and root.sent:
        first, last = ((sent - root.began) / 1e6 for sent in (root.sent[0], root.sent[-1]))
        spans += [Span("the way", spans[-1].end, first), Span("frames", first, last)]
    return spans


def table(spans: Sequence[Span]) -> Table:
    """Spans, one a line, with bars."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(justify="right")
    grid.add_column()
    scale = BAR / max(spans[-1].end, 1e-3)
    for span in spans:
        left, right = round(scale * span.start), round(scale * span.end)
        bar = " " * left + ("█" * (right - left) or "▏")
        grid.add_row(span.name, f"at {span.start:.1f}", f"{span.end - span.start:.1f} ms", bar)
        if span.name == "the way":
            grid.add_row(Text("first audio", style="bold"), "at 0.0", Text(f"{span.end:.1f} ms", style="bold"), "")
    return grid


def tree(root: ModelRequest, requests: Sequence[ModelRequest]) -> Tree:
    """A request and its steps, in the order of their start."""

    def add(request: ModelRequest, branch: Tree | None) -> Tree:
        line = Text(f"{request.model:20} at {(request.began - root.began) / 1e6:8.1f}", style="bold")
        for name, start, end in (
            ("queue", "QUEUE_START", "COMPUTE_START"),
            ("in", "COMPUTE_START", "COMPUTE_INPUT_END"),
        ):
            if (ms := request.between(start, end)) is not None:
                line.append(f"  {name} {ms:7.2f}", style="default")
        for arrow, tensors in (("<-", request.inputs), ("->", request.outputs)):
            if tensors:
                tensors_of = ", ".join(f"{name} {' '.join(_unique(shapes))}" for name, shapes in tensors.items())
                line.append(f"\n{arrow} {tensors_of}", style="dim not bold")
        node = Tree(line) if branch is None else branch.add(line)
        for child in requests:
            if child.parent == request.id:
                add(child, node)
        return node

    return add(root, None)


def _unique(shapes: list[str]) -> list[str]:
    return list(dict.fromkeys(shapes))


def public_model(requests: Sequence[ModelRequest]) -> str | None:
    """The model of the newest request that has steps, which is an ensemble's."""
    parents = {request.parent for request in requests}
    found = (request.model for request in reversed(requests) if request.parent is None and request.id in parents)
    return next(found, None)


def speak(arguments: argparse.Namespace, trace: Path) -> None:
    """Speak once to warm up and once more; the server writes the trace of both."""
    options = [f"triton,file={trace}", "rate=1", "level=TIMESTAMPS", "level=TENSORS"]
    with guard.temporary_folder() as scratch:
        server = TritonServer(
            arguments.checkpoint,
            scratch / "voices",
            log=scratch / "log",
            models=[MODELS, *arguments.repository],
            options=["--trace-config=mode=triton", *(f"--trace-config={option}" for option in options)],
        )
        [family] = server.families
        clip = {"reference_audio": arguments.reference, "reference_text": arguments.reference_text}
        with step("loading the models of a new server"):
            server.start()
        with server, Client(server.url, model=family) as client, step("speaking"):
            voice: dict[str, Any] = {"voice": arguments.voice or VOICE}
            if arguments.cold:
                voice = {**clip, "cache": False}
            elif arguments.voice is None:
                client.upload(VOICE, arguments.reference, reference_text=arguments.reference_text, wait=True)
            for _ in range(2):
                client.speak(arguments.text, **voice, max_frames=arguments.max_frames, seed=1).read()


def main() -> int:
    parser = Parser(prog=program("inspect"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="folder of a checkpoint, for a new server")
    source.add_argument("--trace", type=Path, help="a trace file of a server")
    add_repository_option(parser)
    parser.add_argument("--text", default="Good morning.")
    parser.add_argument("--reference", type=Path, default=DATA / "reference.wav")
    parser.add_argument("--reference-text", help="transcript of the reference; without it: speaker embedding alone")
    voice = parser.add_mutually_exclusive_group()
    voice.add_argument("--voice", help="one that the checkpoint brings, in place of the reference")
    voice.add_argument("--cold", action="store_true", help="the reference comes with the speech, and nothing keeps it")
    parser.add_argument("--max-frames", type=int, default=10)
    parser.add_argument("--model", help="whose requests are shown (default: the newest ensemble's)")
    parser.add_argument("--last", type=int, default=1, help="how many of the newest (default: %(default)s)")
    arguments = parser.parse_args()
    for path in filter(None, (arguments.trace, arguments.reference)):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    if arguments.reference == DATA / "reference.wav" and arguments.reference_text is None:
        arguments.reference_text = (DATA / "reference.txt").read_text(encoding="utf-8").strip()
    try:
        with guard.temporary_folder() as folder:
            trace = arguments.trace
            if trace is None:
                speak(arguments, trace := folder / "trace.json")
            requests = read_trace(trace.read_bytes().decode("latin-1"))
    except (FamilyError, ServerFailed, VoiceCloneError) as error:
        print(f"{program('inspect')}: {error}", file=sys.stderr)
        return 1
    model = arguments.model or public_model(requests)
    roots = [request for request in requests if request.model == model and request.parent is None]
    if not roots:
        print(
            f"{program('inspect')}: the trace has no request of {model or 'an ensemble'}; "
            "--help says how a server writes one",
            file=sys.stderr,
        )
        return 1
    console = Output(width=None if sys.stdout.isatty() else 150)
    for root in roots[-arguments.last :]:
        if spans := speech_spans(root):
            console.print(table(spans))
        console.print(tree(root, requests))
        if root.infos:
            console.print("What the stages said:", json.dumps(root.infos[-1], indent=1), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
