"""How far code2wav's sound is from the speech it is to be: spectra, mel spectra, cepstra and their variance.

The first two alone leave an envelope that is too flat: what the codes do not hold is averaged, formants lose their
contrast, and listeners lose words. So the cepstra's variance counts, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import librosa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tools.demo_voice.qwen3_tts.cepstra import Cepstrum, power
from tools.demo_voice.synthesis import SAMPLE_RATE

QUIET = 0.1  # mean magnitude; speech has about 1
RESOLUTIONS = ((2048, 480), (1024, 240), (512, 120), (256, 60))  # window and hop
MELS = ((2048, 512, 120), (1024, 256, 80), (512, 128, 40), (256, 64, 20))  # window, hop and bands
MEL_FLOOR = 3e-4  # added to each band before the logarithm: what is far quieter does not count
RECOGNISED = Cepstrum(bands=40, low=130.0, high=6800.0, coefficients=13)  # what speech recognisers hear
LOUD = 25.0  # of coefficient 0 below its largest: farther down is silence
MOTION, CHANGE = 4, 2  # windows between which a cepstrum's motion, and the change of its motion, is taken
# Of the variance in speech. Recognisers understand the decoder best with a little more than speech has, although its
# error grows: see the model card.
CONTRAST = 1.15**2
LEAST = 0.01  # variance

Cepstra = tuple[Tensor, Tensor, Tensor]


def spectral_loss(said: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
    """Mean difference of the logarithms, and relative difference, of magnitudes (Yamamoto et al. 2020). [B, T] each.

    What is quieter than `QUIET` counts as being as loud: relative to silence every difference is large.
    """
    logs: list[Tensor] = []
    shapes: list[Tensor] = []
    for mine, theirs in _magnitudes(said, audio):
        logs.append(F.l1_loss(mine.log(), theirs.log()))
        size = torch.linalg.vector_norm(theirs).clamp(min=QUIET * theirs.numel() ** 0.5)
        shapes.append(torch.linalg.vector_norm(theirs - mine) / size)
    return torch.stack(logs).mean(), torch.stack(shapes).mean()


def mel_loss(said: Tensor, audio: Tensor) -> Tensor:
    """Mean difference of the logarithms of mel spectra, at several resolutions (Kumar et al. 2023). [B, T] each."""
    found: list[Tensor] = []
    for size, hop, bands in MELS:
        bank = _mel_bank(size, bands).to(audio.device)
        mine, theirs = ((bank @ _spectrum(wave, size, hop, least=1e-7) + MEL_FLOOR).log() for wave in (said, audio))
        found.append(F.l1_loss(mine, theirs))
    return torch.stack(found).mean()


@cache
def _mel_bank(size: int, bands: int) -> Tensor:
    """From a spectrum of `size` samples to mel bands: [bands, size / 2 + 1]."""
    bank: NDArray[np.float32] = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=size, n_mels=bands, fmin=40, htk=True)
    return torch.from_numpy(bank)


def _magnitudes(*waves: Tensor) -> Iterable[list[Tensor]]:
    for size, hop in RESOLUTIONS:
        yield [_spectrum(wave, size, hop) for wave in waves]


def _spectrum(wave: Tensor, size: int, hop: int, least: float = 1e-5) -> Tensor:
    """Magnitudes [B, size / 2 + 1, windows]; `least` is added to the power, for finite gradients."""
    return (power(wave, size, hop, torch.hann_window(size, device=wave.device)) + least).sqrt()


def cepstra(wave: Tensor) -> Cepstra:
    """Cepstra [..., 13, windows] of [..., T], their motion and its change (Furui 1986)."""
    return with_motion(RECOGNISED.centred(wave))


def with_motion(found: Tensor) -> Cepstra:
    """Cepstra [..., windows], their motion and its change."""
    motion = found[..., MOTION:] - found[..., :-MOTION]
    return found, motion, motion[..., CHANGE:] - motion[..., :-CHANGE]


def cepstral_loss(mine: Cepstra, theirs: Cepstra, spreads: Sequence[Tensor]) -> Tensor:
    """Mean difference of the cepstra, their motion and its change, each in its standard deviations; their sum."""
    parts = zip(mine, theirs, spreads, strict=True)
    return torch.stack([((a - b) / spread).abs().mean() for a, b, spread in parts]).sum()


def variance_loss(mine: Cepstra, theirs: Cepstra) -> Tensor:
    """How far the standard deviations of cepstra and of their motion are from those of speech, as logarithms.

    Each excerpt's own, over time, without coefficient 0 (Toda and Tokuda 2007 call it the global variance).
    """
    found: list[Tensor] = []
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        my, wanted = (each.var(dim=-1)[:, 1:] for each in (a, b))
        found.append(((my + LEAST).log() - (CONTRAST * wanted + LEAST).log()).abs().mean() / 2)
    return torch.stack(found).mean()
