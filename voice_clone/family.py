"""The card of a model family: one declaration of what it takes, makes and can do. Needs no torch.

The models in model_repository/, the stages' checks and the documents are made from it. Each family has its card in
`voice_clone/families/<family>/family.py`; the code of the family stands beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # what starts a server reads the cards without numpy
    from numpy.typing import DTypeLike, NDArray

CLIP = -1
"""A size of an artifact that depends on the clip or on the checkpoint."""

_NUMBERS = {"INT16": "int16", "INT32": "int32", "UINT16": "uint16", "FP16": "float16", "FP32": "float32"}


class FrameForm(NamedTuple):
    """The frames that the talker makes and code2wav takes, as tensors [n, width].

    Attributes:
        dtype: Triton's, without `TYPE_`. FP32: latents; others: codes.
        kind: as people call such frames.
        voice: what code2wav needs of the voice besides the reference's frames.
    """

    dtype: Literal["INT32", "UINT16", "FP32"]
    kind: str = "codec frames"
    voice: tuple[str, ...] = ()

    @property
    def numbers(self) -> DTypeLike:
        """numpy's type of the numbers."""
        import numpy as np

        return np.dtype(_NUMBERS[self.dtype])


class FrameBudget(NamedTuple):
    """How many frames a family grants a text. A talker that misses its end then stops in reasonable time.

    Attributes:
        per_token: a text of n tokens rarely takes more than n times so many.
        least: even the shortest text may take so many.
        most: of any text.
        more: that any text may take besides.
    """

    per_token: int
    least: int = 1
    most: int = sys.maxsize
    more: int = 0


class Artifact(NamedTuple):
    """What a voice encoder makes of a clip, and what is kept of it.

    Attributes:
        shape: sizes; `CLIP` where they depend on the clip or on the checkpoint.
    """

    name: str
    dtype: Literal["INT16", "INT32", "UINT16", "FP16", "FP32"]
    shape: tuple[int, ...]
    meaning: str

    def zeros(self, rows: int, width: int) -> NDArray[Any]:
        """Of a clip of so many rows, where the checkpoint has them of so many numbers."""
        import numpy as np

        first, *others = (rows if self.shape[0] == CLIP else self.shape[0]), *self.shape[1:]
        return np.zeros((first, *(width if size == CLIP else size for size in others)), _NUMBERS[self.dtype])


class Option(NamedTuple):
    """A parameter that only this family has; callers give it in `options`.

    Attributes:
        least, most: of a number, both allowed.
        choices: of a text.
        words: whether a text must have a letter or digit.
        default: None: none, or the checkpoint's.
    """

    name: str
    type: type
    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    words: bool = False
    default: Any = None

    @property
    def takes(self) -> str:
        """What it may be, in words, and what it is where a caller gives none."""
        kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.type]
        if self.choices:
            kind = f"one of {', '.join(self.choices)}"
        elif self.least is not None and self.most is not None:
            kind += f" from {self.least:g} to {self.most:g}"
        return kind if self.default is None else f"{kind}; default: {self.default}"


class Weights(NamedTuple):
    """A file of weights in a checkpoint's folder, without its ending; it may be in shards.

    Attributes:
        pickles: the official file or folder that it is converted from, if the release has no safetensors.
        where: a field of the configuration; without a value there it is not needed.
    """

    name: str
    pickles: str = ""
    where: str = ""


class EncoderPart(NamedTuple):
    """A model that makes artifacts. The parts of a family with several are joined by an ensemble, in their order.

    Attributes:
        load: module and function of the family's package that load the stage.
        artifacts: names of those that it makes; none: the family makes nothing of a clip.
        settings: that it reads, besides `checkpoint_dir`.
        meaning: what it computes.
        in_torch: whether torch computes it, on a GPU where there is one.
        least_rate: Hz that a clip must be recorded at, if the family can do without the others.
    """

    artifacts: tuple[str, ...]
    meaning: str
    stage: str = "voice_encoder"
    load: str = "encoder.load_encoder"
    settings: tuple[str, ...] = ("device", "threads", "max_chunk_frames")
    in_torch: bool = True
    least_rate: int = 0


class Family(NamedTuple):
    """One family.

    Attributes:
        name: its models' names begin with it; artifacts are stored under it.
        title: as people call it.
        recognised_by: FILE, or FILE: KEY=VALUE of a JSON file, that only checkpoints of this family have.
        weights: all that a checkpoint must have.
        files: others that it must have; `A|B+C`: A, or B and C.
        without_sizes: tensors by which a release is known that has its sizes elsewhere: tools/complete_checkpoint.
        graphs: ONNX files that it must have.
        configurations: functions of the family's package, as MODULE.FUNCTION, that check its configurations; the first
            one returns the configuration of the talker.
        shortcoming: a function that takes a checkpoint's folder and says in a sentence what the checkpoint cannot do.
            The sentence is printed before a start; it is empty if nothing is missing.
        check_shared: a function that checks whether code2wav of one checkpoint serves another.
        chunk_frames: frames of a stream's chunks, the last repeats; empty: each stream has a schedule of its own.
        prompt: names of the tensors that the prompt stage makes for the talker.
        modes: ways to use a voice, the best first; what each needs besides audio.
        knobs: the defaults of those of `request_fields.KNOBS` that it has besides `seed` and `max_frames`, which all
            have; None: the checkpoint's.
        budget: of frames; None: the stage has its own.
        languages: that a request may name; None: the prompt stage knows them.
        embedding: whether a request may bring a speaker embedding in place of a voice.
        x_vector_only: whether a request may ask for the timbre of a voice alone.
        presets: whether a checkpoint brings voices of its own.
        instructions: the option that takes instructions on how to speak, if there is one.
        voiceless: whether it speaks without a voice, too.
        appends: whether text may follow while it is spoken.
        max_characters: of a piece of text that it speaks well at once; 0: of any that a speech is cut into.
        references: the artifact whose frames code2wav hears before a stream, if it hears any.
        autoregressive: whether frames are made one after the other, rather than all of an utterance at once.
        streams: what code2wav keeps of a stream: a state of one size, pages of keys and values, or its own.
        cuda_graphs: whether code2wav uses CUDA graphs on a GPU.
        native_decoder: whether code2wav has native code on a CPU.
        without_torch: whether all its models compute on a CPU without torch, which then need not be installed.
        prefix_bytes: memory for the beginnings of prompts on a CPU; 0: none are kept.
        fingerprints: outputs of the voice encoder that say what made the artifacts.
        decoder_of: the family that lends its code2wav.
        notes: ends of what some settings mean for this family, by name.
        sizes: parameters of the released talkers, as people give them.
        licence: of the released weights, as their page says.
        cells: of its column in docs/families.md, by row, where the card's other fields do not say it.
    """

    name: str
    title: str
    recognised_by: str
    frame: FrameForm
    weights: tuple[Weights, ...]
    chunk_frames: tuple[int, ...]
    prompt: tuple[str, ...]
    artifacts: tuple[Artifact, ...]
    encoders: tuple[EncoderPart, ...]
    modes: Mapping[str, tuple[str, ...]]
    knobs: Mapping[str, Any] = MappingProxyType({})
    budget: FrameBudget | None = None
    languages: tuple[str, ...] | None = ()
    embedding: bool = False
    x_vector_only: bool = False
    options: tuple[Option, ...] = ()
    presets: bool = False
    instructions: str = ""
    voiceless: bool = False
    appends: bool = False
    max_characters: int = 0
    references: str = ""
    autoregressive: bool = True
    streams: Literal["states", "pages", "own"] = "states"
    cuda_graphs: bool = True
    native_decoder: bool = False
    without_torch: bool = False
    prefix_bytes: int = 512 << 20
    fingerprints: tuple[str, ...] = ("fingerprint",)
    files: tuple[str, ...] = ()
    without_sizes: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ("config.load_config",)
    shortcoming: str = ""
    check_shared: str = ""
    decoder_of: str = ""
    notes: Mapping[str, str] = MappingProxyType({})
    sizes: str = ""
    licence: str = ""
    cells: Mapping[str, str] = MappingProxyType({})
