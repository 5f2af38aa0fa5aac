"""The losses of the decoder's training tell what listeners hear from what they do not."""

from __future__ import annotations

import librosa
import numpy as np
import pytest
import torch
from torch import Tensor

from tools.demo_voice.qwen3_tts.cepstra import EMPHASIS, FLOOR, HOP
from tools.demo_voice.qwen3_tts.decoder_losses import (
    CHANGE,
    CONTRAST,
    MOTION,
    RECOGNISED,
    cepstra,
    cepstral_loss,
    mel_loss,
    spectral_loss,
    variance_loss,
    with_motion,
)

pytestmark = pytest.mark.thorough


def test_silence_is_not_compared_with_itself() -> None:
    """Relative to silence every difference is large: openings, which are silent, would outweigh all speech."""
    quiet = 1e-4 * torch.randn(2, 3840, generator=torch.Generator().manual_seed(0))
    of_silence, of_noise = (spectral_loss(each, quiet)[1] for each in (0 * quiet, 1000 * quiet))
    assert of_silence < 0.1 < of_noise


def test_mels_are_compared_where_the_words_are() -> None:
    """A tone of 500 Hz that is missing counts more than one of 9 kHz."""
    time = torch.arange(24000) / 24000
    low, high = (0.1 * torch.sin(2 * torch.pi * pitch * time)[None] for pitch in (500.0, 9000.0))
    both = low + high
    assert mel_loss(high, both) > 1.5 * mel_loss(low, both) > 0
    assert mel_loss(both, both) == 0


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_cepstra_are_those_of_librosa() -> None:
    wave = 0.1 * noise(2, 9600)
    flat = wave.numpy()
    sharp = flat - EMPHASIS * np.pad(flat, [(0, 0), (1, 0)])[:, :-1]
    spectrum = librosa.stft(sharp, n_fft=1024, hop_length=240, win_length=614, window="hamming", pad_mode="reflect")
    bank = librosa.filters.mel(sr=24000, n_fft=1024, n_mels=40, fmin=130, fmax=6800, htk=True, norm=None)
    theirs = librosa.feature.mfcc(S=np.log(bank @ np.abs(spectrum) ** 2 + FLOOR), n_mfcc=13)
    found, motion, change = cepstra(wave)
    torch.testing.assert_close(found, torch.from_numpy(theirs), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(motion, found[..., MOTION:] - found[..., :-MOTION])
    torch.testing.assert_close(change, motion[..., CHANGE:] - motion[..., :-CHANGE])


def test_causal_windows_are_the_centred_ones_half_a_window_later() -> None:
    wave = 0.1 * noise(9600)
    later = torch.nn.functional.pad(wave, (307, 0))[: len(wave)]
    causal, centred = RECOGNISED.causal(wave), RECOGNISED.centred(later)
    assert causal.shape == (13, len(wave) // HOP)
    torch.testing.assert_close(causal[:, 2:-2], centred[:, 3:-2], atol=1e-4, rtol=1e-4)


def test_causal_windows_do_not_see_what_comes() -> None:
    wave = 0.1 * noise(9600)
    cut = wave * (torch.arange(len(wave)) < 4800)
    assert torch.equal(RECOGNISED.causal(wave)[:, :20], RECOGNISED.causal(cut)[:, :20])


def test_what_glides_must_not_step() -> None:
    """Two envelopes are as far from a glide as each other; the one that steps is farther in its motion."""
    glide = torch.linspace(0, 1, 64).expand(1, 13, 64)
    beside = glide + 1 / 32
    steps = (glide * 8).floor() / 8
    spreads = (torch.ones(13, 1),) * 3

    def distance(envelope: Tensor) -> Tensor:
        mine, theirs = (with_motion(each) for each in (envelope, glide))
        return cepstral_loss(mine, theirs, spreads)

    assert distance(glide) == 0
    assert distance(steps) > distance(beside + 1 / 32) > distance(beside) > 0


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5])
def test_an_envelope_is_to_be_a_little_sharper_than_that_of_speech(factor: float) -> None:
    speech = 3 * noise(2, 13, 64)
    wanted = CONTRAST**0.5
    best, other = (variance_loss(with_motion(each * speech), with_motion(speech)) for each in (wanted, factor))
    assert best < 1e-3
    torch.testing.assert_close(
        other, torch.tensor(abs(np.log(factor / wanted)), dtype=torch.float32), rtol=0.05, atol=0
    )
