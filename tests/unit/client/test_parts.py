"""How a text that is written while it is spoken is cut into parts, and what goes on where a model ends too early."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from voice_clone_client import Chunk, ConnectionFailed
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_client.speeches.parts_reader import PartsReader
from voice_clone_text.parts import LEAST, USUAL, WIDE, Part, WrittenText
from voice_clone_text.sentences import size

LATIN = " ".join(f"This is sentence number {number}, and it costs 3.50 euros." for number in range(100))
WIDE_TEXT = "".join(f"这是第{number}句话，大家都能听懂它的意思。" for number in range(100))
ENDLESS = " ".join(f"word{number}" for number in range(2000))
UNSPACED = "".join(chr(0x4E00 + number % 2000) for number in range(3000))
UNEVEN = "".join(f"  {'a' * length} end." for length in range(30, 60))
"""Sentences of all lengths, so that some end where it matters whether the space before a part counts."""
TEXTS = {
    "latin": LATIN,
    "wide": WIDE_TEXT,
    "endless": ENDLESS,
    "unspaced": UNSPACED,
    "short": "Hello.",
    "of many lengths": UNEVEN,
    "two parts of the shortest": LATIN[:150],
    "lines": "A\nB\n",
}


def taken(text: WrittenText) -> Iterator[Part]:
    while (part := text.begin()) is not None:
        yield part


def pieces_of(text: str, rng: random.Random, longest: int) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = begin + rng.randint(1, longest)
        yield text[begin:end]
        begin = end


@pytest.mark.parametrize("most", [LEAST, 300, USUAL, None])
@pytest.mark.parametrize("name", TEXTS)
def test_parts_depend_on_the_text_alone(name: str, most: int | None) -> None:
    """Whatever the pieces, whenever the model's figure is known: the same parts, all of the text, none too long."""
    text, rng, found = TEXTS[name], random.Random(3), set()
    ways = ((1, 15), (7, 0), (7, sys.maxsize), (400, 1), (len(text), 0), (len(text), sys.maxsize))
    for longest, learned in ways:
        written = WrittenText()
        for number, piece in enumerate(pieces_of(text, rng, longest)):
            if number == learned:
                written.learn(most)
            written.write(piece)
        written.end()
        written.learn(most)
        assert written.waiting and not written.over
        parts = [*taken(written)]
        assert written.over and all(part.ended for part in parts)
        found.add(tuple((part.start, part.text) for part in parts))
    assert len(found) == 1
    [parts] = found
    assert all(text[start:].startswith(said) for start, said in parts)
    assert "".join("".join(said for _, said in parts).split()) == "".join(text.split())
    assert all(size(said, WIDE) <= (most or USUAL) for _, said in parts)


@pytest.mark.parametrize("at_once", [True, False])
def test_text_goes_to_its_part_at_once(at_once: bool) -> None:
    written = WrittenText(at_once=at_once)
    for place in range(59):
        written.write(LATIN[place])
        [part] = written._parts
        assert part.text == LATIN[: place + 1]
    written.write(LATIN[59:90])
    assert len(written._parts[0].text) == 59, "nobody knows yet where this part must end"
    written.learn(USUAL)
    assert written._parts[0].text == LATIN[:90]
    for place in range(90, 600):
        written.write(LATIN[place])
    kept = 600 - written._part.start - len(written._part.text)  # type: ignore[union-attr]
    assert kept < 12, "behind a third of a part at most a word waits"


def test_what_cannot_be_spoken_is_no_part() -> None:
    written = WrittenText(at_once=False)
    written.write(' \n "')
    assert not written.waiting
    written.write("So.")
    written.flush()
    written.write(' ..." \n')
    written.end()
    assert [(part.start, part.text) for part in taken(written)] == [(3, '"So.')]
    assert written.over


def chunk(final: bool = False, **info: object) -> Chunk:
    return Chunk(np.zeros(10, np.float32), 24000, 0, final, info)


def reader_of(text: str, seed: int | None = 7, max_frames: int | None = None) -> PartsReader:
    written = WrittenText()
    written.learn(LEAST)
    written.write(text)
    written.end()
    return PartsReader(written, seed, max_frames, True)


def test_parts_are_joined() -> None:
    reader = reader_of(LATIN[:150])
    first = reader.begin()
    assert first is not None and first.seed == 7
    assert reader.take(first, chunk(characters=10, frames=1, read=2, text_tokens=9)).index == 0
    end = reader.take(
        first, chunk(True, characters=len(first.text), frames=5, read=9, text_tokens=9, finish_reason="stop")
    )
    assert (end.final, end.last, reader.finish_reason) == (False, True, None)
    second = reader.begin()
    assert second is not None and second.seed == sentence_seed(7, 1)
    end = reader.take(second, chunk(True, characters=len(second.text), frames=4, text_tokens=8, finish_reason="stop"))
    assert end.final and end.index == 2 and reader.whole and reader.info is not None
    known = {name: reader.info[name] for name in ("frames", "text_tokens", "parts", "characters")}
    assert known == {"frames": 9, "text_tokens": 17, "parts": 2, "characters": 150}
    assert "continued" not in reader.info


def test_a_seed_that_the_server_chose_repeats_the_speech() -> None:
    reader = reader_of(LATIN[:150], seed=None)
    first = reader.begin()
    assert first is not None and first.seed is None
    reader.take(first, chunk(True, characters=len(first.text), seed=11, finish_reason="stop"))
    second = reader.begin()
    assert second is not None and second.seed == sentence_seed(11, 1)


@pytest.mark.parametrize(("characters", "start"), [(0, 0), (20, 0), (50, 0), (51, 52), (52, 52), (90, 52), (103, 104)])
def test_another_part_goes_on_with_the_first_unread_sentence(characters: int, start: int) -> None:
    """Sentences begin at 0, 52 and 104; the last one is a part of its own."""
    text = LATIN[:150]
    reader = reader_of(text)
    first = reader.begin()
    assert first is not None and first.text == text[:103]
    end = reader.take(first, chunk(True, characters=characters, finish_reason="text_left"))
    assert not end.final
    further = reader.begin()
    assert further is not None and further.ended and further.start == start
    assert further.text == (text[start:103] or text[104:])
    assert (reader.info or {}).get("continued", 0) == (start < 104)


def test_a_model_that_never_reads_on_is_given_up() -> None:
    reader = reader_of("One sentence alone.")
    for _ in range(2):
        part = reader.begin()
        assert part is not None and part.text == "One sentence alone."
        assert not reader.take(part, chunk(True, characters=3, finish_reason="text_left")).final
    part = reader.begin()
    assert part is not None
    assert reader.take(part, chunk(True, characters=5, finish_reason="text_left")).final
    assert (reader.finish_reason, reader.whole, (reader.info or {})["characters"]) == ("text_left", False, 5)


def test_a_text_that_goes_on_behind_an_early_end() -> None:
    written = WrittenText()
    written.learn(USUAL)
    reader = PartsReader(written, None, None, True)
    written.write("Read to its end. Then")
    part = reader.begin()
    assert part is not None
    assert not reader.take(part, chunk(True, characters=16, finish_reason="text_left")).final
    written.write(" comes more.")
    written.end()
    further = reader.begin()
    assert further is not None and (further.start, further.text, further.ended) == (17, "Then comes more.", True)


@pytest.mark.parametrize(("reason", "whole"), [("length", True), ("text_timeout", False)])
def test_ends_behind_which_nothing_comes(reason: str, whole: bool) -> None:
    reader = reader_of(LATIN[:150], max_frames=5)
    part = reader.begin()
    assert part is not None and part.max_frames == 5
    assert reader.take(part, chunk(True, characters=9, frames=5, finish_reason=reason)).final
    assert (reader.finish_reason, reader.whole) == (reason, whole)


def test_the_worst_end_counts() -> None:
    reader = reader_of(LATIN[:150])
    for reason in ("budget", "stop"):
        part = reader.begin()
        assert part is not None
        reader.take(part, chunk(True, characters=9, finish_reason=reason))
    assert reader.finish_reason == "budget"


def test_an_error_says_how_far_the_text_was_read() -> None:
    reader = reader_of(LATIN[:150])
    lost = ConnectionFailed("lost")
    assert reader.failed(lost) is lost
    part = reader.begin()
    assert part is not None
    reader.take(part, chunk(characters=41))
    assert "character 41" in str(reader.failed(lost))
