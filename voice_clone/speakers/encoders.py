"""Calls the families' encoders: for artifacts of a waveform, and for descriptions of the encoders themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from voice_clone.audio import Clip, ClipLimits, decode
from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.speakers.flight import NO_OWNER, Flights
from voice_clone.speakers.metrics import Metrics
from voice_clone.speakers.modes import NATURAL, Modes, check_modes, mode_of_embedding
from voice_clone.speakers.record import EMBEDDING, ArtifactId, ArtifactInfo
from voice_clone.speakers.store import Made
from voice_clone.speakers.takes import average, weight

log = logging.getLogger(__name__)
_AVERAGED = (EMBEDDING, "speaker")  # artifacts that are float [dimension]: one of several recordings is their average
_EMPTY = np.zeros(0, np.float32)
_ANY_RATE = 16_000  # Hz of the empty waveform
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {"float8"} | {"bool"}


@dataclass(frozen=True, eq=False)
class Extraction:
    """What an encoder answers.

    Attributes:
        artifacts: named arrays; the cache never looks inside.
        fingerprint: of the encoder's weights and config; with other weights it is another one.
        modes: {mode: [needs]}, best mode first (see `modes`); None if the encoder declares none.
        limits: {artifact: {"below": its values lie in 0..below - 1, "rows": [least, most] of its first dimension}},
            each of them null or absent where there is none; of the mode that was asked for.
        presets: the names of voices that the checkpoint brings.
    """

    artifacts: Mapping[str, NDArray[Any]]
    fingerprint: str
    modes: Any = None
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    presets: tuple[str, ...] = ()


class Encoder(Protocol):
    """The encoders of all families."""

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        """Return artifacts of a waveform, float32 [samples], mono. Several threads may call this at once.

        An empty waveform asks the encoder to describe itself: its fingerprint, its modes, and artifacts of the names,
        types and numbers of dimensions of that mode, with zeros where the size does not depend on the clip. Without a
        mode, only its modes count.

        Raises:
            Unsupported: no encoder of that model type is loaded.
            VoiceCloneError: any other failure.
        """
        ...


def pack_artifacts(artifacts: Mapping[str, NDArray[Any]]) -> bytes:
    """Artifacts as they travel: safetensors bytes; equal artifacts give equal bytes."""
    return save(dict(artifacts))


class Describer:
    """Asks the encoders for artifacts and descriptions; keeps the descriptions.

    A server may load another checkpoint under the same name. The next extraction then has another fingerprint, and
    the kept description is dropped.

    Args:
        encoder: the encoders of all families.
        metrics: count extractions.
        flights: run the questions, so that a caller can stop waiting for an answer.
        limits: of clips.
    """

    def __init__(self, encoder: Encoder, metrics: Metrics, flights: Flights[Any], limits: ClipLimits) -> None:
        self._encoder = encoder
        self._metrics = metrics
        self._flights = flights
        self._limits = limits
        self._descriptions: dict[tuple[str, str], Extraction] = {}  # by model type and mode
        self._modes: dict[str, Modes] = {}  # by model type
        self._presets: dict[str, tuple[str, ...]] = {}  # likewise
        self._asked: set[str] = set()  # model types

    def known_modes(self, model_type: str) -> Modes | None:
        """Return the family's modes if they are known already; ask no encoder."""
        return self._modes.get(model_type)

    def modes(self, model_type: str, until: float, again: bool = False) -> Modes:
        """Return the family's modes. The encoder is asked once, and once more if `again`.

        Args:
            until: when to stop waiting, on the monotonic clock.

        Raises:
            DeadlineExceeded, and what the encoder raises; but where there is no encoder, NATURAL is the answer.
        """
        known = self._modes.get(model_type)
        if known is not None and not again:
            return known
        work = self.ask_modes if again else self._modes_once
        modes: Modes = self._ask(("modes", model_type, again), partial(work, model_type), until)
        return modes

    def presets(self, model_type: str, until: float) -> tuple[str, ...]:
        """The names of voices that the family's checkpoint brings. Args, Raises: as `modes`."""
        self.modes(model_type, until)
        return self._presets.get(model_type, ())

    def known_presets(self, model_type: str) -> tuple[str, ...]:
        """Return the presets if they are known already; ask no encoder."""
        return self._presets.get(model_type, ())

    def ask_modes(self, model_type: str) -> Modes:
        """Ask for the modes on this thread, even if they are known."""
        first = model_type not in self._asked
        self._asked.add(model_type)
        try:
            description = self._encoder.encode(model_type, _EMPTY, _ANY_RATE, None)
        except (Unsupported, InvalidArgument, Internal) as error:  # the encoder is not loaded, or requires a mode
            if first and isinstance(error, Unsupported):
                self._asked.discard(model_type)  # callers may name any family, and nothing of it may stay in memory
            log.debug("the voice encoder of %s does not say its modes: %s", model_type, error)
            return NATURAL
        return self._keep_modes(model_type, description)

    def ask_ahead(self, model_types: Iterable[str]) -> None:
        """Ask for the modes of these families in the background, once; else questions to a slow encoder pile up."""
        for model_type in model_types:
            if model_type not in self._modes and model_type not in self._asked:
                self._asked.add(model_type)
                self._ask_in_background(model_type)

    def _modes_once(self, model_type: str) -> Modes:
        """Return the modes; ask for them unless another thread has asked since the caller looked."""
        return self._modes.get(model_type) or self.ask_modes(model_type)

    def known(self, artifact: ArtifactId) -> str | None:
        """Return the encoder's fingerprint if it is known already; ask no encoder."""
        description = self._descriptions.get(artifact[:2])
        return None if description is None else description.fingerprint

    def fingerprint(self, artifact: ArtifactId, until: float, again: bool = False) -> str:
        """Return the encoder's fingerprint, which is asked for like the modes. Args, Raises: as `modes`."""
        known = self.known(artifact)
        if known is not None and not again:
            return known
        description: Extraction = self._ask(
            ("describe", artifact[:2], again), partial(self.describe, artifact, again), until
        )
        return description.fingerprint

    def describe(self, artifact: ArtifactId, again: bool = False) -> Extraction:
        """Return the encoder's description, from memory if it was asked before; `again` asks once more."""
        description = None if again else self._descriptions.get(artifact[:2])
        if description is None:
            description = self._encode(artifact, _EMPTY, _ANY_RATE)
            self._keep_modes(artifact.model_type, description)
            self._descriptions[artifact[:2]] = description
        return description

    def extract(self, artifact: ArtifactId, clip: Clip) -> Made:
        """Return the artifacts of a clip; the metrics count the extraction and its time.

        If the clip has takes, a speaker embedding among the artifacts is the average of all recordings.
        """
        began = time.perf_counter()
        try:
            extraction = self._encode(artifact, clip.waveform, clip.sample_rate)
            tensors, cosines = self._averaged(artifact, clip, extraction.artifacts)
        except BaseException:
            self._metrics.count("extraction_failures")
            raise
        seconds = time.perf_counter() - began
        self._metrics.extracted(seconds)
        if self.known(artifact) not in (None, extraction.fingerprint):
            self._descriptions.pop(artifact[:2], None)
            self._modes.pop(artifact.model_type, None)
        return Made(tensors, ArtifactInfo(extraction.fingerprint, round(1e3 * seconds, 3), time.time(), cosines))

    def _averaged(
        self, artifact: ArtifactId, clip: Clip, made: Mapping[str, NDArray[Any]]
    ) -> tuple[Mapping[str, NDArray[Any]], tuple[float, ...]]:
        """Artifacts of a clip with the average over its takes in them, and the cosines of `takes.average`."""
        name = next((name for name in _AVERAGED if name in made and made[name].size), None)
        if name is None or not clip.takes:
            return made, ()
        try:  # in a mode without reference codes, which are of the clip alone
            cheapest = mode_of_embedding(self._modes_once(artifact.model_type), artifact.model_type)
        except Unsupported:
            cheapest = artifact
        embeddings, weights = [made[name]], [weight(clip)]
        for file in clip.takes:  # one after the other: decoded, all of them would need much memory
            take = decode(file, self._limits)
            embeddings.append(self._encode(cheapest, take.waveform, take.sample_rate).artifacts[name])
            weights.append(weight(take))
        mean, cosines = average(embeddings, weights)
        return {**made, name: mean.astype(made[name].dtype)}, cosines

    def of_embedding(
        self, artifact: ArtifactId, embedding: NDArray[np.float32], until: float
    ) -> tuple[dict[str, NDArray[Any]], ArtifactInfo]:
        """Return the artifacts of a ready speaker embedding, float32 [dimension]: the description's, with it put in.

        Raises:
            Unsupported: the family cannot work from a speaker embedding alone.
            InvalidArgument: its dimension is not the encoder's.
            DeadlineExceeded, and what the encoder raises.
        """
        self.fingerprint(artifact, until)
        described = self.describe(artifact)
        slot = described.artifacts.get(EMBEDDING)
        others = [tensor for name, tensor in described.artifacts.items() if name != EMBEDDING]
        if slot is None or slot.ndim != 1 or any(tensor.size for tensor in others):
            raise Unsupported(
                f"{artifact.model_type} in mode {artifact.mode} takes no `speaker_embedding`; send `audio`"
            )
        if embedding.shape != slot.shape:
            raise InvalidArgument(
                f"`speaker_embedding` has {embedding.size} values; {artifact.model_type} needs {slot.size}"
            )
        artifacts = {**described.artifacts, EMBEDDING: embedding.astype(slot.dtype)}
        return artifacts, ArtifactInfo(described.fingerprint, 0.0, time.time())

    def matches(self, artifact: ArtifactId, artifacts: Mapping[str, NDArray[Any]]) -> bool:
        """Whether artifacts from elsewhere could be this encoder's: names, types, sizes, ranges, all finite."""
        described = self.describe(artifact)
        if described.artifacts.keys() != artifacts.keys():
            return False
        return all(
            _same_form(described.artifacts[name], tensor) and fault(tensor, described.limits.get(name, {})) is None
            for name, tensor in artifacts.items()
        )

    def _ask_in_background(self, model_type: str) -> None:
        key = ("modes", model_type, False)  # that of `modes`
        self._flights.start(NO_OWNER, key, lambda _: self._modes_once(model_type), background=True)

    def _ask(self, key: Hashable, work: Callable[[], Any], until: float) -> Any:
        return self._flights.ask(key, lambda _: work(), until - time.monotonic())

    def _keep_modes(self, model_type: str, description: Extraction) -> Modes:
        modes = NATURAL if description.modes is None else check_modes(model_type, description.modes)
        self._presets[model_type] = description.presets
        self._modes[model_type] = modes
        return modes

    def _encode(self, artifact: ArtifactId, waveform: NDArray[np.float32], sample_rate: int) -> Extraction:
        extraction = self._encoder.encode(artifact.model_type, waveform, sample_rate, artifact.mode)
        if not extraction.fingerprint or not extraction.artifacts:
            raise Internal(f"the voice encoder of {artifact.model_type} answered nothing to keep")
        tensors = {name: np.asarray(tensor, order="C") for name, tensor in extraction.artifacts.items()}
        for name, tensor in tensors.items():
            if tensor.dtype.name not in _DTYPES:
                raise Internal(f"the voice encoder of {artifact.model_type} answered {name} as {tensor.dtype}")
            wrong = fault(tensor, extraction.limits.get(name, {}) if waveform.size else {})
            if wrong is not None:
                raise InvalidArgument(f"no voice could be made of this clip: {name} {wrong}")
        return replace(extraction, artifacts=tensors)


def fault(tensor: NDArray[Any], limit: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the values of an artifact or their number, if anything is; `limit` is the encoder's."""
    if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
        return "came out as NaN or infinity"
    rows, below = limit.get("rows"), limit.get("below")
    if rows is not None and not (tensor.ndim and rows[0] <= len(tensor) <= rows[1]):
        return f"has {len(tensor) if tensor.ndim else 0} rows; this server takes {rows[0]} to {rows[1]}"
    if below is not None and tensor.size and not (tensor.min() >= 0 and tensor.max() < below):
        return f"has values outside of 0..{below - 1}"
    return None


def _same_form(described: NDArray[Any], tensor: NDArray[Any]) -> bool:
    """Whether type and sizes are those that the encoder described; a described size of 0 stands for any."""
    if described.dtype != tensor.dtype or described.ndim != tensor.ndim:
        return False
    return all(size in (0, other) for size, other in zip(described.shape, tensor.shape, strict=True))
