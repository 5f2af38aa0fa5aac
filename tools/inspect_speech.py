"""Runs one speech and shows where its time went: the tree of the ensemble's steps, from Triton's own trace.

    tools/inspect --checkpoint DIR                    one warm speech on a new server
    tools/inspect --checkpoint DIR --voice NAME       the same in a voice that the checkpoint brings
    tools/inspect --trace FILE                        the requests in the trace file of any server

A server writes such a file with the options --trace-config mode=triton --trace-config triton,file=FILE
--trace-config rate=1 --trace-config level=TIMESTAMPS --trace-config level=TENSORS (without the last: no shapes).
Times are in milliseconds: `at` since the start of the request, `queue` before the model took it, `in` and `out` for its
tensors, `compute` between them. A step that answers later, from its own thread, shows in `compute` only the time until
`execute` returned: Triton does not see the rest. So `answers` shows how long after its start the next step got its
first and its last tensors, and for the request itself when its responses were sent. The outputs of a step are the
inputs of the next one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text
from rich.tree import Tree
from voice_clone_client import Client, VoiceCloneError

from tools import guard
from tools.demo import DATA
from tools.families.recognition import FamilyError, add_repository_option
from tools.trace import Span, read_trace
from tools.triton_server import MODELS, ServerFailed, TritonServer

VOICE = "inspected"
PHASES = (
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("in", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("out", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
)


class Output(Console):
    """A console that leaves a reader who has left to tools/run.py."""

    def on_broken_pipe(self) -> None:
        raise


def tree(root: Span, spans: list[Span]) -> Tree:
    """A request and its steps, in the order of their start."""

    def add(span: Span, branch: Tree | None) -> Tree:
        line = Text(f"{span.model:20} at {(span.began - root.began) / 1e6:8.1f}", style="bold")
        for name, start, end in PHASES:
            if (ms := span.between(start, end)) is not None:
                line.append(f"  {name} {ms:7.2f}", style="default")
        if times := root.sent if span is root else _answers(span, root, spans):
            after = [f"{(ns - span.began) / 1e6:.1f}" for ns in times]
            line.append(f"  answers {' '.join(after if span is root else after[:1] + after[1:][-1:])}")
        if span is root:
            line.append(f"  whole {(span.ended - span.began) / 1e6:.1f} ms")
        for arrow, tensors in (("<-", span.inputs), ("->", span.outputs)):
            if tensors:
                tensors_of = ", ".join(f"{name} {' '.join(_unique(shapes))}" for name, shapes in tensors.items())
                line.append(f"\n{arrow} {tensors_of}", style="dim not bold")
        node = Tree(line) if branch is None else branch.add(line)
        for child in spans:
            if child.parent == span.id:
                add(child, node)
        return node

    return add(root, None)


def _answers(span: Span, root: Span, spans: list[Span]) -> list[int]:
    """Each time at which the next step began, in ns; none if the trace does not show it."""
    steps = [each for each in spans if each.parent == root.id]
    models = list(dict.fromkeys(each.model for each in steps))
    if span.model == models[-1] or [each.model for each in steps].count(span.model) > 1:
        return []
    behind = [each for each in steps if each.model == models[models.index(span.model) + 1]]
    waited = any(name not in root.inputs for each in behind for name in each.inputs)  # for more than the request's own
    return [each.began for each in behind] if waited else []


def _unique(shapes: list[str]) -> list[str]:
    return list(dict.fromkeys(shapes))


def public_model(spans: list[Span]) -> str | None:
    """The model of the newest request that has steps, which is an ensemble's."""
    parents = {span.parent for span in spans}
    return next((span.model for span in reversed(spans) if span.parent is None and span.id in parents), None)


def speak(arguments: argparse.Namespace, trace: Path) -> tuple[list[Span], dict[str, object]]:
    """Speak once to warm up and once more; the spans of the trace and what the server said of the second speech."""
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
        with server, Client(server.url, model=family) as client:
            if arguments.voice is None:
                client.upload(VOICE, arguments.reference, reference_text=arguments.reference_text, wait=True)
            for _ in range(2):
                voice = arguments.voice or VOICE
                speech = client.speak(arguments.text, voice=voice, max_frames=arguments.max_frames, seed=1)
                speech.read()
        return read_trace(trace.read_bytes().decode("latin-1")), dict(speech.info or {})


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tools/inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="folder of a checkpoint, for a new server")
    source.add_argument("--trace", type=Path, help="a trace file of a server")
    add_repository_option(parser)
    parser.add_argument("--text", default="Good morning.")
    parser.add_argument("--reference", type=Path, default=DATA / "reference.wav")
    parser.add_argument("--reference-text", help="transcript of the reference; without it: speaker embedding alone")
    parser.add_argument("--voice", help="one that the checkpoint brings, in place of the reference")
    parser.add_argument("--max-frames", type=int, default=10)
    parser.add_argument("--model", help="whose requests are shown (default: the newest ensemble's)")
    parser.add_argument("--last", type=int, default=1, help="how many of the newest (default: %(default)s)")
    arguments = parser.parse_args()
    for path in filter(None, (arguments.trace, arguments.reference)):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    if arguments.reference == DATA / "reference.wav" and arguments.reference_text is None:
        arguments.reference_text = (DATA / "reference.txt").read_text(encoding="utf-8").strip()
    info: dict[str, object] = {}
    try:
        if arguments.trace is not None:
            spans = read_trace(arguments.trace.read_bytes().decode("latin-1"))
        else:
            with guard.temporary_folder() as folder:
                spans, info = speak(arguments, folder / "trace.json")
    except (FamilyError, ServerFailed, VoiceCloneError) as error:
        print(f"tools/inspect: {error}", file=sys.stderr)
        return 1
    model = arguments.model or public_model(spans)
    roots = [span for span in spans if span.model == model and span.parent is None]
    if not roots:
        print(
            f"tools/inspect: the trace has no request of {model or 'an ensemble'}; --help says how a server writes one",
            file=sys.stderr,
        )
        return 1
    console = Output(width=None if sys.stdout.isatty() else 150)
    for root in roots[-arguments.last :]:
        console.print(tree(root, spans))
    if info:
        console.print("What the stages said:", json.dumps(info, indent=1), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
