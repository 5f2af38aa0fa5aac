"""What predicts masked cells: the network of a family that makes the frames of an utterance all at once.

Shapes: K codebooks, T frames of an utterance, S positions of its context, N of a sequence, C hidden size, V codes of a
codebook and the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from voice_clone.batching.source import PayloadForm
from voice_clone.lru_cache import Origin
from voice_clone.mask_predict.unmasking import Unmasking

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


@dataclass(frozen=True, eq=False)
class MaskRequest(Generic[P]):
    """What `MaskPredictSource` needs to start a stream.

    Attributes:
        prompt: the family's, of one utterance or several that follow each other.
        how: how they are unmasked.
        max_frames: the stream is cut after as many frames; None: all are heard.
        origin: the voice of the prompt.
    """

    prompt: P
    how: Unmasking
    max_frames: int | None = None
    origin: Origin = field(default_factory=Origin.unknown)


class MaskPredictor(Protocol[P_contra]):
    """The network. It keeps no state; sequences that it runs together do not see each other."""

    @property
    def form(self) -> PayloadForm:
        """The form of a frame: K codes."""

    @property
    def mask(self) -> int:
        """The code of a masked cell, V - 1."""

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of embeddings."""

    def check(self, prompt: P_contra) -> None:
        """Check a prompt against the checkpoint.

        Raises:
            InvalidArgument: it does not suit.
        """

    def utterances(self, prompt: P_contra) -> Sequence[tuple[int, int]]:
        """S and T of each utterance of a prompt, in order; there is at least one."""

    def context(self, prompt: P_contra, index: int, first: Tensor | None) -> Tensor:
        """What an utterance's cells see besides each other: embeddings [S, C].

        Args:
            index: of the utterance.
            first: int64 [K, T], the codes of the stream's first utterance; None: this is it.
        """

    def embed(self, codes: Tensor) -> Tensor:
        """int64 [K, T], masked or not -> [T, C]."""

    def logits(self, sequences: Sequence[Tensor], frames: Sequence[int]) -> list[Tensor]:
        """Run sequences of embeddings [N, C] together; of each the last T positions -> fp32 [K, T, V]."""
