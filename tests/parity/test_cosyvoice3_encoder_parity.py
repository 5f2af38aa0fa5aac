"""The voice encoder of CosyVoice3 against s3tokenizer 0.3.0, torchaudio 2.11.0 and librosa 0.11.0: random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import librosa
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.families.cosyvoice3 import make_voice_encoder
from tests.support.families.speech_like import speech_like
from tests.support.official.official_encoders import (
    official_speaker_frames,
    official_tokenizer_frames,
    official_tokens,
    official_weights,
)
from tools.families.cosyvoice3.encoders import ENCODERS, random_tokenizer, s3tokenizer_name
from voice_clone.families.cosyvoice3.encoder import load_tokens
from voice_clone.families.cosyvoice3.networks import features
from voice_clone.families.cosyvoice3.tokenizer_graph import load_network
from voice_clone.layers.mel import whisper_frames
from voice_clone.settings import Settings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

LENGTHS = (1600, 16000, 16001, 16639, 64160, 480000)  # samples at 16 kHz; the last is the longest clip
TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("shape", "seed", "lengths"),
    [
        ("tiny", 0, LENGTHS),
        ("tiny", 1, LENGTHS),
        pytest.param("0.5b-2", 0, LENGTHS[1:3], marks=pytest.mark.long),
        pytest.param("0.5b", 0, LENGTHS[4:5], marks=pytest.mark.long),
    ],
)
def test_the_same_speech_tokens(shape: str, seed: int, lengths: tuple[int, ...], tmp_path: Path) -> None:
    """Ours are computed by ONNX Runtime from an exported network, as those of the released file."""
    folder = make_voice_encoder(tmp_path / "checkpoint", shape, seed)
    given = {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"}
    stage = load_tokens(Settings({}, given, "cosyvoice3"))
    network = random_tokenizer(ENCODERS[shape], seed)
    seen = []
    for samples in lengths:
        waveform = speech_like(samples, 16000)
        ours = torch.from_numpy(stage.encode(waveform.numpy(), None)["speech_tokens"].astype(np.int64))
        expected = official_tokens(network, ENCODERS[shape], waveform).long()
        assert torch.equal(ours, expected), f"{samples} samples: {int((ours != expected).sum())} tokens differ"
        seen.append(ours)
    assert len(torch.cat(seen).unique()) > 20  # not one token again and again


def test_the_official_reader_finds_the_same_weights(tmp_path: Path) -> None:
    """The official reader of the released file, whose nodes it knows by name, reads ours as our reader does."""
    folder = make_voice_encoder(tmp_path / "checkpoint")
    file = folder / "speech_tokenizer_v3.onnx"
    ours = {s3tokenizer_name(name): tensor for name, tensor in load_network(file).state_dict().items()}
    expected = official_weights(file)
    assert ours.keys() == expected.keys() and len(ours) == 2 * 16 + 6
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())


def test_padding_changes_no_token() -> None:
    """The network's second input is the number of frames that count, as the released one's."""
    shape = replace(ENCODERS["tiny"], layers=3)
    network = random_tokenizer(shape, 5)
    frames = whisper_frames(speech_like(16000, 16000))[None]
    alone = network(frames, torch.tensor([frames.shape[2]], dtype=torch.int32))
    padded = network(F.pad(frames, (0, 37), value=3.0), torch.tensor([frames.shape[2]], dtype=torch.int32))
    assert torch.equal(alone, padded[:, : alone.shape[1]])


@pytest.mark.parametrize("samples", LENGTHS)
def test_the_frames_of_tokenizer_and_speaker_encoder(samples: int) -> None:
    waveform = speech_like(samples, 16000)
    for ours, expected in (
        (whisper_frames(waveform), official_tokenizer_frames(waveform)),
        (features.speaker_frames(waveform), official_speaker_frames(waveform)),
    ):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("samples", [2400, 24000, 24479, 96240, 720000])
def test_the_frames_of_the_flow(samples: int) -> None:
    """As the official configuration asks Matcha-TTS for them: its function is HiFi-GAN's, around librosa's filters."""
    waveform = speech_like(samples, 24000)
    filters = torch.from_numpy(librosa.filters.mel(sr=24000, n_fft=1920, n_mels=80, fmin=0, fmax=None))
    padded = F.pad(waveform[None], (720, 720), mode="reflect")
    window = torch.hann_window(1920)
    spectrum = torch.stft(padded, 1920, hop_length=480, window=window, center=False, return_complex=True)[0]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    expected = torch.log(torch.clamp(filters @ magnitude, min=1e-5)).T
    ours = features.reference_frames(waveform)
    assert ours.shape == expected.shape == (samples // 480, 80)
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)
