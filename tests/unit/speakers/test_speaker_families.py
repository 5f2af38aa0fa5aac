"""All model families side by side in one cache that knows none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

import voice_clone
from tests.support.doubles.fakes import FAMILIES, FakeEncoder, Voices, clip
from voice_clone.audio import decode
from voice_clone.errors import Unsupported

MODES = [(model_type, mode) for model_type, (_, modes) in FAMILIES.items() for mode in modes]
PACKAGE = Path(voice_clone.__file__).parent


@pytest.fixture
def voices(make_voices: Callable[..., Voices]) -> Voices:
    return make_voices(defaults=())


@pytest.mark.parametrize(("model_type", "mode"), MODES)
def test_artifacts_come_back_as_the_family_made_them(voices: Voices, model_type: str, mode: str) -> None:  # B15, C8
    data = clip(1, 10.0)
    voices.upload(audio=data, reference_text="Hello.")
    decoded = decode(data)
    made = FakeEncoder().encode(model_type, decoded.waveform, decoded.sample_rate, mode).artifacts
    replies = [voices.resolve(model_type=model_type, mode=mode)]
    voices.restart()
    replies += [voices.resolve(model_type=model_type, mode=mode) for _ in range(2)]
    assert [reply.result["status"] for reply in replies] == ["miss", "restored", "hit"]
    for reply in replies:
        tensors = load(reply.artifacts or b"")
        assert tensors.keys() == made.keys()
        for name, tensor in made.items():
            assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
            np.testing.assert_array_equal(tensors[name], tensor)


def test_one_voice_serves_all_families(voices: Voices) -> None:  # A9, B18, C1, C4
    voices.upload("Ada", 1, reference_text="Hello.")
    voices.upload("Bob", 2, reference_text="Hello.")
    replies = {}
    for name in ("Ada", "Bob"):
        for model_type, mode in MODES:
            replies[name, model_type, mode] = voices.resolve(name, model_type, mode=mode).artifacts
    assert len(set(replies.values())) == len(replies) == 2 * len(MODES)
    assert set(voices.encoder.calls.values()) == {2}
    shown = voices.get("Ada")["artifacts"]
    assert {(a["model_type"], a["mode"]) for a in shown} == set(MODES) and {a["state"] for a in shown} == {"ready"}
    for (name, model_type, mode), artifacts in replies.items():
        reply = voices.resolve(name, model_type, mode=mode)
        assert (reply.result["status"], reply.artifacts) == ("hit", artifacts)
    voices.call("delete", name="Ada")
    assert voices.stats()["entries"] == len(MODES)


def test_families_are_extracted_in_the_background_and_one_that_is_not_loaded_harms_no_other(
    make_voices: Callable[..., Voices],
) -> None:
    voices = make_voices("other", defaults=("qwen3_tts", "cosyvoice3", "moshi"))
    speaker = voices.upload(reference_text="Hello.")
    assert {a["model_type"]: a["state"] for a in speaker["artifacts"]} == {
        "qwen3_tts": "ready", "cosyvoice3": "ready", "moshi": "unsupported",
    }  # fmt: skip
    assert voices.resolve(model_type="cosyvoice3").result["status"] == "hit"
    with pytest.raises(Unsupported):
        voices.resolve(model_type="moshi")


def test_the_size_counted_is_that_of_the_artifacts(voices: Voices) -> None:  # C13
    """Bytes of ten seconds in memory, as the table of families has them, within 5 %."""
    table = {
        ("fish_speech", "icl"): 17_280,
        ("cosyvoice3", "icl"): 161_772,
        ("voxcpm2", "reference"): 64_512,
        ("voxcpm2", "continuation"): 129_024,
        ("omnivoice", "icl"): 16_000,
    }
    voices.upload(audio=clip(1, 10.0), reference_text="Hello.")
    for (model_type, mode), size in table.items():
        before = voices.stats()["bytes"]
        voices.resolve(model_type=model_type, mode=mode)
        assert voices.stats()["bytes"] - before == pytest.approx(size, rel=0.05)
