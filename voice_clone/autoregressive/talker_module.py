"""What talkers share that are modules of torch, and whose whole prompt is known at its start."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import nn

from voice_clone.autoregressive.stack.protocol import Stack
from voice_clone.autoregressive.whole_prompt import WholePrompts

P = TypeVar("P")


class TalkerModule(nn.Module, WholePrompts[P]):
    """A `voice_clone.autoregressive.talker.Talker`.

    Attributes:
        layers: the attribute that has torch's stack.
        native_stack: takes its place on a CPU.
    """

    layers: ClassVar[str]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.native_stack: Stack | None = None

    @property
    def stack(self) -> Any:
        return self.native_stack or getattr(self, self.layers)
