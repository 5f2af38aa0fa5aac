"""The command voice-clone-server; its first word names a program."""

from __future__ import annotations

import importlib
import sys

from voice_clone_program.running import run_program

from voice_clone_server.program import COMMAND

PROGRAMS = {
    "serve": ("serve", "server", "starts the server for a checkpoint, or for one of each model family"),
    "demo": ("demo", "demo", "starts a server, clones a voice and speaks in it; needs no checkpoint"),
    "doctor": ("doctor", "server", "shows what this machine is and lacks, and how fast a checkpoint speaks"),
    "inspect": ("inspect_speech", "server", "shows where the time of a speech goes"),
    "voice-store": ("voice_store", "postgresql", "the database in which a fleet keeps its voices"),
    "complete-checkpoint": ("complete_checkpoint", "server", "writes what a release has apart from its weights"),
    "convert-pickles": ("convert_pickles", "torch", "turns what a release has as pickles into safetensors"),
    "build-repository": ("build_repository", "onnx", "writes a model repository for one checkpoint"),
    "detect-mark": ("detect_mark", "marking", "looks for the mark of synthetic speech in files"),
}
"""The module of each program, the extra of this package that brings what it imports, and what it does."""


def main() -> int:
    """Run the program that the first word names; the others are its arguments."""
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if word in PROGRAMS:
        sys.argv[:2] = [f"{COMMAND} {word}"]
        return run_program(sys.argv[0], lambda: _run(*PROGRAMS[word]), "Stopped.")
    return run_program(COMMAND, lambda: _say(word))


def _run(module: str, extra: str, _: str) -> int:
    try:
        program = importlib.import_module(f"voice_clone_server.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("voice_clone"):
            raise
        print(
            f"{sys.argv[0]}: the package {error.name} is missing; install this package again, with its extra {extra}",
            file=sys.stderr,
        )
        return 1
    return int(program.main())


def _say(word: str) -> int:
    if word == "--version":
        from voice_clone import __version__

        print(f"{COMMAND} {__version__}")
    elif word in ("-h", "--help"):
        print(f"usage: {COMMAND} PROGRAM [OPTION ...]\n")
        print(*(f"  {name:20}{text}" for name, (_, _, text) in PROGRAMS.items()), "", sep="\n")
        print(f"{COMMAND} PROGRAM --help lists its options.")
    else:
        print(f"{COMMAND}: there is no program {word!r}; take one of {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
