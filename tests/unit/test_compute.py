"""Where a model computes: what the setting device demands, and what the log says of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from tests.support.doubles.backend_double import backend_double
from voice_clone import compute
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.settings import PRECISIONS, DecoderSettings, EncoderSettings, Settings, TalkerSettings


def settings(**given: str) -> Settings:
    given = {"checkpoint_dir": "/nowhere", **given}
    return Settings({}, {f"VOICE_CLONE_{name.upper()}": value for name, value in given.items()})


def talker(**given: str) -> TalkerSettings:
    return TalkerSettings.of(settings(**given))


def decoder(**given: str) -> DecoderSettings:
    return DecoderSettings.of(settings(**given))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The switches of torch."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    attention, threads = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_num_threads()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrix, convolution
    torch.backends.cuda.enable_cudnn_sdp(attention)
    torch.set_num_threads(threads)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_gpu_that_is_demanded_must_be_there() -> None:
    with pytest.raises(Unsupported, match=r"device is cuda, and torch 2\S* for .* finds no GPU.*driver.*580"):
        compute.prepare(talker(device="cuda"))
    compute.prepare(EncoderSettings.of(settings(device="cuda")), remote=True)


def test_a_gpu_that_torch_was_built_for_is_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An old driver: nothing fails, so the log must say it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    caplog.set_level(logging.INFO)
    compute.prepare(talker())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "for CUDA 13.0 finds no GPU" in caplog.text and "on the CPU" in caplog.text
    caplog.clear()
    compute.prepare(talker(device="cpu"))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_gpu_computes_fp32_as_fp32(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(30e9), int(80e9)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    caplog.set_level(logging.INFO)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    compute.prepare(talker())
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert re.search(r"computes on a GPU, 30.0 of 80.0 GB free, torch 2", caplog.text)


def test_the_settings_offer_the_precisions_that_there_are() -> None:
    """A variable without a family's or a stage's name sets talker and decoder, so the decoder knows the talker's."""
    offered = {stage: stage.known()["precision"].choices for stage in (TalkerSettings, DecoderSettings)}
    assert offered[TalkerSettings] == ("auto", *PRECISIONS)
    assert set(offered[DecoderSettings]) == {"auto", "tf32", *PRECISIONS}


def test_precision_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute.dtype(talker()) == torch.bfloat16
    assert compute.dtype(talker(device="cpu", precision="bf16")) == torch.float32
    with pytest.raises(InvalidArgument, match="a GPU takes fp32 or bf16"):
        compute.dtype(talker(precision="int8"))
    with pytest.raises(InvalidArgument, match="precision"):
        talker(precision="tf32")  # a talker in TF32 would draw other codes


@pytest.mark.parametrize(
    ("asked", "on_gpu"), [("auto", "tf32"), ("fp32", "fp32"), ("tf32", "tf32"), ("bf16", "bf16"), ("int8", None)]
)
def test_precision_of_a_decoder(monkeypatch: pytest.MonkeyPatch, asked: str, on_gpu: str | None) -> None:
    assert compute.decoder_precision(decoder(device="cpu", precision=asked)) == "fp32"
    assert compute.decoder_dtype(decoder(device="cpu", precision=asked)) == torch.float32
    given = decoder(device="cuda", precision=asked)
    if on_gpu is None:
        with pytest.raises(InvalidArgument, match="the decoder on a GPU takes fp32, tf32 or bf16"):
            compute.decoder_precision(given)
        return
    assert compute.decoder_precision(given) == on_gpu
    assert compute.decoder_dtype(given) == (torch.bfloat16 if on_gpu == "bf16" else torch.float32)


@pytest.mark.parametrize(("asked", "tf32"), [("auto", True), ("tf32", True), ("fp32", False), ("bf16", False)])
def test_a_decoder_rounds_its_factors_unless_it_is_asked_not_to(
    monkeypatch: pytest.MonkeyPatch, asked: str, tf32: bool
) -> None:
    """As code2wav loads it, up to the stage."""

    class Loaded(Exception):
        """The process is set up."""

    def load_stage(given: Settings) -> None:
        raise Loaded

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(30e9), int(80e9)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    with backend_double("stages.code2wav") as (module,), ExitStack() as end, pytest.raises(Loaded):
        model = type("Model", (module.Code2WavModel,), {"load_stage": staticmethod(load_stage)})()
        model.family = "any"
        module.Code2WavObserver = lambda family: SimpleNamespace(close=lambda: None)  # it needs Triton's metrics
        given = settings(device="cuda", precision=asked)
        model.load(given)
        end.callback(model.close)
        model.load_heavy(given)
    assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32
