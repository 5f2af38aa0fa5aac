"""Asking a family's encoder: artifacts of a waveform, and what the encoder says of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.speakers.metrics import Metrics
from voice_clone.speakers.record import X_VECTOR, ArtifactId, ArtifactInfo

EMBEDDING = "speaker_embedding"  # the one artifact that a caller may bring along
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {"float8"} | {"bool"}


@dataclass(frozen=True, eq=False)
class Extraction:
    """What an encoder answers.

    Attributes:
        artifacts: named arrays; the cache never looks inside.
        fingerprint: of the encoder's weights and config; other weights, other fingerprint.
    """

    artifacts: Mapping[str, NDArray[Any]]
    fingerprint: str


class Encoder(Protocol):
    """The encoders of all families."""

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str) -> Extraction:
        """Artifacts of a waveform, float32 [samples], mono. Called from several threads at once.

        An empty waveform asks the encoder to describe itself: its fingerprint, and artifacts of its names, types and
        number of dimensions, with zeros where the size does not depend on the clip.

        Raises:
            Unsupported: no encoder of that model type is loaded.
            VoiceCloneError: any other failure.
        """
        ...


def pack_artifacts(artifacts: Mapping[str, NDArray[Any]]) -> bytes:
    """Artifacts as they travel: safetensors bytes; equal artifacts give equal bytes."""
    return save(dict(artifacts))


class Describer:
    """What each encoder says of itself, asked once and kept.

    A server may load another checkpoint under the same name: the next extraction then brings another fingerprint,
    which takes the place of the kept one.
    """

    def __init__(self, encoder: Encoder, metrics: Metrics) -> None:
        self._encoder = encoder
        self._metrics = metrics
        self._known: dict[ArtifactId, Extraction] = {}

    def known(self, artifact: ArtifactId) -> str | None:
        """The encoder's fingerprint if it is known already; asks nobody."""
        description = self._known.get(artifact)
        return None if description is None else description.fingerprint

    def describe(self, artifact: ArtifactId, anew: bool = False) -> Extraction:
        """The encoder's description, from memory if it was asked before; `anew` asks again."""
        description = None if anew else self._known.get(artifact)
        if description is None:
            description = self._encode(artifact, np.zeros(0, np.float32), 24_000)
            self._known[artifact] = description
        return description

    def extract(
        self, artifact: ArtifactId, waveform: NDArray[np.float32], sample_rate: int
    ) -> tuple[dict[str, NDArray[Any]], ArtifactInfo]:
        """Artifacts of a clip, counted and timed."""
        began = time.perf_counter()
        try:
            extraction = self._encode(artifact, waveform, sample_rate)
        except BaseException:
            self._metrics.count("extraction_failures")
            raise
        seconds = time.perf_counter() - began
        self._metrics.extracted(seconds)
        if self.known(artifact) != extraction.fingerprint:
            self._known.pop(artifact, None)
        return dict(extraction.artifacts), ArtifactInfo(extraction.fingerprint, round(1e3 * seconds, 3))

    def of_embedding(
        self, artifact: ArtifactId, embedding: NDArray[np.float32]
    ) -> tuple[dict[str, NDArray[Any]], ArtifactInfo]:
        """Artifacts of a ready speaker embedding, float32 [dimension]: those of the description, with it put in.

        Raises:
            Unsupported: the model type cannot work from a speaker embedding alone.
            InvalidArgument: it has not the encoder's dimension.
        """
        described = self.describe(artifact)
        slot = described.artifacts.get(EMBEDDING)
        others = [tensor for name, tensor in described.artifacts.items() if name != EMBEDDING]
        if artifact.mode != X_VECTOR or slot is None or slot.ndim != 1 or any(tensor.size for tensor in others):
            raise Unsupported(f"{artifact.model_type} in mode {artifact.mode} takes no speaker_embedding; send audio")
        if embedding.shape != slot.shape:
            raise InvalidArgument(
                f"speaker_embedding has {embedding.size} values; {artifact.model_type} needs {slot.size}"
            )
        artifacts = {**described.artifacts, EMBEDDING: embedding.astype(slot.dtype)}
        return artifacts, ArtifactInfo(described.fingerprint, 0.0)

    def matches(self, artifact: ArtifactId, artifacts: Mapping[str, NDArray[Any]]) -> bool:
        """Whether artifacts from elsewhere look like this encoder's: same names, types and numbers of dimensions."""
        described = self.describe(artifact).artifacts
        return _form(described) == _form(artifacts)

    def _encode(self, artifact: ArtifactId, waveform: NDArray[np.float32], sample_rate: int) -> Extraction:
        extraction = self._encoder.encode(artifact.model_type, waveform, sample_rate, artifact.mode)
        if not extraction.fingerprint or not extraction.artifacts:
            raise Internal(f"the voice encoder of {artifact.model_type} answered nothing to keep")
        tensors = {name: np.asarray(tensor, order="C") for name, tensor in extraction.artifacts.items()}
        for name, tensor in tensors.items():
            if tensor.dtype.name not in _DTYPES:
                raise Internal(f"the voice encoder of {artifact.model_type} answered {name} as {tensor.dtype}")
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise InvalidArgument(f"no voice could be made of this clip: {name} came out as NaN or infinity")
        return Extraction(tensors, extraction.fingerprint)


def _form(artifacts: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, int]]:
    return {name: (tensor.dtype.name, tensor.ndim) for name, tensor in artifacts.items()}
