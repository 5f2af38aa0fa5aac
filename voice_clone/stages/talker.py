"""The talker stage that is alike for families whose frames are made one after the other: the prompt to frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.generator import load_generator
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.checkpoint_folder import check_converted
from voice_clone.family import Family
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network, name_in_file
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan, granted_frames

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.checkpoint import CheckpointFiles

C = TypeVar("C")
T = TypeVar("T")
P = TypeVar("P")
S = TypeVar("S", bound="PlainTalker[Any, Any, Any]")


class PlainTalker(Generic[C, T, P]):
    """A `voice_clone.stages.protocols.TalkerStage` that computes nothing ahead of a voice.

    C is a checkpoint's configuration, T its tokenizer, P a prompt. A family sets the class's attributes and writes
    `read` and `example`; it overrides what differs.

    Attributes:
        prompt: a dataclass of tensors that the card names in `prompt`.
        sampling: a dataclass of knobs and options: how frames are drawn.
        talker: the network, of a configuration.
        native_talker: makes the talker of a CPU, given configuration, tokenizer and `NativeParts`; its network has a
            method `talker` that makes it of torch's.
        native_code: where there is none, replaces parts of the network on a CPU; None: it computes in torch there, too.
        places: where its weights are in the first file of the card.
        rate: frames a second.
        known_modes: of voices whose prompts a start prepares.
        source: runs the talker.
    """

    card: ClassVar[Family]
    prompt: ClassVar[Any]
    sampling: ClassVar[Any] = OneSampling
    talker: ClassVar[Any]
    native_talker: ClassVar[Callable[..., Any] | None] = None
    native_code: ClassVar[Callable[..., Any] | None] = None
    places: ClassVar[Sequence[TalkerPart]]
    rate: ClassVar[float]
    known_modes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, source: Any, config: C, tokenizer: T) -> None:
        self.source, self.config, self.tokenizer = source, config, tokenizer
        self.chunk_frames = self.card.chunk_frames or (1,)  # where each stream has its own
        self.frame_seconds = 1 / self.frame_rate(config)

    @staticmethod
    @abstractmethod
    def read(folder: Path, /) -> tuple[Any, Any]:
        """Configuration and tokenizer of the checkpoint in `folder`."""

    @classmethod
    def frame_rate(cls, config: Any) -> float:
        """`rate`, if it depends on the checkpoint."""
        return cls.rate

    @classmethod
    def network(cls, config: Any, tokenizer: Any) -> Any:
        """The network, without weights."""
        return cls.talker(config)

    @staticmethod
    def files(folder: Path) -> CheckpointFiles:
        from voice_clone.checkpoint import CheckpointFiles

        return CheckpointFiles(folder)

    @classmethod
    def load(cls: type[S], given: Settings) -> S:
        settings = TalkerSettings.of(given)
        config, tokenizer = cls.read(settings.checkpoint_dir)
        network = cls.fill_network(settings, config, tokenizer)
        return cls(cls.load_source(settings, network, cls.frame_rate(config)), config, tokenizer)

    @classmethod
    def load_source(cls, settings: TalkerSettings, network: Any, frame_rate: float) -> Any:
        """What runs the network, with the memory of all streams."""
        return load_generator(settings, network, frame_rate, cls.card.prefix_bytes)

    @classmethod
    def load_network(cls, given: Settings) -> Any:
        """The talker alone."""
        settings = TalkerSettings.of(given)
        return cls.fill_network(settings, *cls.read(settings.checkpoint_dir))

    @classmethod
    def load_torch_network(cls, given: Settings) -> Any:
        """The talker alone, in torch on a CPU, too."""
        settings = TalkerSettings.of(given)
        return cls.torch_network(settings, *cls.read(settings.checkpoint_dir))

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: Any, tokenizer: Any) -> Any:
        """The talker with its weights, in native code on a CPU.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`, or the file is not converted yet.
        """
        folder, weights = settings.checkpoint_dir, cls.card.weights[0]
        if weights.pickles:
            check_converted(folder, weights.name, weights.pickles)
        if cls.native_talker is None or compute.device(settings) != "cpu":
            return cls.torch_network(settings, config, tokenizer)
        checkpoint = cls.files(folder)
        precision, read = compute.precision(settings), checkpoint.reader(weights.name)

        def read_ours(name: str, shape: tuple[int, ...]) -> Numbers:
            return read(name_in_file(cls.places, name), shape)

        name, identity = f"{cls.card.name} talker {precision}", checkpoint.identity(weights.name)
        packed = compute.packed_file(settings, name, identity, config, any_size=True)
        native = NativeParts(precision, read_ours, packed)
        talker = cls.native_talker(config, tokenizer, native)
        packed.keep()
        return talker

    @classmethod
    def torch_network(cls, settings: TalkerSettings, config: Any, tokenizer: Any) -> Any:
        """The talker with its weights, in torch; with `native_code` on a CPU."""
        network = load_talker_network(
            settings,
            empty(lambda: cls.network(config, tokenizer)),
            cls.files(settings.checkpoint_dir),
            cls.card.weights[0].name,
            cls.places,
            family=cls.card.name,
            sizes=config,
            use_native_code=cls.native_code,
        )
        return network.talker() if cls.native_talker else network

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[P]]:
        request = self.request(tensors, knobs, options)
        return StreamPlan(request, self.context(request.prompt))

    def request(self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> TalkerRequest[P]:
        """The source's request, checked."""
        check_plan(self.card, tensors, knobs, options)
        prompt = self.read_prompt(tensors)
        sampling = self.sampling_of(knobs, options)
        self.source.talker.check(prompt)
        assert self.card.budget is not None
        room = self.source.max_length - self.source.talker.prompt_length(prompt)
        limit = granted_frames(self.card.budget, self.tokens(prompt, tensors), knobs.get("max_frames"), room)
        return TalkerRequest(prompt, sampling, *limit)

    def read_prompt(self, tensors: Arrays) -> P:
        """The prompt in the tensors of the prompt stage."""
        names = self.prompt.__dataclass_fields__
        prompt: P = self.prompt(**{name: tensors[name] for name in names})
        return prompt

    def tokens(self, prompt: P, tensors: Arrays) -> int:
        """Those of the text that is spoken, for its budget of frames."""
        around: int = getattr(self.tokenizer, "around_text", 0)
        return len(prompt.text_ids) - around  # type: ignore[attr-defined]

    def sampling_of(self, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """How frames are drawn: what the caller gave, over the card's defaults."""
        known = self.sampling.__dataclass_fields__
        defaults = {"seed": 0, **self.card.knobs, **{each.name: each.default for each in self.card.options}}
        given = {**defaults, **knobs, **options}
        return self.sampling(**{name: given[name] for name in known if name in given})

    def context(self, prompt: P) -> NDArray[Any]:
        """What the decoder hears before the stream, frames [n, width]."""
        return np.zeros((0, self.source.payload.width), self.card.frame.numbers)

    @property
    def voice_width(self) -> int:
        """Numbers in a row of an artifact, if that is not a frame."""
        width: int = self.source.payload.width
        return width

    @abstractmethod
    def example(self, reference_frames: int, max_frames: int) -> Any:
        """A request for the warm-up."""

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, P]]:
        """None: nothing is computed ahead of a voice."""
        return iter(())


class CardTalker(PlainTalker[C, T, P]):
    """A `PlainTalker` that prepares the prompts of stored voices. A family writes `prompt_of` in place of `example`."""

    @abstractmethod
    def prompt_of(self, transcript: str, artifacts: Artifacts) -> P:
        """A prompt with some text in a voice."""

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[P]:
        def prompt(frames: int) -> P:
            artifacts = {each.name: each.zeros(frames, self.voice_width) for each in self.card.artifacts}
            return self.prompt_of("a", artifacts)

        room = self.source.max_length - max_frames - self.source.talker.prompt_length(prompt(1))
        return TalkerRequest(prompt(max(1, min(reference_frames, 1 + room))), self.sampling_of({}, {}), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, P]]:
        if not self.card.prefix_bytes:  # nothing is computed ahead of a voice
            return
        names = [each.name for each in self.card.artifacts]
        for mode in self.known_modes or (next(iter(self.card.modes)),):
            yield from known_prompts(voices, ArtifactId(self.card.name, mode), names, self.prompt_of)
