"""The model transcriber behind the Python clients, the command and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from openai import OpenAI
from voice_clone_client import AsyncClient, Client, InvalidArgument, Unsupported
from voice_clone_client.callers import on_behalf_of
from voice_clone_command import cli

from perf.bench.gateway_process import Gateway
from tests.support.waiting import until
from voice_clone.aligner import words
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

CLIPS = Path(__file__).parents[3] / "tools" / "data" / "demo_clips"
SLT, RMS = CLIPS / "slt.wav", CLIPS / "rms.wav"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hearing") / "log"


@pytest.fixture(scope="module")
def hearing(log: Path) -> Iterator[TritonServer]:
    """A server that keeps voices and hears their words, and speaks nothing."""
    options = ["--model-control-mode=explicit", "--load-model=transcriber", "--load-model=speaker_cache"]
    with TritonServer(None, log.parent / "voices", models=[MODELS, OPTIONAL], log=log, options=options) as server:
        yield server
        server.kill()


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def long_clip(seconds: float) -> bytes:
    samples, rate = soundfile.read(SLT, dtype="float32")
    file = io.BytesIO()
    soundfile.write(file, np.resize(samples, round(seconds * rate)), rate, format="WAV")
    return file.getvalue()


@pytest.fixture(scope="module")
def heard(hearing: TritonServer) -> str:
    """What the server hears in a clip of flite."""
    with Client(hearing.url) as client:
        return client.transcribe(SLT)


def test_most_words_of_flite_are_right(heard: str) -> None:
    said, words = words_of(SLT.with_suffix(".txt").read_text()), words_of(heard)
    assert len(set(said) & set(words)) > len(set(said)) / 2, heard
    assert abs(len(words) - len(said)) <= len(said) / 3


def test_a_clip_has_the_same_words_each_time(hearing: TritonServer, heard: str) -> None:
    """Whatever was heard before, and in whatever file it comes."""
    samples, rate = soundfile.read(SLT, dtype="float32")
    flac = io.BytesIO()
    soundfile.write(flac, samples, rate, format="FLAC", subtype="PCM_16")
    with Client(hearing.url) as client:
        other = client.transcribe(RMS, language="English")
        assert other != heard
        assert client.transcribe(flac.getvalue()) == heard
        assert client.transcribe(RMS, language="en-GB") == other

    async def ask() -> str:
        async with AsyncClient(hearing.url) as client:
            return await client.transcribe(SLT)

    assert asyncio.run(ask()) == heard


def test_what_is_refused(hearing: TritonServer) -> None:
    with Client(hearing.url) as client:
        with pytest.raises(Unsupported, match="only English"):
            client.transcribe(SLT, language="de")
        with pytest.raises(InvalidArgument, match="1 to 30 s"):
            client.transcribe(long_clip(31))
        with pytest.raises(InvalidArgument, match="cannot be decoded"):
            client.transcribe(b"no audio")
        file = io.BytesIO()
        soundfile.write(file, np.zeros(48_000), 24_000, format="WAV")
        assert client.transcribe(file.getvalue()) == ""
        with pytest.raises(InvalidArgument, match="no words were recognised"):
            client.upload("Silent", file.getvalue(), transcribe=True)
        assert "Silent" not in [voice.name for voice in client.list()]


def test_callers_take_turns_and_voices_are_served_meanwhile(hearing: TritonServer) -> None:
    """The first clip takes until all others have come, and a list of voices was answered."""
    clip, answers, before = SLT.read_bytes(), list[str](), requests_of(hearing)

    def ask(caller: str) -> None:
        with on_behalf_of(caller), Client(hearing.url, timeout=None) as client:
            client.transcribe(clip)
        answers.append(caller)

    threads = list[threading.Thread]()

    def begin(caller: str) -> None:
        threads.append(threading.Thread(target=ask, args=(caller,)))
        threads[-1].start()
        until(lambda: requests_of(hearing) == before + len(threads))

    begin("ada")
    with suspended(hearing), Client(hearing.url) as client:
        for caller in ("ada", "ada", "bob"):
            begin(caller)
        client.list()
        assert not answers
    for thread in threads:
        thread.join()
    assert answers.index("bob") < 2, answers


def test_who_leaves_ends_the_work(hearing: TritonServer, heard: str) -> None:
    """Its process would never end by itself."""

    async def leave() -> None:
        async with AsyncClient(hearing.url) as client:
            asking = asyncio.ensure_future(client.transcribe(SLT))
            await asyncio.to_thread(until, lambda: processes(hearing))
            with suspended(hearing) as process:
                asking.cancel()
                await asyncio.wait([asking])
                await asyncio.to_thread(until, lambda: process not in processes(hearing))

    asyncio.run(leave())
    with Client(hearing.url) as client:
        assert client.transcribe(SLT) == heard


def requests_of(server: TritonServer) -> int:
    """How many the model has got."""
    [model] = httpx2.get(f"{server.http}/v2/models/transcriber/stats", trust_env=False).json()["model_stats"]
    return int(model["inference_count"])


def processes(server: TritonServer) -> list[psutil.Process]:
    """Those that transcribe a clip."""
    assert server.process is not None
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if words.__name__ in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def suspended(server: TritonServer) -> Iterator[psutil.Process]:
    """The process that transcribes, which does nothing during the block."""
    until(lambda: processes(server))
    [process] = processes(server)
    process.suspend()
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def test_an_upload_takes_the_words(hearing: TritonServer, heard: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(hearing.url) as client:
        voice = client.upload("Ada", SLT, transcribe=True)
        assert voice.reference_text == heard
        assert client.upload("Ada", SLT, transcribe=True).generation == voice.generation
        assert cli.main(["--url", hearing.url, "upload", "Ben", str(SLT), "--transcribe", "--no-wait"]) == 0
        assert f"words: {heard}\n" in capsys.readouterr().err
        assert client.get("Ben").reference_text == heard


def test_the_gateway(hearing: TritonServer, heard: str, log: Path, tmp_path: Path) -> None:
    form = {"name": "Cleo", "consent": "a test", "transcribe": "true"}
    with Gateway(hearing.url, tmp_path / "log") as gateway:
        with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http:
            reply = http.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", SLT.read_bytes())})
            assert reply.status_code == 200 and reply.json()["voice"]["reference_text"] == heard
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as openai:
            for model in ("whisper-1", "gpt-4o-mini-transcribe"):
                assert openai.audio.transcriptions.create(model=model, file=SLT).text == heard
    for file in (log, tmp_path / "log"):
        assert heard not in file.read_text(), "what was said is not for a log"


def test_a_server_without_it(server: TritonServer, http: httpx2.Client) -> None:
    with Client(server.url) as client, pytest.raises(Unsupported, match="serve --with transcriber"):
        client.transcribe(SLT)
    reply = http.post("/v1/audio/transcriptions", files={"file": ("a.wav", SLT.read_bytes())})
    assert reply.status_code == 501 and json.loads(reply.text)["error"]["code"] == "unsupported"
