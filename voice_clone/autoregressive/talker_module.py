"""What talkers in torch share whose whole prompt is known at its start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.protocol import Stack
from voice_clone.autoregressive.talker import TalkerInput
from voice_clone.layers.graphs import table_rows

P = TypeVar("P")


class TalkerModule(nn.Module, Generic[P]):
    """A `voice_clone.autoregressive.talker.Talker`. P: a prompt with a method `check(config)`.

    Attributes:
        layers: the attribute that has torch's stack.
        native_stack: takes its place on a CPU.
    """

    layers: ClassVar[str]
    min_frames = 0

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.native_stack: Stack | None = None

    @property
    def stack(self) -> Any:
        return self.native_stack or getattr(self, self.layers)

    def check(self, prompt: P) -> None:
        prompt.check(self.config)  # type: ignore[attr-defined]

    @torch.inference_mode()
    def embed_prompt(self, prompt: P) -> TalkerInput:
        embeds = torch.cat([*self.prompt_rows(prompt)])
        return TalkerInput(embeds, embeds[:0], torch.zeros_like(embeds[0]))

    @abstractmethod
    def prompt_rows(self, prompt: P) -> Sequence[Tensor]:
        """The rows of a prompt's parts, [n, I] each, in their order."""

    def rows_of(self, table: Tensor, ids: npt.NDArray[Any]) -> Tensor:
        """Rows of a table that may stay in the file."""
        return table_rows(table, ids, self.stack.like)
