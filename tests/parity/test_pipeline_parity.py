"""From a clip and a text to the waveform: our stages against the official package, on the same checkpoint folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_bare import GREEDY, BareQwen3
from tests.support.oracles.qwen_tts import load_official, official_speech
from tools.demo_voice.dataset import sentence_of
from tools.demo_voice.qwen3_tts.export import export
from tools.demo_voice.qwen3_tts.shape import EOS, GENERATION, SHAPE
from tools.demo_voice.qwen3_tts.vocabulary import train_merges
from tools.families.qwen3_tts import checkpoint_weights
from tools.families.qwen3_tts.checkpoint_maker import make_endless, write_configuration
from voice_clone.audio import decode

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

FRAMES = 41
CASES = [  # (layout, language)
    ("x_vector", "Auto"),
    ("x_vector", "English"),
    ("icl", "Chinese"),
    ("icl", "Auto"),
    ("x_vector non-streaming", "German"),
    ("icl non-streaming", "French"),
]
TEXT = "Zwei Boote, two boats — 两只船, and 3 more; all came home in the evening."


@lru_cache(maxsize=1)
def load(folder: Path) -> tuple[BareQwen3, Any]:
    return BareQwen3(folder), load_official(folder)


def check(folder: Path, clip: bytes, transcript: str, layout: str, language: str, frames: int) -> np.ndarray:
    ours, official = load(folder)
    given = transcript if layout.startswith("icl") else None
    non_streaming = "non-streaming" in layout
    decoded = decode(clip)
    samples = (decoded.waveform, decoded.sample_rate)
    expected, expected_codes, item = official_speech(
        official, samples, given, TEXT, language, frames, non_streaming, do_sample=False, subtalker_dosample=False
    )
    prompt = ours.prompt(TEXT, clip, given, language, non_streaming)
    np.testing.assert_allclose(prompt.speaker_embedding, item.ref_spk_embedding.numpy(), atol=1e-5)
    if item.ref_code is not None:
        np.testing.assert_array_equal(prompt.reference_codes, item.ref_code.numpy())
    codes = ours.codes(prompt, frames)
    np.testing.assert_array_equal(codes, expected_codes)
    assert len(codes) == frames
    rms = float(np.sqrt((expected**2).mean()))
    assert rms > 0.01, "a comparison of silence proves nothing"
    for chunk in (7, len(codes)):
        waveform = ours.waveform(prompt, codes, chunk)
        assert len(waveform) == 1920 * len(codes)
        # The official cut behind the reference is proportional, so it may be a sample off at the front.
        assert abs(len(expected) - len(waveform)) <= 1
        np.testing.assert_allclose(waveform[1:], expected[-len(waveform) :][1:], atol=1e-4 * rms)
    return codes


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_tiny(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, reference_clip: bytes, reference_text: str, seed: int
) -> None:
    # Where speech ends is compared elsewhere.
    folder = make_endless(checkpoint_folder("tiny", seed), tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in CASES if seed == 0 else CASES[seed::3]:
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    assert len(seen) > 200, "few codes occur, so equal codes prove little"


def test_demo_voice(
    tmp_path: Path, reference_clip: bytes, reference_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape, the tokenizer and the files of the demo's checkpoint, with random weights."""
    monkeypatch.setattr(checkpoint_weights, "CODEC_EOS", EOS)
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    texts = [sentence_of(0, "train", number) for number in range(500)]
    released = GENERATION | {"repetition_penalty": GREEDY.repetition_penalty}  # as `BareQwen3` has it
    config = write_configuration(SHAPE, configuration, train_merges(texts), released)
    model, codec = (
        {name: checkpoint_weights.random_tensor(name, shape, 0) for name, shape in shapes.items()}
        for shapes in (checkpoint_weights.model_shapes(config), checkpoint_weights.codec_shapes(config))
    )
    decoder, encoder = (
        {name.removeprefix(f"{part}."): tensor for name, tensor in codec.items() if name.startswith(f"{part}.")}
        for part in ("decoder", "encoder")
    )
    export(configuration, model, decoder, encoder, tmp_path / "checkpoint")
    folder = make_endless(tmp_path / "checkpoint", tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in [*CASES[:2], (CASES[3][0], "English")]:
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    assert len(seen) > 100


@pytest.mark.long
@pytest.mark.parametrize("shape", ["0.6b", "1.7b"])
def test_released_shapes(tmp_path: Path, reference_clip: bytes, reference_text: str, shape: str) -> None:
    from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint

    load.cache_clear()
    make_checkpoint(shape, 0, tmp_path / "checkpoint")
    folder = make_endless(tmp_path / "checkpoint", tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in (CASES[1], CASES[3], CASES[4]):
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    load.cache_clear()
    assert len(seen) > 200
