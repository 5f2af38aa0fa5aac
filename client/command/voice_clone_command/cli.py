"""The command `voice-clone`: voices and speech of a Triton server in the shell.

    voice-clone upload ada ada.wav --text "What she says in the clip."
    voice-clone speak "Any other sentence." --voice ada --play
    voice-clone speak - --voice ada -o book.wav < book.txt
    voice-clone design "An old captain." --text "Good morning, all of you." -o captains
    voice-clone keep Captain captains/7.wav
    voice-clone embedding blend ada ben --weight 0.3 --register between

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 128 + N ended by signal N (130: Ctrl-C),
141 the reader of the output has left (as `head` does).

An output file takes the place of an older one when it is whole. If a speech breaks off, the audio that came is kept
where there was no file; an older file stays as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from voice_clone_program.running import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    def run() -> int:
        from .commands.line import run_line  # takes a second, in which Ctrl-C may come

        return run_line(arguments)

    return run_program("voice-clone", run)


if __name__ == "__main__":
    sys.exit(main())
