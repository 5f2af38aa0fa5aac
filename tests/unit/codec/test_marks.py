"""Marks of streams behind the decoder: the same samples as of a whole, and what happens where it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.doubles.codec_bench import Bench, heard
from tests.support.families.small_codec import FORM, chunks_of, make_code2wav, random_codes, whole
from tests.support.same_audio import assert_same_audio
from voice_clone.codec.chunk import MARK_WISHES, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.marks import Marks, load_marks, mark_wish
from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.marking.marker import PerthMarker
from voice_clone.settings import DecoderSettings

Samples = NDArray[np.float32]


class BrokenMarker:
    """Doubles the samples; fails on some streams."""

    def __init__(self) -> None:
        self.failing: set[int] = set()  # numbers of streams
        self.opened = 0
        self.batches: list[int] = []

    @property
    def name(self) -> str:
        return "double"

    def open(self) -> int:
        self.opened += 1
        return self.opened

    def mark(self, streams: Sequence[int], waveforms: Sequence[Samples]) -> list[Samples]:
        self.batches.append(len(streams))
        if self.failing.intersection(streams):
            raise RuntimeError("the marker is broken")
        return [2 * waveform for waveform in waveforms]


def decode(code2wav: Code2Wav, *streams: list[Any]) -> list[list[Any]]:
    """The outcomes of streams, whose chunks are decoded in turn, those of a turn in one batch."""
    found: list[list[Any]] = [[] for _ in streams]
    for turn in zip(*streams, strict=True):
        for mine, outcome in zip(found, code2wav.decode(turn), strict=True):
            mine.append(outcome)
    return found


def joined(outcomes: list[Decoded]) -> Samples:
    return np.concatenate([each.waveform for each in outcomes])


def test_a_marked_stream_is_the_marked_whole(decoder: CodecDecoder) -> None:
    marker = PerthMarker(FORM.sample_rate)
    code2wav = make_code2wav(decoder, marks=Marks(marker, "on"))
    sizes = [1, 2, 4, 50, 100, 243]
    codes = [random_codes(400, seed) for seed in range(3)]
    streams = [chunks_of(str(place), each, sizes) for place, each in enumerate(codes)]
    for each, outcomes in zip(codes, decode(code2wav, *streams), strict=True):
        expected = whole(decoder, each)
        got = joined(outcomes)
        assert_same_audio(got, marker.mark([marker.open()], [expected])[0])
        assert np.abs(got - expected).max() > 0.01
        assert {outcome.mark for outcome in outcomes} == {"marked"}


def test_without_marks_nothing_changes(decoder: CodecDecoder) -> None:
    codes = random_codes(30, 0)
    [outcomes] = decode(make_code2wav(decoder), chunks_of("s", codes, [10, 20]))
    assert_same_audio(joined(outcomes), whole(decoder, codes))
    assert {outcome.mark for outcome in outcomes} == {"off"}


def test_a_stream_whose_mark_fails_goes_on_without_it(decoder: CodecDecoder) -> None:
    marker = BrokenMarker()
    code2wav = make_code2wav(decoder, marks=Marks(marker, "on"))
    codes = [random_codes(30, seed) for seed in range(2)]
    streams = [chunks_of(str(place), each, [10, 10, 10]) for place, each in enumerate(codes)]
    marker.failing = {1}
    first, second = decode(code2wav, *streams)
    assert_same_audio(joined(first), whole(decoder, codes[0]))
    assert_same_audio(joined(second), 2 * whole(decoder, codes[1]))
    assert {each.mark for each in first} == {"failed"} and {each.mark for each in second} == {"marked"}
    assert marker.batches == [2, 1, 1, 1, 1], "after the failure the other one alone is marked"


def test_a_stream_that_must_be_marked_ends(decoder: CodecDecoder) -> None:
    marker = BrokenMarker()
    code2wav = make_code2wav(decoder, marks=Marks(marker, "required"))
    codes = [random_codes(20, seed) for seed in range(2)]
    first, second = (chunks_of(str(place), each, [10, 10]) for place, each in enumerate(codes))
    assert all(isinstance(each, Decoded) for each in code2wav.decode([first[0], second[0]]))
    marker.failing = {2}
    kept, ended = code2wav.decode([first[1], second[1]])
    assert isinstance(kept, Decoded) and kept.mark == "marked"
    assert isinstance(ended, Internal) and str(ended) == "this speech could not be marked as synthetic; try again"
    assert code2wav.streams == 0


def test_errors_of_the_decoder_pass_through(decoder: CodecDecoder) -> None:
    marker = BrokenMarker()
    code2wav = make_code2wav(decoder, marks=Marks(marker, "required"))
    good, bad = chunks_of("good", random_codes(10, 0), [10]), chunks_of("bad", random_codes(10, 1) + 99, [10])
    fine, refused = code2wav.decode([good[0], bad[0]])
    assert isinstance(fine, Decoded) and isinstance(refused, InvalidArgument)
    assert marker.batches == [1]


def test_finished_streams_are_reported(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    marker = BrokenMarker()
    marker.failing = {2}
    it = bench(marks=Marks(marker, "on"))
    for name in ("a", "b"):
        heard(it.submit(*chunks_of(name, random_codes(20, 0), [10, 10])))
    it.worker.close()
    assert [result for report in it.reports for result in report.marks] == ["marked", "failed"]


def test_the_setting_chooses(tmp_path: Path) -> None:
    def settings(mark: str) -> DecoderSettings:
        return DecoderSettings(checkpoint_dir=tmp_path, device="cpu", mark=mark)

    assert load_marks(settings("off"), 24_000) is None
    for mark, plain in (("on", False), ("required", True), ("requested", None)):
        marks = load_marks(settings(mark), 24_000)
        assert marks is not None
        opened = marks.open()
        assert (None if opened is None else opened.required) == plain, mark


@pytest.mark.parametrize("batches", [[1], [1, 4]])
def test_the_warm_up_marks_batches_of_these_sizes(decoder: CodecDecoder, batches: list[int]) -> None:
    marker = BrokenMarker()
    make_code2wav(decoder, marks=Marks(marker, "on")).warm_up([1, 2], batches, 10.0)
    assert marker.batches == [batch for batch in batches for _ in range(2)]


def test_a_request_asks_for_more_but_never_for_less() -> None:
    found = {}
    for least in MARK_WISHES:
        opened = [Marks(BrokenMarker(), least).open(wish) for wish in MARK_WISHES]
        found[least] = [None if each is None else each.required for each in opened]
    assert found == {"off": [None, False, True], "on": [False, False, True], "required": [True, True, True]}


def test_each_stream_is_marked_as_its_request_says(decoder: CodecDecoder) -> None:
    marker = BrokenMarker()
    code2wav = make_code2wav(decoder, marks=Marks(marker, "off"))
    codes = [random_codes(20, seed) for seed in range(3)]
    streams = [
        [replace(chunk, mark=wish if chunk.index == 0 else "off") for chunk in chunks_of(wish, each, [10, 10])]
        for wish, each in zip(MARK_WISHES, codes, strict=True)
    ]
    plain, marked, required = decode(code2wav, *streams)
    assert_same_audio(joined(plain), whole(decoder, codes[0]))
    for outcomes, mine in ((marked, codes[1]), (required, codes[2])):
        assert_same_audio(joined(outcomes), 2 * whole(decoder, mine))
    assert [each[-1].mark for each in (plain, marked, required)] == ["off", "marked", "marked"]
    assert marker.batches == [2, 2]
    marker.failing = {3, 4}
    streams = [[replace(each[0], stream_id=each[0].stream_id + "again")] for each in streams]
    [[plain], [failed], [ended]] = decode(code2wav, *streams)
    assert (plain.mark, failed.mark) == ("off", "failed") and isinstance(ended, Internal)


def test_a_server_without_marks_refuses_those_who_want_one(decoder: CodecDecoder) -> None:
    code2wav = make_code2wav(decoder)
    [chunk] = chunks_of("s", random_codes(10, 0), [10])
    on, required, off = (replace(chunk, stream_id=wish, mark=wish) for wish in ("on", "required", "off"))
    first, second, third = code2wav.decode([on, required, off])
    for refused in (first, second):
        assert isinstance(refused, Unsupported) and str(refused).endswith("serve it with mark requested")
    assert isinstance(third, Decoded) and third.mark == "off" and code2wav.streams == 0


def test_the_parameter_of_a_request() -> None:
    assert [mark_wish(each) for each in (None, *MARK_WISHES)] == ["off", *MARK_WISHES]
    for given in ("", "yes", True, 1, "requested"):
        with pytest.raises(InvalidArgument, match="off, on, required"):
            mark_wish(given)
