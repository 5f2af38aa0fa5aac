"""Marks streams as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.marking.mark_filter import minimum_phase, pattern
from voice_clone.marking.network import PerthNetwork
from voice_clone.marking.weights import load_weights

Samples = NDArray[np.float32]


@dataclass
class FilteredStream:
    """The last samples of a stream, before they were marked; float32."""

    history: Tensor


class PerthMarker:
    """Marks with Perth's mark; see `mark_filter`. It gives as many samples as it takes, so it waits for none.

    Args:
        sample_rate: Hz.
        device: where it computes.

    Raises:
        Unsupported: the package with the weights is missing.
        InvalidArgument: speech at this rate cannot be marked.
    """

    def __init__(self, sample_rate: int, device: str = "cpu") -> None:
        self._device = torch.device(device)
        taps = minimum_phase(pattern(PerthNetwork(load_weights())), sample_rate)
        self._taps = torch.from_numpy(taps).to(self._device)
        self._spectra: dict[int, Tensor] = {}  # of the taps, by the length of the transform

    @property
    def name(self) -> str:
        """Of the mark, for whoever looks for it."""
        return "perth"

    def open(self) -> FilteredStream:
        return FilteredStream(torch.zeros(len(self._taps) - 1, device=self._device))

    @torch.inference_mode()
    def mark(self, streams: Sequence[FilteredStream], waveforms: Sequence[Samples]) -> list[Samples]:
        """The next samples [n] of different streams, any number of each, marked, in -1..1; moves their states on.

        The marked samples of a stream joined are, within rounding, those of all its samples marked at once. If this
        raises, no stream has moved on.
        """
        if not any(map(len, waveforms)):
            return list(waveforms)
        past = len(self._taps) - 1
        rows = torch.zeros(len(streams), past + max(map(len, waveforms)))
        for row, waveform in zip(rows, waveforms, strict=True):
            row[past : past + len(waveform)] = torch.from_numpy(waveform)
        rows = rows.to(self._device)
        rows[:, :past] = torch.stack([stream.history for stream in streams])
        size = 1 << (rows.shape[1] - 1).bit_length()  # what wraps around falls on the history
        spectra = torch.fft.rfft(rows, size) * self._spectrum(size)
        marked = torch.fft.irfft(spectra, size)[:, past : rows.shape[1]].clip(-1.0, 1.0).cpu().numpy()
        for stream, row, waveform in zip(streams, rows, waveforms, strict=True):
            stream.history = row[len(waveform) : len(waveform) + past].clone()
        return [row[: len(waveform)] for row, waveform in zip(marked, waveforms, strict=True)]

    def _spectrum(self, size: int) -> Tensor:
        if size not in self._spectra:
            self._spectra[size] = torch.fft.rfft(self._taps, size)
        return self._spectra[size]
