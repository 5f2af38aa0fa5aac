"""A model that finds too little memory on its GPU while it warms up says which setting would be right."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.doubles.backend_double import backend_double
from voice_clone.errors import Unsupported
from voice_clone.gpu_memory import memory_bounded_by
from voice_clone.layers.graphs import GraphRunner, Step
from voice_clone.settings import Settings


def full() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")


def full_of_cuda() -> Exception:
    return torch.AcceleratorError("CUDA error: out of memory")


def full_of_a_library() -> Exception:
    return RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def other() -> Exception:
    return torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")


Make = Callable[[], Exception]


def record(error: Make, last: Make | None = None) -> None:
    """A step that cannot be recorded; what ends the recording may fail, too."""

    def capture(step: Step) -> Step:
        try:
            raise error()
        except Exception:
            if last is None:
                raise
            raise last()  # noqa: B904 - as torch leaves its context

    GraphRunner(capture).prepare("codes", lambda: None)


@pytest.mark.parametrize(
    "errors", [(full,), (full_of_cuda,), (full_of_a_library,), (full, other)], ids=["torch", "cuda", "cublas", "hidden"]
)
def test_a_graph_for_which_there_is_no_room(errors: tuple[Make, ...], caplog: pytest.LogCaptureFixture) -> None:
    message = "set a smaller max_streams, or free the GPU"
    with pytest.raises(Unsupported, match=message) as caught, memory_bounded_by("max_streams"):
        record(*errors)
    assert "does not record" not in str(caught.value) and "too little memory" in caplog.text


def test_a_graph_that_the_driver_does_not_record() -> None:
    with pytest.raises(Unsupported, match="does not record CUDA graphs"), memory_bounded_by("max_streams"):
        record(other)


def test_whatever_else_fails_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), memory_bounded_by("max_streams"):
        1 / 0  # noqa: B018


def fail(*args: Any) -> None:
    raise full()


def test_the_talker_names_its_setting() -> None:
    stage = SimpleNamespace(source=SimpleNamespace(warm_up=fail), example=None)
    with backend_double("stages.talker") as (module,), pytest.raises(Unsupported, match="smaller max_streams,"):
        module._warm_up(stage, Settings({}, environ={"VOICE_CLONE_DEVICE": "cpu"}))


def test_code2wav_names_its_setting() -> None:
    code2wav, stage = SimpleNamespace(warm_up=fail), SimpleNamespace(chunk_frames=(1, 2))
    with backend_double("stages.code2wav") as (module,), pytest.raises(Unsupported, match="smaller max_decode_batch,"):
        module._warm_up(code2wav, stage, Settings({}, environ={"VOICE_CLONE_DEVICE": "cpu"}))
