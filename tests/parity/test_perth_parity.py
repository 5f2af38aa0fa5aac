"""Levels, gains and scores against the code of resemble-perth, and our mark heard by it.

The package needs `pkg_resources` and torchaudio, which the tests do without; nothing of either is called here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.audio import resample
from voice_clone.marking.detection import PerthDetector
from voice_clone.marking.marker import PerthMarker
from voice_clone.marking.network import BANDS, RATE, PerthNetwork, levels
from voice_clone.marking.weights import load_weights
from voice_clone_server.demo import CLIP

pytestmark = pytest.mark.thorough

THEIR_RATE = 32_000
FOLDER = "perth.perth_net.perth_net_implicit"


class Perth:
    """The package's own network and levels."""

    def __init__(self) -> None:
        config = import_module(f"{FOLDER}.config").default_hp
        self._config = config
        self._utils = import_module(f"{FOLDER}.utils")
        bands = import_module(f"{FOLDER}.model").compute_subband_freq(config)
        self.encoder = import_module(f"{FOLDER}.model.encoder").Encoder(config.hidden_size, bands)
        self.decoder = import_module(f"{FOLDER}.model.decoder").Decoder(config.hidden_size, bands)
        weights = load_weights()
        for part, network in (("encoder.", self.encoder), ("decoder.", self.decoder)):
            own = {name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)}
            network.load_state_dict(own)

    def levels(self, waveform: NDArray[np.float32], rate: int) -> Tensor:
        """[1, bands up to 16 kHz, frames]"""
        sound = torch.from_numpy(resample(waveform, rate, THEIR_RATE))
        size, hop = self._config.n_fft, self._config.hop_size
        spectrum = torch.stft(sound, size, hop, window=torch.hann_window(size), return_complex=True)
        found: Tensor = self._utils.cx_to_magphase(self._config, spectrum)[0]
        return found[None]


@pytest.fixture(scope="module")
def perth() -> Iterator[Perth]:
    def module(name: str, **given: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(given)
        return made

    stubs = {
        "pkg_resources": module("pkg_resources", resource_filename=lambda *_: ""),
        "torchaudio": module("torchaudio"),
        "torchaudio.transforms": module(
            "torchaudio.transforms", Spectrogram=None, InverseSpectrogram=None, TimeStretch=None
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in stubs.items():
            patch.setitem(sys.modules, name, stub)
        yield Perth()


@pytest.fixture(scope="module")
def speech() -> NDArray[np.float32]:
    samples: NDArray[np.float32] = soundfile.read(CLIP, dtype="float32")[0]
    return samples


@torch.inference_mode()
def test_levels_gains_and_score(perth: Perth, speech: NDArray[np.float32]) -> None:
    theirs = perth.levels(speech, 24_000)
    ours = levels(torch.from_numpy(resample(speech, 24_000, RATE)))
    frames = min(ours.shape[1], theirs.shape[2])
    loud = theirs[0].mean(0) > 0.4
    assert loud.sum() > 100
    apart = (ours[:, :frames] - theirs[0, :BANDS, :frames]).abs()[:, loud[:frames]]
    assert apart.mean() < 2e-4, "0.04 dB; what is apart is what the resamplers leave"
    network = PerthNetwork(load_weights())
    expected = perth.encoder.layers(theirs[:, :BANDS])[0] * 195
    torch.testing.assert_close(network.gains(theirs[0, :BANDS]), expected, atol=1e-3, rtol=0)
    assert abs(network.score(theirs[0, :BANDS]) - float(perth.decoder(theirs))) < 2e-3


@torch.inference_mode()
def test_each_finds_the_other_ones_mark(perth: Perth, speech: NDArray[np.float32]) -> None:
    marker = PerthMarker(24_000)
    ours = marker.mark([marker.open()], [speech])[0]
    assert float(perth.decoder(perth.levels(ours, 24_000))) > 0.95
    assert float(perth.decoder(perth.levels(speech, 24_000))) < 0.05
    sound = torch.from_numpy(resample(speech, 24_000, THEIR_RATE))
    window = torch.hann_window(2048)
    spectrum = torch.stft(sound, 2048, 320, window=window, return_complex=True)
    gains = perth.encoder.layers(perth.levels(speech, 24_000)[:, :BANDS])[0] * 195
    spectrum[:BANDS] *= 10 ** (gains / 20)
    theirs = torch.istft(spectrum, 2048, 320, window=window).numpy()
    assert PerthDetector().detect(theirs, THEIR_RATE).confidence > 0.95
