"""What a process does when its GPU fails: too little memory names a setting; a lost GPU ends the process.

The endings are counted here, not done.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.doubles.backend_double import Sender, backend_double
from tests.support.doubles.counted_frames import Collector, Counter, Wish, submit
from tests.support.families.small_codec import FORM, SMALL, make_code2wav
from voice_clone import gpu
from voice_clone.batching.engine import Engine
from voice_clone.codec.chunk import CodecChunk, Reference
from voice_clone.codec.worker import Code2WavWorker
from voice_clone.errors import Unsupported
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.gpu import is_fatal, memory_bounded_by
from voice_clone.layers.graphs import GraphRunner, Step
from voice_clone.settings import DecoderSettings, TalkerSettings


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


def refuse_capture(*args: Any) -> None:
    raise full()


def test_the_talker_names_its_setting() -> None:
    stage = SimpleNamespace(source=SimpleNamespace(warm_up=refuse_capture), example=None)
    with backend_double("stages.talker") as (module,), pytest.raises(Unsupported, match="smaller max_streams,"):
        module._warm_up(stage, TalkerSettings(checkpoint_dir=Path(), device="cpu"), False)


def test_code2wav_names_its_setting() -> None:
    code2wav = SimpleNamespace(warm_up=refuse_capture, max_batch=4)
    with backend_double("stages.code2wav") as (module,), pytest.raises(Unsupported, match="smaller max_decode_batch,"):
        module._warm_up(code2wav, None, DecoderSettings(checkpoint_dir=Path(), device="cpu"), (1, 2), False)


LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
SURVIVED = RuntimeError("CUDA error: of another kind"), torch.OutOfMemoryError("CUDA out of memory"), ValueError()


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each time that the process would have ended."""
    found: list[None] = []
    monkeypatch.setattr(gpu, "end_process", lambda: found.append(None))
    return found


def fail(error: Exception) -> Callable[..., Any]:
    def function(*args: Any, **named: Any) -> Any:
        raise error

    return function


def test_only_a_lost_gpu_is_fatal() -> None:
    assert is_fatal(LOST) and not any(map(is_fatal, SURVIVED))


def test_a_gpu_that_still_works_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not is_fatal(LOST)
    monkeypatch.setattr(torch.cuda, "synchronize", fail(LOST))
    assert is_fatal(LOST) and not any(map(is_fatal, SURVIVED))


def test_a_process_without_torch_needs_none() -> None:
    code = "import sys, voice_clone.gpu as g; print(g.is_fatal(ValueError()), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_the_process_ends_at_once() -> None:
    code = "import voice_clone.gpu as g; g.is_fatal = lambda error: True; g.end_if_fatal(ValueError()); print(1)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "") and "lost its GPU" in found.stderr


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("place", ["start", "prefill", "begin", "ready"])
@pytest.mark.parametrize("error", [LOST, SURVIVED[0]], ids=["lost", "survived"])
def test_engine(
    endings: list[None], monkeypatch: pytest.MonkeyPatch, place: str, ahead: bool, error: Exception
) -> None:
    """Where the process goes on, so does the engine."""
    source = Counter(slots=2, ahead=ahead)
    engine: Engine[Wish] = Engine(source, (1, 2), max_queue=4)
    with monkeypatch.context() as patch:
        patch.setattr(source, place, fail(error))
        collector = Collector()
        engine.submit("a", Wish(0, 3, text=3), collector, text_open=True)
        collector.wait()
    assert collector.error is not None and bool(endings) == (error is LOST)
    assert submit(engine, "b", Wish(5, 2)).wait().values == [5, 6]
    engine.close()


class Ticket:
    """Nobody listens."""

    def __init__(self) -> None:
        self.done = self.skip = self.fail = lambda *_: None

    def cancelled(self) -> bool:
        return False


class Observer:
    """Nobody looks."""

    def __init__(self) -> None:
        self.lost = self.answered = self.report = lambda *_: None


@pytest.mark.parametrize("place", ["decode_chunk", "prime"])
@pytest.mark.parametrize("error", [LOST, SURVIVED[0]], ids=["lost", "survived"])
def test_decoder(endings: list[None], monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    decoder = CodecDecoder(SMALL).requires_grad_(False)
    code2wav = make_code2wav(decoder, FORM)
    monkeypatch.setattr(decoder, place, fail(error))
    codes = np.zeros((3, SMALL.num_quantizers), np.int32)
    [outcome] = code2wav.decode([CodecChunk("a", 0, codes, codes, final=True)])
    assert isinstance(outcome, Exception) and bool(endings) == (error is LOST)


@pytest.mark.parametrize("place", ["decode", "prepare"])
@pytest.mark.parametrize("error", [LOST, SURVIVED[0]], ids=["lost", "survived"])
def test_decoding_thread(endings: list[None], monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    code2wav = make_code2wav(CodecDecoder(SMALL).requires_grad_(False), FORM, max_batch=2)
    monkeypatch.setattr(code2wav, place, fail(error))
    worker = Code2WavWorker(code2wav, 9, Observer())
    codes = np.zeros((3, SMALL.num_quantizers), np.int32)
    worker.prepare(Reference(codes))
    worker.submit(CodecChunk("a", 0, codes, codes[:0], final=True), Ticket())
    worker.submit(CodecChunk("b", 0, codes, codes[:0], final=True), Ticket())
    worker.close()
    assert bool(endings) == (error is LOST)


@pytest.mark.parametrize("error", [LOST, SURVIVED[0]], ids=["lost", "survived"])
def test_any_other_model(endings: list[None], monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Such as an encoder. The request is answered first."""
    with backend_double("model", "responder") as (module, responders):

        class Broken(module.Model):  # type: ignore[misc,name-defined]
            load, handle = fail(error), fail(error)

        model, sender = Broken(), Sender()
        model._pool = model._no_service = None
        model._run(SimpleNamespace(passed_on={}), responders.Responder(sender, "the-id", {}), None)
    assert len(sender.sent) == 1 and len(endings) == (error is LOST)
