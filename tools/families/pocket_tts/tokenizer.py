"""The pieces of a random checkpoint's tokenizer."""

from __future__ import annotations

import math
import re
from collections import Counter

from tools.families.byte_level_bpe import CORPUS
from voice_clone_server.families.pocket_tts.sentencepiece import BLANK


def small_pieces(count: int) -> list[tuple[str, float]]:
    """Bytes, characters, and words of a few sentences."""
    words = Counter(re.findall(r"\w+", CORPUS.lower()))
    letters = Counter(CORPUS.replace("\n", "") + "?!-" + "".join(chr(each) for each in range(0x41, 0x7B)))
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    pieces += [(BLANK, -2.0)]
    pieces += [(letter, -6.0) for letter in sorted(letters) if letter != " "]
    room = max(0, count - len(pieces))
    pieces += [
        (BLANK + word, -8.0 - math.log(1 + rank))
        for rank, (word, _) in enumerate(sorted(words.items())[:room])
        if len(word) > 1
    ]
    return pieces + [(f"{BLANK}unused{place}", -99.0) for place in range(len(pieces), count)]
