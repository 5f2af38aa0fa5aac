"""The encoder stage that is alike for families whose artifacts one network of torch makes: a clip to its artifacts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.family import Family
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.loading import empty, load_encoder_network
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip

C = TypeVar("C")
S = TypeVar("S", bound="CardEncoder[Any]")


class CardEncoder(Generic[C]):
    """A `voice_clone.stages.protocols.EncoderStage` of a checkpoint; C: its configuration.

    A family sets the class's attributes; it overrides what differs. Here its one network makes codes, which are the
    first artifact.

    Args:
        network: None: the checkpoint has none.
        max_frames: of a clip.

    Attributes:
        files: the checkpoint, a `CheckpointFiles` with a `config`.
        file, prefix: where the network's weights are, as of `CheckpointFiles.load`.
        native: the encoder of a CPU; it is made of a function that loads torch's network where its weights are not
            found packed, and of what finds them. None: torch computes there, too.
        more_rows: of the codes, besides those of the clip's frames.
    """

    card: ClassVar[Family]
    files: ClassVar[Any]
    file: ClassVar[str]
    prefix: ClassVar[str] = ""
    native: ClassVar[type[Any] | None] = None
    presets: tuple[str, ...] = ()
    more_rows: ClassVar[int] = 0

    def __init__(self, network: Any, config: C, fingerprint: str, max_frames: int) -> None:
        self.network, self.config, self.max_frames = network, config, max_frames
        self.fingerprints = {"fingerprint": fingerprint}
        self.modes: Mapping[str, tuple[str, ...] | str] = self.card.modes

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """As of `EncoderStage`."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers of a frame."""

    @staticmethod
    @abstractmethod
    def empty_network(checkpoint: Any) -> Any:
        """The network of a checkpoint, without weights."""

    @classmethod
    def load(cls: type[S], given: Settings, call: Call | None = None) -> S:
        settings = EncoderSettings.of(given)
        checkpoint = cls.files(settings.checkpoint_dir)
        config = checkpoint.config
        if lacking := cls.shortcoming(settings.checkpoint_dir):
            stage = cls(None, config, "none", settings.max_chunk_frames)
            stage.modes = dict.fromkeys(cls.card.modes, lacking)
            return stage

        @cache
        def load() -> tuple[Any, str]:
            """torch's network, and its fingerprint."""
            network = empty(lambda: cls.empty_network(checkpoint))
            sources = checkpoint.sources(network, cls.prefix)
            fingerprint = checkpoint.fingerprint(cls.identity(config), cls.file, "", sources)
            return load_encoder_network(settings, network, checkpoint, cls.file, cls.prefix), fingerprint

        if cls.native is None or compute.device(settings) != "cpu":
            network, fingerprint = load()
            return cls(network, config, fingerprint, settings.max_chunk_frames)
        name, identity = f"{cls.card.name} encoder", checkpoint.identity(cls.file)
        packed = compute.packed_file(settings, name, identity, config, any_size=True)
        [text] = packed.part("fingerprint")(lambda: [np.frombuffer(load()[1].encode(), np.uint8)])
        native = cls.native(lambda: load()[0], packed)
        packed.keep()
        stage = cls(native, config, text.tobytes().decode(), settings.max_chunk_frames)
        leave_threads_to_native_code()
        stage.encode(np.zeros(1, np.float32), None)  # compiles it where no earlier process has
        return stage

    @staticmethod
    def shortcoming(folder: Path, /) -> str:
        """Why a checkpoint has no voice encoder, in a sentence; empty: it has one."""
        return ""

    @classmethod
    def identity(cls, config: Any) -> dict[str, Any]:
        """What the fingerprint says beside the network's weights: all that changes what it computes. Fit for JSON."""
        return {"codec": cls.card.name}

    @property
    def code_limits(self) -> Sequence[int]:
        """Codes of each codebook lie below its limit."""
        limits: Sequence[int] = self.config.code_limits  # type: ignore[attr-defined]
        return limits

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """As of `EncoderStage`: codes of the largest codebook. The talker checks each codebook's own limit."""
        rows = 1 + self.more_rows, self.max_frames + self.more_rows
        return {self.card.artifacts[0].name: Limit(max(self.code_limits), rows)}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The artifacts of a clip. Without a network no clip comes, but on a GPU the warm-up's."""
        nothing = {each.name: each.zeros(0, self.width) for each in self.card.artifacts}
        return self.artifacts(waveform, mode) if waveform.size and self.network is not None else nothing

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        codes = self.frames(waveform).astype(self.card.frame.numbers)
        check_clip(len(codes) - self.more_rows, self.max_frames)
        return {self.card.artifacts[0].name: codes}

    def frames(self, waveform: NDArray[np.float32]) -> NDArray[Any]:
        """What the network makes of a clip."""
        frames: NDArray[Any]
        if self.native is not None and isinstance(self.network, self.native):
            frames = self.network.encode(waveform)
            return frames
        import torch

        frames = self.network.encode(torch.from_numpy(waveform)).cpu().numpy()
        return frames
