"""The engine of Qwen3-ForcedAligner on random weights: intervals, precisions, refusals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.families.speech_like import speech_like
from tools.qwen3_aligner import make_checkpoint
from voice_clone import compute
from voice_clone.aligner.engine import Interval, Refused, Unit
from voice_clone.audio import resample
from voice_clone.qwen3_aligner.config import load_config
from voice_clone.qwen3_aligner.engine import Qwen3Aligner, load
from voice_clone.qwen3_aligner.network import ForcedAligner, load_network
from voice_clone.settings import PrecisionSettings, Settings

TEXT = "The voice of a friend, … 12 words — it's 朋 友 well-known 🙂 !"
RATE = 24_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligner") / "checkpoint"
    make_checkpoint("tiny", 0, folder)
    return folder


def settings(**others: object) -> PrecisionSettings:
    given = {"device": "cpu", "packed_bytes": "0", **others}
    return PrecisionSettings.of(Settings({"parameters": {n: {"string_value": v} for n, v in given.items()}}, {}))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Qwen3Aligner:
    return load(folder, settings())


def units(text: str) -> list[Unit]:
    places = np.cumsum([0, *(len(each) + 1 for each in text.split(" "))])
    return [Unit(each, place, place + len(each)) for each, place in zip(text.split(" "), places, strict=False)]


def speech(seconds: float, rate: int = RATE) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return speech_like(round(seconds * rate), rate).numpy()


def align(engine: Qwen3Aligner, samples: np.ndarray, pieces: Sequence[int] = (), text: str = TEXT) -> list[Interval]:
    alignment = engine.start(units(text), RATE, "en")
    for piece in np.split(samples, pieces):
        assert alignment.feed(piece) == []
    return list(alignment.end())


def test_intervals_are_in_order_within_the_speech_one_for_each_unit(engine: Qwen3Aligner) -> None:
    samples = speech(33.3)  # so that many of the random times are within it
    found = align(engine, samples)
    assert len(found) == len(units(TEXT))
    borders = [border for each in found for border in (each.start, each.end)]
    assert borders == sorted(borders) and borders[0] >= 0 and borders[-1] <= len(samples)
    empty = [unit.text in ("…", "—", "🙂", "!") for unit in units(TEXT)]
    assert [each.confidence is None for each in found] == [each.start == each.end for each in found] == empty
    assert all(0 < (each.confidence or 0) <= 1 for each, none in zip(found, empty, strict=True) if not none)


def test_pieces_of_a_speech_have_the_times_of_the_whole(engine: Qwen3Aligner) -> None:
    samples = speech(3.0)
    assert align(engine, samples) == align(engine, samples, (1, 7, 7, 1920, 30_000)) == align(engine, samples)


def test_another_rate_has_the_same_times(engine: Qwen3Aligner) -> None:
    """Within a step: resampled sounds differ a little."""
    found = engine.start(units("One two three"), 16_000, None)
    samples = speech(20.0)
    found.feed(resample(samples, RATE, 16_000))
    expected = align(engine, samples, text="One two three")
    for ours, theirs in zip(found.end(), expected, strict=True):
        assert abs(ours.start / 16_000 - theirs.start / RATE) <= 0.08
        assert abs(ours.end / 16_000 - theirs.end / RATE) <= 0.08


def test_the_decoder_reads_pieces_as_it_reads_the_whole(engine: Qwen3Aligner, monkeypatch: pytest.MonkeyPatch) -> None:
    waveform, words = speech(9.0, 16_000), ["one", "two", "three"] * 5
    whole = engine.classes(waveform, words)
    monkeypatch.setattr(sys.modules[ForcedAligner.__module__], "PIECE", 37)
    torch.testing.assert_close(engine.classes(waveform, words), whole, rtol=0, atol=1e-4)


def test_native_code_finds_what_torch_finds(folder: Path, engine: Qwen3Aligner) -> None:
    """The layers of a GPU, here on the CPU, from the same file."""
    network = ForcedAligner(load_config(folder))
    weights = load_file(folder / "model.safetensors")
    network.load_state_dict({name.removeprefix("thinker."): each.float() for name, each in weights.items()})
    assert network.native_stack is None and engine.network.native_stack is not None
    waveform, words = speech(9.0, 16_000), ["one", "two", "three"] * 5
    in_torch = Qwen3Aligner(network.eval(), engine.tokenizer).classes(waveform, words)
    native = engine.classes(waveform, words)
    torch.testing.assert_close(native, in_torch, rtol=0, atol=2e-4 * float(in_torch.std()))


@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.1), ("int8", 0.1), ("int4", 1.0)])
def test_a_lower_precision_changes_the_scores_a_little(
    folder: Path, engine: Qwen3Aligner, precision: str, most: float
) -> None:
    waveform, words = speech(3.0, 16_000), ["one", "two", "three"]
    expected = engine.classes(waveform, words)
    found = load(folder, settings(precision=precision)).classes(waveform, words)
    error = float((found - expected).std() / expected.std())
    assert 1e-4 < error < most


def test_packed_weights_are_found_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and biases of the encoder are not among them."""
    monkeypatch.setattr(compute, "writable_folder", lambda name: tmp_path)
    monkeypatch.setattr("voice_clone.native.packed_file.WORTH", 0)
    given = settings(precision="int8", packed_bytes="1e9")
    first, second = (load_network(given, folder, load_config(folder)) for _ in range(2))
    assert len(list(tmp_path.rglob("*.packed"))) == 1
    waveform = speech(2.0, 16_000)
    ids, places = load(folder, given).tokenizer.prompt(["one"], len(first.rows(waveform)))
    scores = [network.logits(network.rows(waveform), ids, places) for network in (first, second)]
    assert torch.equal(*scores)


@pytest.mark.parametrize(
    ("samples", "text", "right"),
    [
        (np.zeros(0, np.float32), "One", "25 are needed"),
        (speech(0.02), "One", "25 are needed"),
        (np.zeros(RATE, np.float32), "One", "silent"),
        (np.full(RATE, np.nan, np.float32), "One", "no numbers"),
        (np.full(RATE, np.inf, np.float32), "One", "no numbers"),
        (speech(0.5), "word " * 400, "longer than"),
        (speech(0.5), "x" * 100_000, "longer than"),
        (speech(0.5), "ж" * 2_000, "longer than"),
    ],
)
def test_what_cannot_be_aligned_is_refused(engine: Qwen3Aligner, samples: np.ndarray, text: str, right: str) -> None:
    with pytest.raises(Refused, match=right):
        align(engine, samples, text=text)
    assert align(engine, speech(1.0), text="One") == align(engine, speech(1.0), text="One")  # and the next is not


def test_a_speech_that_goes_on_and_on_is_refused(engine: Qwen3Aligner) -> None:
    alignment = engine.start(units("One"), 8_000, "en")
    minute = speech(60.0, 8_000)
    for _ in range(3):
        alignment.feed(minute)
    with pytest.raises(Refused, match="180 s"):
        alignment.feed(minute[:1])


def test_other_languages_and_texts_without_words_are_refused(engine: Qwen3Aligner) -> None:
    with pytest.raises(Refused, match="de, en, es, fr, it, ja, ko, pt, ru, yue, zh"):
        engine.start(units("merhaba"), RATE, "tr")
    with pytest.raises(Refused, match="letters or digits"):
        engine.start(units("🙂 … !"), RATE, "en")
