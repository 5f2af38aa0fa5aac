"""Codes without a network: what the codec's encoder learns to compute, and all else is trained on from the start.

Code 0 is the nearest of 256 places in a space that separates phones (linear discriminant analysis), codes 1..15 a
residual quantisation of the principal components of the frame's features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from tools.demo_voice.files import save_arrays
from tools.demo_voice.qwen3_tts.features import (
    ENVELOPE,
    FRAME,
    HALVES,
    Features,
    frame_features,
    without_speaker,
)
from tools.demo_voice.speakers import Speaker
from tools.demo_voice.synthesis import SAMPLE_RATE, Utterance

BOOKS = 16
CODES = 256  # of a book
COMPONENTS = 64
PHONE_COMPONENTS = 24
_NATIVE_PITCH = 103.0  # of the voice whose pitch cannot be set


@dataclass(frozen=True, eq=False)
class Analysis:
    """The fitted spaces and codebooks.

    Attributes:
        mean, components: cepstra, pitch and voicing -> principal components; [164], [164, 64].
        phone_mean, phone_components: spectra without the speaker -> phone space; [320], [320, 24].
        phone_book: [256, 24].
        books: [15, 256, 64].
    """

    mean: Tensor
    components: Tensor
    phone_mean: Tensor
    phone_components: Tensor
    phone_book: Tensor
    books: Tensor

    def vectors(self, features: Features) -> tuple[Tensor, Tensor]:
        """Features of a clip -> phone vectors [frames, 24], principal components [frames, 64]."""
        phone = (without_speaker(features.spectra) - self.phone_mean) @ self.phone_components
        return phone, (_sound(features) - self.mean) @ self.components

    def codes(self, phone: Tensor, residual: Tensor) -> Tensor:
        """Phone vectors [frames, 24] and principal components [frames, 64] -> int64 [frames, 16]."""
        found = [_nearest(phone, self.phone_book)]
        for book in self.books:
            found.append(_nearest(residual, book))
            residual = residual - book[found[-1]]
        return torch.stack(found, dim=1)

    def save(self, path: Path) -> None:
        """Write all tensors to an .npz file."""
        save_arrays(path, **{name: tensor.numpy() for name, tensor in vars(self).items()})

    @classmethod
    def load(cls, path: Path) -> Analysis:
        """What `save` wrote."""
        with np.load(path) as file:
            return cls(**{name: torch.from_numpy(file[name]) for name in file.files})


def pitch_of(speaker: Speaker, factor: float = 1.0) -> float:
    """The mean pitch in Hz of a speaker whose clip is played faster by `factor`."""
    return factor * (_NATIVE_PITCH * speaker.formants if speaker.pitch is None else speaker.pitch)


def phones_of_frames(utterance: Utterance, frames: int) -> NDArray[np.int64]:
    """The phone at the centre of each frame."""
    centres = (np.arange(frames) + 0.5) * FRAME / SAMPLE_RATE
    places = np.searchsorted(utterance.ends, centres).clip(max=len(utterance.phones) - 1)
    phones: NDArray[np.int64] = utterance.phones[places].astype(np.int64)
    return phones


def fit(spoken: list[tuple[Speaker, Utterance]], seed: int) -> tuple[Analysis, list[float]]:
    """Fit the analysis to utterances.

    Returns:
        The analysis, and the share of the components' power that each number of books leaves.
    """
    features = [frame_features(each.samples, pitch_of(speaker)) for speaker, each in spoken]
    plain = torch.cat([without_speaker(each.spectra) for each in features]).numpy()
    labels = [phones_of_frames(each, len(found.spectra)) for (_, each), found in zip(spoken, features, strict=True)]
    whole = torch.cat([_sound(each) for each in features]).numpy()
    mean, weights = whole.mean(axis=0), _weights(whole)
    pca = PCA(COMPONENTS, random_state=seed).fit(whole * weights)
    lda = LinearDiscriminantAnalysis(n_components=PHONE_COMPONENTS).fit(plain, np.concatenate(labels))
    phone_components = lda.scalings_[:, :PHONE_COMPONENTS].astype(np.float32)
    phone = (plain - lda.xbar_.astype(np.float32)) @ phone_components
    components = weights[:, None] * pca.components_.T
    residual = (whole - mean) @ components
    power = float(np.square(residual).mean())
    books, left = [], []
    for number in range(BOOKS - 1):
        book, chosen = _cluster(residual, seed + number)
        residual = residual - book[chosen]
        books.append(book)
        left.append(float(np.square(residual).mean()) / power)
    arrays = (mean, components, lda.xbar_, phone_components, _cluster(phone, seed)[0], np.stack(books))
    tensors = (torch.from_numpy(np.ascontiguousarray(each, np.float32)) for each in arrays)
    return Analysis(*tensors), left


def _sound(features: Features) -> Tensor:
    """What codes 1..15 hold: [frames, 164]."""
    return torch.cat([features.cepstra, features.pitch], dim=1)


def _weights(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each number in `_sound`: cepstra by the root of their standard deviation, so that the higher ones count."""
    others = 2 * HALVES  # pitch and voicing have their weights
    spread = sound[:, :-others].reshape(-1, ENVELOPE.coefficients).std(axis=0)
    weights = np.ones(sound.shape[1], np.float32)
    weights[:-others].reshape(-1, ENVELOPE.coefficients)[:] = np.sqrt(spread.mean() / spread)
    return weights


def _nearest(points: Tensor, book: Tensor) -> Tensor:
    """The places in `book` [256, D] that are nearest to `points` [N, D]: int64 [N]."""
    return (book.square().sum(dim=1) - 2 * points @ book.T).argmin(dim=1)


def _cluster(points: NDArray[np.float32], seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    found = KMeans(CODES, n_init=1, max_iter=25, random_state=seed).fit(points)
    return found.cluster_centers_.astype(np.float32), found.labels_.astype(np.int64)
