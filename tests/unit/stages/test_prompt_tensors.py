"""What the tensors of a prompt may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One of each form; the configuration is a tuple of limits."""

    ids: NDArray[np.int32] = field(metadata=tokens(lambda limits: limits[0]))
    codes: NDArray[np.uint16] = field(metadata=tensor(np.uint16, None, None, below=lambda limits: limits))
    marks: NDArray[np.uint16] = field(metadata=tensor(np.uint16, None, below=7))
    latents: NDArray[np.float32] = field(metadata=tensor(np.float32, None, 3))


LIMITS = 10, 5
RIGHT: dict[str, NDArray[Any]] = {
    "ids": np.array([0, 9], np.int32),
    "codes": np.array([[9, 4]], np.uint16),
    "marks": np.zeros(0, np.uint16),
    "latents": np.zeros((0, 3), np.float32),
}


def test_what_fits_is_taken() -> None:
    Prompt(**RIGHT).check(LIMITS)
    Prompt(**{**RIGHT, "codes": np.zeros((0, 0), np.uint16)}).check(LIMITS)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("ids", np.zeros(0, np.int32), "INT32 of 1 dimension and not empty"),
        ("ids", np.zeros(2, np.int64), "INT32"),
        ("codes", np.zeros(2, np.uint16), "UINT16 of 2 dimensions"),
        ("marks", np.array([7], np.uint16), "lie in 0..6"),
        ("latents", np.zeros((2, 4), np.float32), r"FP32 \[n, 3\]"),
        ("latents", np.full((1, 3), np.nan, np.float32), "finite"),
    ],
)
def test_a_wrong_form_is_refused_at_once(name: str, wrong: NDArray[Any], right: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} must be {'.*' if name == 'marks' else ''}{right}"):
        Prompt(**{**RIGHT, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("ids", np.array([10], np.int32), "0..9"),
        ("ids", np.array([-1], np.int32), "0..9"),
        ("codes", np.array([[9, 5]], np.uint16), "by codebook"),
        ("codes", np.array([[9]], np.uint16), "expected 2"),
    ],
)
def test_what_a_checkpoint_lacks_is_refused(name: str, wrong: NDArray[Any], right: str) -> None:
    prompt = Prompt(**{**RIGHT, name: wrong})
    with pytest.raises(InvalidArgument, match=f"^{name} .*{right}"):
        prompt.check(LIMITS)
