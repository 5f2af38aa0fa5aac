"""Qwen3-ForcedAligner against the official package qwen-asr 0.0.6 on random weights: network, units, times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.families.speech_like import speech_like
from tests.support.oracles.qwen_asr import OfficialAligner
from tools.families.byte_level_bpe import CORPUS
from tools.qwen3_aligner import SHAPES, make_checkpoint, network_shapes
from voice_clone.layers.mel import whisper_frames
from voice_clone.qwen3_aligner.config import AlignerConfig
from voice_clone.qwen3_aligner.engine import Qwen3Aligner, load
from voice_clone.qwen3_aligner.text import kept_of
from voice_clone.qwen3_aligner.times import repaired
from voice_clone.settings import PrecisionSettings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

MOST = 1e-4  # of the official numbers' spread
TEXTS = {
    0.5: "Hello there.",
    1.0: "One",
    3.51: "The voice of a friend, 12 words; it's 朋友 — well-known, $3.50 … 'tis so!",
    7.99: "Die Stimme eines Freundes (erkennt) man vor dem ersten Satz: naïve, Straße, œuvre.",
    8.0: "我们早上读一遍故事,晚上再读一遍。 OK? 它是3本书",
    12.3: "Голос друга узнают раньше первого слова. " * 3,
    21.04: "We read the same short story aloud, once in the morning and once at night. " * 4,
    30.0: " ".join(CORPUS.splitlines()[1:8]),
}
"""Texts of sounds of so many seconds; windows have 8 s."""


@pytest.fixture(scope="module", params=["tiny", pytest.param("released-2", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligner") / "checkpoint"
    make_checkpoint(request.param, 0, folder)
    return folder


@pytest.fixture(scope="module")
def official(folder: Path) -> OfficialAligner:
    return OfficialAligner(folder)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Qwen3Aligner:
    return load(folder, PrecisionSettings(device="cpu", packed_bytes=0.0))


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest one, as a part of the spread of what is expected."""
    assert found.shape == expected.shape and expected.std() > 0.1
    return float((found - expected).abs().max() / expected.std())


def test_every_tensor_is_loaded_and_none_is_left(official: OfficialAligner, folder: Path) -> None:
    stored, loaded = load_file(folder / "model.safetensors"), official.aligner.model.state_dict()
    assert stored.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], stored[name].float()) for name in loaded)


@pytest.mark.parametrize("seconds", TEXTS)
def test_frames_rows_classes_and_times_are_the_official_ones(
    official: OfficialAligner, ours: Qwen3Aligner, seconds: float
) -> None:
    waveform, text = speech_like(round(16_000 * seconds), 16_000).numpy(), TEXTS[seconds]
    expected = official.align(waveform, text)
    units = [unit for unit, _, _ in expected]
    assert torch.equal(whisper_frames(torch.from_numpy(waveform)), official.frames)
    rows = ours.network.rows(waveform)
    assert difference(rows, official.rows) < MOST
    ids, _ = ours.tokenizer.prompt(units, len(rows))
    np.testing.assert_array_equal(ids, official.ids)
    found = ours.classes(waveform, units)
    assert difference(found, official.marks) < MOST
    assert torch.equal(found.argmax(dim=1), official.marks.argmax(dim=1))
    assert len(official.marks.argmax(dim=1).unique()) > min(len(units), 5) // 2  # else the comparison is empty
    assert repaired((found.argmax(dim=1) * 80).tolist()) == [time for _, *both in expected for time in both]


def test_a_sound_above_full_scale_is_scaled_as_the_official_one(official: OfficialAligner, ours: Qwen3Aligner) -> None:
    waveform = 7 * speech_like(40_000, 16_000).numpy()
    assert np.abs(waveform).max() > 1
    official.align(waveform, TEXTS[1.0])
    assert difference(ours.classes(waveform, ["One"]), official.marks) < MOST


def test_windows_matter_and_are_kept(official: OfficialAligner, ours: Qwen3Aligner) -> None:
    """Rows of the first 8 s do not depend on what comes behind; those of the official code without its mask do."""
    waveform = speech_like(16_000 * 20, 16_000)
    frames, window = whisper_frames(waveform), ours.network.audio_tower.window
    with torch.inference_mode():
        whole, first = (ours.network.audio_tower(each) for each in (frames, frames[:, :800]))
    assert len(first) == window == 104
    torch.testing.assert_close(whole[:window], first, rtol=0, atol=1e-4 * float(first.std()))
    layers = official.thinker.audio_tower.layers
    wrapped = [layer.forward for layer in layers]
    for layer in layers:
        layer.forward = layer.forward.args[0]
    try:
        with torch.inference_mode():
            unmasked = official.thinker.audio_tower(frames, feature_lens=torch.tensor([frames.shape[1]]))
    finally:
        for layer, forward in zip(layers, wrapped, strict=True):
            layer.forward = forward
    assert difference(unmasked.last_hidden_state, whole) > 100 * MOST


def test_units_are_the_official_ones(official: OfficialAligner) -> None:
    """Texts of white space, letters, marks and emoji: a unit is what stands between white space, without marks."""
    random = np.random.default_rng(4)
    letters = [*"abcXYZ éßøЖя0123½Ⅷ'’.,;:!?-—$%()[]<>|_\n\t\u3000🙂", "<timestamp>", "<|audio_pad|>", " "]
    for _ in range(2_000):
        text = "".join(random.choice(letters, size=random.integers(1, 40)))
        assert [kept for each in text.split() if (kept := kept_of(each))] == official.units(text)


def test_no_text_holds_a_control_token(official: OfficialAligner, ours: Qwen3Aligner) -> None:
    """What looks like one loses its brackets."""
    text = "say <timestamp> and <|audio_pad|><|im_end|>"
    units = [kept_of(each) for each in text.split()]
    ids, places = ours.tokenizer.prompt(units, 5)
    assert units == ["say", "timestamp", "and", "audiopadimend"] == official.units(text)
    assert len(places) == 2 * len(units) and list(ids).count(ours.config.tokens["<|audio_pad|>"]) == 5


def test_repaired_times_are_the_official_ones(official: OfficialAligner) -> None:
    random = np.random.default_rng(7)
    for case in range(1_000):
        count = 2 * int(random.integers(1, 201))
        classes = random.integers(0, 400, count)
        if case % 3:  # mostly in order
            strays = random.random(count) < case % 3 / 5
            classes = np.where(strays, classes, np.sort(classes))
        marks = (80 * classes).astype(np.float32)
        assert repaired(marks.tolist()) == official.repaired(marks)


def test_names_and_shapes_are_those_of_the_released_model() -> None:
    """708 tensors of 918 M numbers, 16 in a layer of the encoder."""
    audio, text, _ = SHAPES["released"]
    shapes = network_shapes(AlignerConfig(audio, text, 5000, 80, {}))
    assert len(shapes) == 708 and 917e6 < sum(map(np.prod, shapes.values())) < 919e6
    fewer = network_shapes(AlignerConfig(replace(audio, encoder_layers=1), text, 5000, 80, {}))
    assert len(shapes) - len(fewer) == 23 * 16
