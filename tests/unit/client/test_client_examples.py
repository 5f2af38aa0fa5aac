"""The examples run as they stand, against the protocol double."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import runpy
import sys
import wave
from pathlib import Path
from types import ModuleType

import grpc
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.doubles.triton_double import Failure, Server, chunk, empty_final, speech

EXAMPLES = Path(__file__).parents[3] / "client" / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def frames(path: Path) -> int:
    with wave.open(str(path)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (24000, 1, 2)
        return int(wav.getnframes())


@pytest.mark.parametrize("tail", [[], [empty_final()]], ids=["flag-on-data", "empty-final"])
@pytest.mark.parametrize("last", [1920, 0])
def test_plain_tritonclient(triton: Server, tmp_path: Path, tail: list[object], last: int) -> None:
    triton.play = lambda context: iter(speech(3, last) + tail)
    load("plain_tritonclient").main("qwen3_tts", "Hi.", "ada", str(tmp_path / "out.wav"), triton.url)
    assert frames(tmp_path / "out.wav") == 2 * 1920 + last
    assert triton.calls == [("qwen3_tts", {"text": b"Hi.", "voice": b"ada"})]


@pytest.mark.parametrize("before", [0, 1])
def test_plain_tritonclient_raises(triton: Server, tmp_path: Path, before: int) -> None:
    def play(context: grpc.ServicerContext) -> object:
        yield from [chunk(0)][:before]
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice 'ada'")

    triton.play = play  # type: ignore[assignment]
    with pytest.raises(InferenceServerException, match="speaker_not_found") as caught:
        load("plain_tritonclient").main("qwen3_tts", "Hi.", "ada", str(tmp_path / "out.wav"), triton.url)
    assert caught.value.status() == "StatusCode.NOT_FOUND"


@pytest.fixture
def here(triton: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; the environment names the double."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOICE_CLONE_SERVER", triton.url)
    return tmp_path


def test_upload_and_speak(triton: Server, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"name": "example", "generation": 1}
    triton.answer = lambda inputs: {"result": json.dumps(record).encode()}
    (here / "clip.wav").write_bytes(b"clip")
    load("upload_and_speak").main("clip.wav", "Said.", "Hi.", "out.wav")
    assert frames(here / "out.wav") == 3 * 1920
    assert [model for model, _ in triton.calls] == ["speaker_cache", "speaker_cache", "qwen3_tts"]
    assert "model_type" not in triton.calls[0][1]
    assert "0.24 s in out.wav" in capsys.readouterr().out


def test_async_many(triton: Server, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton.answer = lambda inputs: {"result": json.dumps({"name": "ada"}).encode()}
    refused: list[int] = []

    def play(context: grpc.ServicerContext) -> object:
        if not refused:
            refused.append(1)
            raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: the queue is full")
        yield from speech(3)

    triton.play = play  # type: ignore[assignment]
    monkeypatch.setattr("sys.stdin", io.StringIO("One.\n\nTwo.\nThree.\n"))
    asyncio.run(load("async_many").main("ada"))
    assert [frames(here / f"00{number}.wav") for number in range(3)] == [3 * 1920] * 3
    assert refused


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_wrong_arguments_get_the_usage(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = EXAMPLES / f"{example}.py"
    for words in ([], ["one", "two", "three", "four", "five", "six"]):
        monkeypatch.setattr(sys, "argv", [path.name, *words])
        with pytest.raises(SystemExit, match=rf"\$.* python {path.name} "):  # a text: it goes to stderr, the code is 1
            runpy.run_path(str(path), run_name="__main__")
