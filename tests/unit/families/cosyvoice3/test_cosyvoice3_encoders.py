"""The voice encoder of CosyVoice3: what it makes of a clip, and which clips and networks it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.support.doubles.backend_double import backend_double
from tests.support.families.cosyvoice3 import make_voice_encoder
from tests.support.families.speech_like import speech_like
from tools.families.cosyvoice3 import encoders
from voice_clone import compute
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.cosyvoice3.encoder import (
    MelStage,
    SpeakerStage,
    TokenStage,
    load_mel,
    load_speaker,
    load_tokens,
)
from voice_clone.families.cosyvoice3.networks import features
from voice_clone.settings import Settings
from voice_clone.speakers.encoders import fault

pytestmark = pytest.mark.thorough

EMPTY = np.zeros(0, np.float32)
Stage = TokenStage | SpeakerStage | MelStage


def settings(folder: Path, **more: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "cosyvoice3")


def clip(samples: int, rate: int) -> NDArray[np.float32]:
    made: NDArray[np.float32] = speech_like(samples, rate).numpy()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voice_encoder(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.fixture(scope="module")
def stages(folder: Path) -> dict[str, Stage]:
    given = settings(folder)
    return {"speech_tokens": load_tokens(given), "speaker": load_speaker(given), "mel": load_mel(given)}


def test_a_clip_becomes_three_artifacts(stages: dict[str, Stage]) -> None:
    seconds, made = 4.01, {}
    for name, stage in stages.items():
        [(found, made[name])] = stage.encode(clip(round(seconds * stage.sample_rate), stage.sample_rate), None).items()
        assert found == name
    assert (made["speech_tokens"].dtype, made["speech_tokens"].shape) == (np.uint16, (101,))  # ceil(401 / 4)
    assert (made["speaker"].dtype, made["speaker"].shape) == (np.float32, (192,))
    assert (made["mel"].dtype, made["mel"].shape) == (np.int16, (200, 80))  # floor(96240 / 480)
    assert len(np.unique(made["speech_tokens"])) > 20  # not one token again and again
    tokens = stages["speech_tokens"]
    assert tokens.modes == {"zero_shot": ("reference_text",), "cross_lingual": ()}
    limits = {name: limit._asdict() for name, limit in tokens.limits(None).items()}
    assert limits.keys() == {"speech_tokens", "mel"}
    assert all(fault(made[name], limit) is None for name, limit in limits.items())


def test_the_mode_changes_no_artifact(stages: dict[str, Stage]) -> None:
    for name, stage in stages.items():
        waveform = clip(stage.sample_rate, stage.sample_rate)
        one, other = (stage.encode(waveform, mode)[name] for mode in ("zero_shot", "cross_lingual"))
        np.testing.assert_array_equal(one, other)


def test_stored_mel_frames_are_off_by_half_a_step(stages: dict[str, Stage]) -> None:
    for waveform in (clip(30_000, 24_000), 1e6 * clip(30_000, 24_000), np.zeros(30_000, np.float32)):
        exact = features.reference_frames(torch.from_numpy(waveform)).numpy()
        stored = stages["mel"].encode(waveform, None)["mel"]
        if exact.max() < 15:
            assert np.abs(stored / 2048 - exact).max() <= 0.5 / 2048 + 1e-6
        else:
            assert stored.max() == 2**15 - 1  # not around the other end


def test_a_clip_is_neither_too_short_nor_too_long(stages: dict[str, Stage]) -> None:
    for stage in stages.values():
        stage.encode(clip(30 * stage.sample_rate + 1, stage.sample_rate), None)  # resampling may add one
        with pytest.raises(Unsupported, match=r"at most 30 s of a voice"):
            stage.encode(clip(round(30.1 * stage.sample_rate), stage.sample_rate), None)
        with pytest.raises(InvalidArgument, match=r"at least 0\.1 s"):
            stage.encode(clip(stage.sample_rate // 20, stage.sample_rate), None)


class Other(nn.Module):
    """A network with the tokenizer's inputs and an output that is not its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        tokens = frames[:, 0, ::4].abs().int() * 0 + lengths.int()[:, None] * 0
        return {
            "floats": tokens.float(),
            "large": tokens + 6561,
            "negative": tokens - 1,
            "short": tokens[:, 1:],
            "NaN": torch.full_like(tokens.float(), torch.nan),
        }[self.kind]


@pytest.mark.parametrize("kind", ["floats", "large", "negative", "short", "NaN"])
def test_a_network_that_makes_no_tokens_is_refused_when_it_is_loaded(folder: Path, tmp_path: Path, kind: str) -> None:
    made = make_folder(folder, tmp_path)
    example = (torch.zeros(1, 128, 50), torch.tensor([50], dtype=torch.int32))
    axes = {"feats": {2: "frames"}, "feats_length": {}, "indices": {1: "tokens"}}
    encoders._export(Other(kind), example, axes, made / "speech_tokenizer_v3.onnx")
    with pytest.raises(
        CheckpointError, match=r"speech_tokenizer_v3.onnx: makes no 25 speech tokens below 6561 of 100 f"
    ):
        load_tokens(settings(made))


def make_folder(folder: Path, tmp_path: Path) -> Path:
    """A folder like that one, to be changed."""
    made = tmp_path / "changed"
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    return made


def test_a_network_in_the_others_place_is_refused(folder: Path, tmp_path: Path) -> None:
    made = make_folder(folder, tmp_path)
    (made / "campplus.onnx").write_bytes((folder / "speech_tokenizer_v3.onnx").read_bytes())
    (made / "speech_tokenizer_v3.onnx").write_bytes((folder / "campplus.onnx").read_bytes())
    with pytest.raises(
        CheckpointError, match=r"campplus.onnx: takes tensor\(float\) of 3 dimensions and tensor\(int32\)"
    ):
        load_speaker(settings(made))
    with pytest.raises(CheckpointError, match=r"speech_tokenizer_v3.onnx: takes .*, expected tensor\(float\) of 3 dim"):
        load_tokens(settings(made))


def test_a_file_that_is_no_network(folder: Path, tmp_path: Path) -> None:
    made = make_folder(folder, tmp_path)
    (made / "campplus.onnx").write_bytes(b"\x08\x08" * 100)
    with pytest.raises(
        CheckpointError, match=r"campplus.onnx: ONNX Runtime cannot open the graph; download the checkp"
    ):
        load_speaker(settings(made))
    (made / "campplus.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"campplus.onnx: .*missing"):
        load_speaker(settings(made))
    (made / "cosyvoice3.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"cosyvoice3.yaml: .*missing"):
        load_mel(settings(made))


@pytest.mark.parametrize("in_torch", [True, False])
def test_a_process_without_torch_networks_takes_no_memory_of_a_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch, in_torch: bool
) -> None:
    prepared: list[bool] = []
    monkeypatch.setattr(compute, "prepare", lambda settings, remote: prepared.append(remote))
    with backend_double("stages.encoder") as (module,):
        content = {"load_stage": staticmethod(load_mel), "in_torch": in_torch}
        type("Model", (module.EncoderModel,), content)().load(settings(folder))
    assert prepared == [not in_torch]
