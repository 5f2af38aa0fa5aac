"""What differs between the families where an engine is measured; the rest is `perf.bench.engine`."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.spent import Spent
from tools.families.toolkit import checkpoint_maker
from voice_clone.array_kinds import in_kind_of
from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.native_predictor import NativePredictor
from voice_clone.autoregressive.predictor_by_step import PredictorParts, complete_by_steps, frame_cache
from voice_clone.autoregressive.samplers import penalise
from voice_clone.autoregressive.sampling import CodeSampling
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.talker import Seeded, Talker
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.settings import Settings

SEED = 0  # of a sampling
Codes = NDArray[np.int32]
Frames = NDArray[Any]
"""Codes, int32, or latents, float32."""
Peer = Callable[[Path, str, torch.dtype], Callable[[int], Spent]]
"""(checkpoint, device, dtype) -> what speaks so many frames in one stream.

Raises:
    ImportError: it is not installed.
"""


@dataclass(frozen=True)
class Networks:
    """Networks of a released shape, without weights: what makes them, and the form of their frames."""

    talker: Callable[[], Any]
    decoder: Callable[[], Any]
    form: CodecFormat


class Family(ABC):
    """The networks of a checkpoint as a server loads them, and prompts for them.

    Class attributes:
        name: as the server knows it.
        shape: the usual one of a random checkpoint.
        chunk_frames: of the first chunks; the last repeats.
        max_length: positions of a stream. Two engines hold those of all streams in fp32 at once.
        cpu_streams: as many as a CPU can speak for a comparison.
        tie: by so much of a margin fp32 rounding may change a frame; see perf/on_gpu/equality.py.
        peers: other implementations, by name.
        without_peers: those that are not compared, and why.
        greedy_knobs, greedy_options: of a request for the most likely codes.
        embeddings: whether a speaker embedding alone is a voice.

    Attributes:
        talker, decoder, form: of the checkpoint.
    """

    name: ClassVar[str]
    shape: ClassVar[str]
    chunk_frames: ClassVar[tuple[int, ...]]
    max_length: ClassVar[int]
    cpu_streams: ClassVar[int]
    tie: ClassVar[float]
    peers: ClassVar[Mapping[str, Peer]] = {}
    without_peers: ClassVar[Mapping[str, str]] = {}
    greedy_knobs: ClassVar[Mapping[str, Any]] = {"do_sample": False}
    greedy_options: ClassVar[Mapping[str, Any]] = {}
    embeddings: ClassVar[bool]

    talker: Talker[Any]
    decoder: StreamDecoder[Any]
    form: CodecFormat

    @abstractmethod
    def __init__(self, talker: Settings, decoder: Settings, fixed: bool = False) -> None:
        """Load the talker and the decoder, each as its settings say. `fixed`: for steps of fixed shapes, in torch."""

    @classmethod
    def shape_of(cls, given: str | None, parser: argparse.ArgumentParser) -> str:
        """The shape that a command line names, or the usual one; ends the process where the family has no such one."""
        shapes = checkpoint_maker(cls.name).SHAPES
        if given is not None and given not in shapes:
            parser.error(f"--shape {given}: {cls.name} has {', '.join(shapes)}")
        return given or cls.shape

    @staticmethod
    @abstractmethod
    def networks(shape: str, folder: Path) -> Networks:
        """Those of a shape; `folder` exists, and is for what they are read from."""

    @staticmethod
    @abstractmethod
    def torch_decoder(settings: Settings) -> tuple[StreamingDecoder, CodecFormat]:
        """The decoder as torch's network."""

    @staticmethod
    @abstractmethod
    def sampling(drawn: bool) -> Seeded:
        """The usual draws, or the most likely codes; its seed is `SEED`."""

    @staticmethod
    @abstractmethod
    def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> Any:
        """The prompt in the tensors that a server's prompt stage has made."""

    @abstractmethod
    def a_prompt(self, seed: int = 0) -> Any:
        """A voice in context, of random codes, about as long as the shipped clip; another one for each seed."""

    @abstractmethod
    def context(self, prompt: Any) -> NDArray[Any]:
        """The frames that the decoder hears before a speech, [n, K]."""

    def parted(self, ours: Frames, others: Frames) -> NDArray[np.bool_]:
        """Where frames of two engines differ, both [B, K]."""
        return np.asarray(ours != others)

    @abstractmethod
    def margin(self, generator: Generator[Any], slot: int, frame: int, codes: Frames, other: Frames) -> float:
        """How clearly a frame that has just been made is not another one, as of perf/on_gpu/equality.py.

        Args:
            generator: what made it, greedily.
            slot: of its stream.
            frame: its number in the stream.
            codes, other: the frame and the other one, [K], which differ by `parted`.
        """


class CodeFamily(Family):
    """A family whose frames a `CodeHead` makes, one codebook after the other."""

    @staticmethod
    @abstractmethod
    def sampling(drawn: bool) -> CodeSampling: ...

    def margin(self, generator: Generator[Any], slot: int, frame: int, codes: Frames, other: Frames) -> float:
        """In the first codebook in which the frames differ: the lead of its code over the other one, in standard
        deviations of the logits.
        """
        model, head = generator.model, code_head(self.talker)
        book = int((codes != other).argmax())
        state = model.hidden[slot : slot + 1]
        hidden, first = torch.as_tensor(state), in_kind_of(state, codes[:1].astype(np.int64))
        chosen = torch.from_numpy(codes[None].astype(np.int64)).to(hidden.device)
        if book == 0:
            penalty = torch.tensor([[float(self.sampling(drawn=False).columns[0])]], device=hidden.device)
            used = torch.as_tensor(model.memory.used[slot : slot + 1])
            logits = penalise(torch.as_tensor(head.logits(state)).float(), used, penalty)
        else:
            seen: list[torch.Tensor] = []

            def choose(logits: torch.Tensor, at: int) -> torch.Tensor:
                seen.append(logits.float())
                return chosen[:, at]

            parts = cast(PredictorParts, head.predictor)
            assert head.embed is not None
            embedded = torch.as_tensor(head.embed(first))
            complete_by_steps(parts, frame_cache(parts, 1), hidden, chosen[:, 0], embedded, choose)
            logits = seen[book - 1]
        return float((logits[0, codes[book]] - logits[0, other[book]]).abs() / logits.std())


def random_codes(seed: int, frames: int, limits: int | Sequence[int], books: int) -> NDArray[np.int64]:
    """Up to `frames` frames, a few less for most seeds: [n, K], each codebook below its limit."""
    shape = frames - seed % 16, books
    return np.random.default_rng(seed).integers(0, limits, shape)


def code_head(talker: Talker[Any]) -> CodeHead:
    """The head of a talker of codes."""
    assert isinstance(talker.head, CodeHead)
    return talker.head


def frame_bytes(talker: Talker[Any]) -> int:
    """Bytes of the weights that a frame of a talker in native code reads."""
    stack, head = talker.stack, code_head(talker)
    assert isinstance(stack, NativeStack)
    assert isinstance(head.predictor, NativePredictor) and isinstance(head.logits, PackedLinear)
    return stack.nbytes + head.predictor.frame_bytes + head.logits.nbytes
