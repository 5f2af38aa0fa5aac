"""pocketsphinx as a transcriber of English: a program that reads samples, 16 bits at `RATE`, and prints the words.

It is a process of its own because pocketsphinx holds Python's global lock while it works, for seconds at the end of a
clip, and Triton takes a model that does so for dead. So a clip's memory is free after it, and no clip knows of another.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RATE = 16_000


def models() -> Path:
    """The folder of pocketsphinx's models of English.

    Raises:
        ImportError: pocketsphinx, or its model of the language, is not installed.
    """
    import pocketsphinx

    found = Path(pocketsphinx.get_model_path()) / "en-us"
    if not (found / "en-us.lm.bin").is_file():
        raise ImportError(f"{found} has no model of the language")
    return found


def main() -> None:
    import pocketsphinx

    os.nice(10)  # speech goes first
    folder = models()
    decoder = pocketsphinx.Decoder(
        hmm=str(folder / "en-us"),
        lm=str(folder / "en-us.lm.bin"),
        dict=str(folder / "cmudict-en-us.dict"),
        samprate=float(RATE),
        loglevel="FATAL",
    )
    decoder.start_utt()
    decoder.process_raw(sys.stdin.buffer.read())
    decoder.end_utt()
    found = decoder.hyp()
    sys.stdout.write("" if found is None else found.hypstr)


if __name__ == "__main__":
    main()
