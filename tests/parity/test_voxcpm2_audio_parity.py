"""VoxCPM2's AudioVAE against voxcpm 2.0.3: random weights, fp32."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.families.in_torch import InTorch
from tests.support.families.speech_like import rms, speech_like
from tests.support.families.voxcpm2_audio import AUDIO_VAE_SHAPES, load_audio_vae, make_audio_vae_folder
from tests.support.oracles.voxcpm_audio import official_audio_vae, official_frames, official_waveform
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.native_audio_decoder import NativeAudioDecoder
from voice_clone.families.voxcpm2.networks.native_audio_encoder import NativeAudioEncoder

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

SEEDS = (0, 1, 2)
RATE = 16000
LENGTHS = (100, 2560, 2561, 8 * 2560, 8 * 2560 + 1, 3 * RATE, 7 * RATE + 7)  # samples
TOLERANCE = 1e-4  # of the spread of latents, of the RMS of waveforms
STREAMED = 1e-12  # in float64, where rounding hides nothing
CUTS = ([1] * 40, [1, 2, 4, 8, 16, 9], [7, 33])  # of 40 frames

VARIANTS = [(shape, seed) for shape in AUDIO_VAE_SHAPES for seed in SEEDS]


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.long if kind[1] else []) for kind in VARIANTS],
    ids=[f"{shape}-{seed}" for shape, seed in VARIANTS],
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AudioVAECheckpoint:
    shape, seed = request.param
    return make_audio_vae_folder(tmp_path_factory.mktemp("voxcpm2") / "checkpoint", shape, seed)


def some_frames(count: int) -> Tensor:
    """Frames [count, 256] of about the spread of an encoder's."""
    return torch.randn(count, 256, generator=torch.Generator().manual_seed(3))


def in_chunks(decoder: AudioDecoder | InTorch, frames: Tensor, sizes: list[int]) -> Tensor:
    state = decoder.new_state(1)
    return torch.cat([decoder.decode_chunk(part, state)[0] for part in torch.split(frames.T[None], sizes, dim=2)])


def error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max()) / rms(expected)


@pytest.mark.parametrize("left", [False, True])
def test_encoder_makes_the_same_latents(checkpoint: AudioVAECheckpoint, left: bool) -> None:
    encoder, _ = load_audio_vae(checkpoint)
    official = official_audio_vae(checkpoint)
    expected = {samples: official_frames(official, speech_like(samples, RATE), left) for samples in LENGTHS}
    for native in (False, True):
        network = InTorch(NativeAudioEncoder(lambda: encoder)) if native else encoder
        for samples, latents in expected.items():
            missing = -samples % 2560
            clip = torch.nn.functional.pad(speech_like(samples, RATE), (missing, 0) if left else (0, missing))
            frames = network.encode(clip)
            assert frames.shape == latents.shape == (math.ceil(samples / 2560), 256)
            assert float(latents.std()) > 0.1
            assert error(frames, latents) < TOLERANCE, f"{samples} samples, native {native}"


def test_decoder_makes_the_same_waveform(checkpoint: AudioVAECheckpoint) -> None:
    _, decoder = load_audio_vae(checkpoint)
    frames = some_frames(40)
    expected = official_waveform(official_audio_vae(checkpoint), frames)
    assert 0.02 < rms(expected) < 0.7 and float(expected.abs().max()) < 0.999
    whole = decoder(frames.T[None])[0]
    assert whole.shape == (40 * 7680,)
    assert error(whole, expected) < TOLERANCE
    exact = copy.deepcopy(decoder).double()
    whole = exact(frames.double().T[None])[0]
    for sizes in CUTS:
        assert error(in_chunks(decoder, frames, sizes), expected) < TOLERANCE
        assert error(in_chunks(exact, frames.double(), sizes), whole) < STREAMED
    native = InTorch(NativeAudioDecoder(lambda: decoder))
    at_once = in_chunks(native, frames, [40])
    assert error(at_once, expected) < TOLERANCE
    for sizes in CUTS:
        assert torch.equal(in_chunks(native, frames, sizes), at_once)


@pytest.mark.long
def test_released_widths(tmp_path: Path) -> None:
    """Latents of a clip of two seconds, and the waveform of one."""
    checkpoint = make_audio_vae_folder(tmp_path / "checkpoint", "2b")
    encoder, decoder = load_audio_vae(checkpoint)
    official = official_audio_vae(checkpoint)
    clip, frames = speech_like(13 * 2560, RATE), some_frames(6)
    latents = official_frames(official, clip)
    assert error(encoder.encode(clip), latents) < TOLERANCE
    assert error(InTorch(NativeAudioEncoder(lambda: encoder)).encode(clip), latents) < TOLERANCE
    expected = official_waveform(official, frames)
    assert 0.02 < rms(expected) < 0.7 and float(expected.abs().max()) < 0.999
    assert error(in_chunks(decoder, frames, [1, 2, 3]), expected) < TOLERANCE
    native = InTorch(NativeAudioDecoder(lambda: decoder))
    assert error(in_chunks(native, frames, [1, 2, 3]), expected) < TOLERANCE
