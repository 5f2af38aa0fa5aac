"""Several recordings of one speaker: the clip, which is the best of them, and its takes.

The files are stored one behind the other, first that of the clip. The speaker embedding is an average over all of them,
and everything else that encoders make is of the clip alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import Clip, ClipLimits, decode
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.clip_report import measure
from voice_clone.speakers.record import clip_digest
from voice_clone.speakers.take import Take

_LEAST_WEIGHT = 0.1  # seconds: a take in which no speech is found counts, but little


def split(audio: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The files that stand one behind the other, of these sizes in bytes; the first has what the others leave.

    Raises:
        InvalidArgument: they leave nothing.
    """
    ends = [len(audio) - sum(sizes[index:]) for index in range(len(sizes) + 1)]
    if ends[0] <= 0:
        raise InvalidArgument("the `audio` is shorter than the files that it should have")
    return [audio[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def decode_all(audio: bytes, takes: Sequence[Take], limits: ClipLimits) -> Clip:
    """The clip with its takes, as they are stored. Raises: as `decode`."""
    first, *others = split(audio, [take.file_size for take in takes])
    return replace(decode(first, limits), takes=tuple(others))


def take_of(clip: Clip, number: int) -> Take:
    """A recording as a take."""
    return Take(number, len(clip.encoded), round(clip.seconds, 6), measure(clip).speech_seconds, clip_digest(clip))


def weight(clip: Clip) -> float:
    """What a recording counts in the average: its seconds of speech."""
    return max(measure(clip).speech_seconds, _LEAST_WEIGHT)


def average(
    embeddings: Sequence[NDArray[np.float32]], weights: Sequence[float]
) -> tuple[NDArray[np.float32], tuple[float, ...]]:
    """The mean of speaker embeddings, in direction and in length, and the cosine of each to the mean of the others.

    The plain mean would be shorter than its parts, since they point in different directions.

    Args:
        embeddings: two or more, each float32 [dimension].
        weights: above 0.
    """
    vectors = np.asarray(embeddings, np.float64)
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    weighted = shares[:, None] * vectors
    total, lengths = weighted.sum(axis=0), np.linalg.norm(vectors, axis=1)
    norm = float(np.linalg.norm(total))
    mean = total * (float(shares @ lengths) / norm) if norm else total
    others = total - weighted
    products = lengths * np.linalg.norm(others, axis=1)
    cosines = np.divide((vectors * others).sum(axis=1), products, out=np.zeros(len(vectors)), where=products > 0)
    return mean.astype(np.float32), tuple(round(float(cosine), 4) for cosine in cosines.clip(-1, 1))


@contextmanager
def of_file(number: int, count: int) -> Iterator[None]:
    """Say which of several files an error is about."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"file {number} of {count}: {error}") from None
