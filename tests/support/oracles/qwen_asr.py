"""The official aligner of `qwen_asr` 0.0.6, for comparison: its network and what it makes of a text.

It imports nagisa for Japanese, which nothing here uses: an empty module stands in for it.
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.oracles.packages import check_there, importable, quiet


@cache
def qwen_asr() -> Any:
    """The package, imported when first asked for."""
    check_there("qwen_asr")
    sys.modules.setdefault("nagisa", types.ModuleType("nagisa"))
    with quiet(), importable():
        import transformers

        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        return importlib.import_module("qwen_asr.inference.qwen3_forced_aligner")


class OfficialAligner:
    """The official aligner of a checkpoint, fp32, on the CPU.

    Attributes:
        frames, rows, ids: what the network got and made in the last `align`.
        logits: those of all positions.
    """

    frames: Tensor
    rows: Tensor
    ids: NDArray[Any]
    logits: Tensor

    def __init__(self, folder: Path) -> None:
        with quiet():
            self.aligner = qwen_asr().Qwen3ForcedAligner.from_pretrained(
                str(folder), dtype=torch.float32, device_map="cpu"
            )
        self.thinker = self.aligner.model.thinker
        self._tower = self.thinker.audio_tower
        self._forward, self._encode = self.thinker.forward, self._tower.forward
        self.thinker.forward, self._tower.forward = self._watched, self._encoded
        for layer in self._tower.layers:
            layer.forward = partial(self._windowed, layer.forward)

    def align(self, waveform: NDArray[np.float32], text: str, language: str = "English") -> list[tuple[str, int, int]]:
        """Units of a text with start and end in milliseconds; the waveform is at 16 kHz."""
        with quiet():
            [found] = self.aligner.align((waveform, 16_000), text, language)
        return [(each.text, round(1000 * each.start_time), round(1000 * each.end_time)) for each in found]

    def units(self, text: str, language: str = "English") -> list[str]:
        """Those of a text."""
        units: list[str] = self.aligner.aligner_processor.encode_timestamp(text, language)[0]
        return units

    def repaired(self, marks: NDArray[np.float32]) -> list[int]:
        """Times in the place of those of the network."""
        times: list[int] = self.aligner.aligner_processor.fix_timestamp(marks)
        return times

    @property
    def marks(self) -> Tensor:
        """The logits of starts and ends in the last `align`."""
        return self.logits[torch.from_numpy(self.ids == self.aligner.timestamp_token_id)]

    def _watched(self, **given: Any) -> Any:
        found = self._forward(**given)
        self.frames, self.ids, self.logits = given["input_features"][0], given["input_ids"][0].numpy(), found.logits[0]
        return found

    def _encoded(self, *given: Any, **others: Any) -> Any:
        found = self._encode(*given, **others)
        self.rows = found.last_hidden_state
        return found

    def _windowed(self, forward: Any, hidden: Tensor, ends: Tensor) -> Any:
        """A layer with the mask that the package has, and gives to no layer: without FlashAttention all rows see each
        other. `ends`: of the windows.
        """
        return forward(hidden, ends, attention_mask=self._tower._prepare_attention_mask(hidden, ends))
