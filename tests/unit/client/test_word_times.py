"""The words of a speech while its chunks are read, with an aligner that answers, fails, or is late."""

from __future__ import annotations

import gc
import json
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2
from voice_clone_client import word_times as module
from voice_clone_client.backends import THREADS, now
from voice_clone_client.errors import InvalidArgument, Overloaded, VoiceCloneError
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_client.speeches.parts_reader import PartChunk
from voice_clone_client.types import Chunk
from voice_clone_client.word_times import AsyncWordTimes, BlockingWordTimes
from voice_clone_text.parts import Part
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sentences import Sentence
from voice_clone_words.units import units_of
from voice_clone_words.words import Word

RATE = 1000
TEXT = "One, two three four."


def reply(result: Any) -> Any:
    raw = json.dumps(result).encode()
    answer = service_pb2.ModelInferResponse(raw_output_contents=[struct.pack("<I", len(raw)) + raw])
    answer.outputs.add(name="result", datatype="BYTES", shape=[1])
    assert InferResult(answer).as_numpy("result") is not None
    return answer


class Aligner:
    """Settles a word with each piece but the last one; each takes 100 samples."""

    backend = THREADS

    def __init__(self, before: Callable[[int], None] = lambda asked: None) -> None:
        self.asked, self.samples = 0, 0
        self._before = before
        self._settled = dict[str, list[Any]]()

    async def infer(self, request: Any, timeout: float | None, id: str) -> Any:
        self._before(self.asked)
        self.asked += 1
        tensors = dict(zip((each.name for each in request.inputs), request.raw_input_contents, strict=True))
        self.samples += len(tensors["audio"]) // 4
        if "text" in tensors:
            units = units_of(tensors["text"][4:].decode())
            times = [(100 * at, 100 * at + 100) for at in range(len(units))]
            self._settled[id] = [{"start": start, "end": end, "estimated": False} for start, end in times]
            self._left = list(self._settled[id])
        if tensors["final"] == b"\x01":
            return reply({"words": self._settled[id], "reason": None})
        return reply({"words": [self._left.pop(0)] if self._left else [], "reason": None})


def chunks(count: int = 4, size: int = 200) -> list[Chunk]:
    noise = np.random.default_rng(0).normal(0, 0.1, count * size).astype(np.float32)
    parts = np.split(noise, count)
    return [Chunk(part, RATE, at, at == count - 1, None) for at, part in enumerate(parts)]


def of(aligner: Aligner, text: str = TEXT) -> BlockingWordTimes:
    servers: Any = aligner
    return BlockingWordTimes(AsyncWordTimes(servers, text))


def test_words_come_with_the_chunks() -> None:
    aligner = Aligner()
    times = of(aligner)
    told = [word for chunk in chunks() for word in times.took(chunk).words]
    words = times.wait()
    assert [(word.text, word.start, word.end) for word in words] == [
        ("One,", 0.0, 0.1), ("two", 0.1, 0.2), ("three", 0.2, 0.3), ("four.", 0.3, 0.4),
    ]  # fmt: skip
    assert told == words[: len(told)] and not any(word.estimated for word in words)
    assert aligner.samples == 800, "each sample is sent once"
    assert times.heard(0.26) == "One, two three" and times.heard(0.0) == ""


@pytest.mark.parametrize("error", [Overloaded("full"), InvalidArgument("this server has no model aligner")])
def test_an_aligner_that_fails_leaves_an_estimate(error: VoiceCloneError) -> None:
    def fail(asked: int) -> None:
        raise error

    aligner = Aligner(fail)
    times = of(aligner)
    for chunk in chunks():
        times.took(chunk)
    words = times.wait()
    assert [word.text for word in words] == TEXT.split() and all(word.estimated for word in words)
    assert words[-1].end <= 0.8
    assert aligner.asked == 0


def test_no_chunk_waits_and_late_words_are_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 0.5)
    go_on = threading.Event()
    times = of(Aligner(lambda asked: go_on.wait(60.0) and None))
    taken = [times.took(chunk) for chunk in chunks()]
    assert [chunk.words for chunk in taken] == [()] * 4
    assert times.heard(0.1) != TEXT, "it guesses before words are known"
    words = times.wait(0.01)
    assert [word.text for word in words] == TEXT.split() and all(word.estimated for word in words)
    go_on.set()


def test_words_that_are_spoken_otherwise_are_the_callers() -> None:
    text = "He paid 42 dollars [pause:500ms] today."
    times = of(Aligner(), text)
    parts = plan(text, Settings("text", inline_pauses=True, normalize="on", style=Style(language="en"))).spans
    assert "forty" in parts[0].text
    told = list[Word]()
    for part in parts:
        times.begin(part.text, part.written)
        times.feed(np.ones(500, np.float32), RATE, True)
        told += times.news()
    found = [word.text for word in times.wait()]
    assert found == ["He", "paid", "42", "dollars", "today."]
    assert [*told, *times.news()] == times.words, "each word is told once, when nothing more can be a part of it"
    assert times.news() == ()
    assert all(text[slice(*word.span)] == word.text for word in times.words)


def parts(part: Part, texts: list[str], reads: list[int], reason: str = "stop") -> Iterator[PartChunk]:
    """Chunks of 200 samples of a part, while its text grows to each of the texts and the model reads so much of it."""
    for at, (text, read) in enumerate(zip(texts, reads, strict=True)):
        last = at == len(texts) - 1
        part.text, part.ended = text, last
        info = {"characters": read, **({"finish_reason": reason} if last else {})}
        noise = np.random.default_rng(at).normal(0, 0.1, 200).astype(np.float32)
        yield PartChunk(noise, RATE, at, last, info, part=part, first=at == 0, last=last, part_info=info)


def test_a_part_is_aligned_when_its_text_is_written() -> None:
    aligner = Aligner()
    times = of(aligner, "")
    texts, told = ["One, two ", "One, two three ", TEXT, TEXT], list[Word]()
    before = ""
    for chunk, text in zip(parts(Part(0), texts, [5, 9, 20, 20]), texts, strict=True):
        times.write(text.removeprefix(before))
        before = text
        told += times.took(chunk).words
        if not chunk.last:
            assert aligner.asked == 0, "its text was not complete"
            assert times.heard(60.0) == ("One,", "One, two", TEXT)[chunk.index], "no more than was read"
            assert times.heard(0.19) in ("", "One,"), "nor than was read by then"
    words = times.wait()
    assert [*told, *times.news()] == words and not any(word.estimated for word in words)
    assert [word.text for word in words] == TEXT.split() and times.heard(0.46) == TEXT
    assert times.heard(0.26) == "One, two", "the third word was not read by then"
    assert aligner.samples == 800


def test_a_part_that_leaves_text() -> None:
    times = of(Aligner(), TEXT)
    for chunk in parts(Part(0), [TEXT, TEXT], [4, 8], "text_left"):
        times.took(chunk)
    words = times.wait()
    assert [word.text for word in words] == ["One,", "two"] and times.heard(60.0) == "One, two"
    rest = Part(9, index=1)
    for chunk in parts(rest, [TEXT[9:], TEXT[9:]], [6, 11]):
        times.took(chunk)
    assert [word.text for word in times.wait()] == TEXT.split() and times.heard(60.0) == TEXT


def test_what_waits_is_told() -> None:
    kept, most = [0], 1600

    def keep(count: int) -> None:
        if count > 0 and sum(kept) + count > most:
            raise MemoryError
        kept.append(count)

    servers: Any = Aligner()
    times = AsyncWordTimes(servers, TEXT, keep=keep)
    texts = [TEXT[:10], TEXT[:10], TEXT, TEXT]
    for chunk in parts(Part(0), texts, [5, 9, 20, 20]):
        times.took(chunk)
        assert sum(kept) in (800, 1600) if chunk.index < 2 else not sum(kept)
    words = now(times.wait())
    assert [word.text for word in words] == TEXT.split() and all(word.estimated for word in words)
    assert sum(kept) == 0 and servers.asked == 0, "there was no room for the third chunk"


def test_no_samples_are_held_when_their_words_are_known() -> None:
    times, held = of(Aligner(), f"{TEXT} {TEXT}"), list[weakref.ref[Any]]()
    for index, start in enumerate((0, 21)):
        samples = np.ones(400, np.float32)
        sentence = Sentence(TEXT, start, start + len(TEXT), "sentence")
        times.took(SentenceChunk(samples, RATE, index, index == 1, {}, sentence, index, None, True, True))
        held.append(weakref.ref(samples))
        del samples
    assert [word.span[0] for word in times.wait()] == [0, 5, 9, 15, 21, 26, 30, 36]
    gc.collect()
    assert all(each() is None for each in held)


def test_what_was_heard_before_words_are_known() -> None:
    go_on = threading.Event()
    times = of(Aligner(lambda asked: go_on.wait(60.0) and None), f"{TEXT} {TEXT}")
    for part in (Part(0), Part(21, index=1)):
        for chunk in parts(part, [TEXT, TEXT], [20, 20]):
            times.took(chunk)
    found = [times.heard(at / 10) for at in range(1, 10)]
    assert found == sorted(found, key=len) and found[0] and found[-1] == f"{TEXT} {TEXT}"
    assert len(found[3]) <= len(TEXT) < len(found[5]), "each part lasts 0.4 s"
    go_on.set()
    times.wait()


def test_what_was_heard_of_a_speech_that_was_stopped() -> None:
    times = of(Aligner())
    for chunk in chunks()[:2]:
        times.took(chunk)
    times.close()
    assert len(times.heard(0.4)) < len(TEXT), "it was not spoken to its end"


def test_times_never_run_backwards() -> None:
    """Words were told, and the answer at the end has other times."""

    class Other(Aligner):
        async def infer(self, request: Any, timeout: float | None, id: str) -> Any:
            await super().infer(request, timeout, id)
            last = {each.name: raw for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
            edges = (0, 100, 200, 300, 400) if last["final"] == b"\x01" else (0, 450)
            words = [{"start": a, "end": b, "estimated": False} for a, b in pairwise(edges)]
            return reply({"words": words if len(words) > 1 or self.asked == 1 else [], "reason": None})

    times = of(Other())
    told: list[Word] = []
    for chunk in chunks():
        told += times.took(chunk).words
        deadline = 500
        while chunk.index == 1 and not times.words and (deadline := deadline - 1):
            threading.Event().wait(0.01)
    times.wait()
    told += times.news()
    assert [(word.text, word.start, word.end) for word in told] == [
        ("One,", 0.0, 0.45), ("two", 0.45, 0.45), ("three", 0.45, 0.45), ("four.", 0.45, 0.45),
    ]  # fmt: skip
