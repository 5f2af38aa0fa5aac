"""The model mark_detector behind the Python clients, the command and the gateway; and a server without it."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from voice_clone_client import AsyncClient, Client, DeadlineExceeded, InvalidArgument, Unsupported
from voice_clone_client.callers import on_behalf_of
from voice_clone_command import cli
from voice_clone_provenance.manifests import TYPES, FileSigner

from perf.bench.gateway_process import Gateway
from tests.support.doubles.fakes import together
from tests.support.official.certificates import signing_files
from tests.support.servers.server_processes import processes
from tests.support.waiting import until
from voice_clone.marking.marker import PerthMarker
from voice_clone_server.demo import CLIP
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples, rate = soundfile.read(CLIP, dtype="float32")
    marker = PerthMarker(rate)
    path = tmp_path_factory.mktemp("marked") / "marked.ogg"
    soundfile.write(path, marker.mark([marker.open()], [samples])[0], rate, format="OGG", subtype="VORBIS")
    return path


@pytest.fixture(scope="module")
def detecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server that has the detector alone."""
    folder = tmp_path_factory.mktemp("detecting")
    options = ["--model-control-mode=explicit", "--load-model=mark_detector"]
    with TritonServer(
        None, folder / "voices", models=[MODELS, OPTIONAL], log=folder / "log", options=options
    ) as server:
        yield server
        server.kill()


def test_clients(detecting: TritonServer, marked: Path) -> None:
    with Client(detecting.url) as client:
        found = client.detect(marked)
        assert found.mark == "perth" and found.confidence > 0.9 and (found.speed, found.start) == (1.0, 0.0)
        assert abs(found.seconds - soundfile.info(marked).duration) < 0.01
        other = client.detect(CLIP.read_bytes())
        assert other.mark is None and other.confidence < 0.1
        with pytest.raises(InvalidArgument, match="the audio cannot be decoded"):
            client.detect(b"no audio")
        file = io.BytesIO()
        soundfile.write(file, np.zeros(1000, np.float32), 24_000, format="WAV")
        with pytest.raises(InvalidArgument, match=r"0\.1 to 600 s"):
            client.detect(file.getvalue())

    async def ask() -> str | None:
        async with AsyncClient(detecting.url) as client:
            return (await client.detect(marked)).mark

    assert asyncio.run(ask()) == "perth"


def test_callers_take_turns_and_one_who_leaves_ends_the_work(detecting: TritonServer) -> None:
    file = io.BytesIO()
    noise = np.random.default_rng(1).uniform(-0.1, 0.1, 590 * 24_000)
    soundfile.write(file, noise, 24_000, format="FLAC", subtype="PCM_16")
    [process] = [
        psutil.Process(pid)
        for pid in processes(detecting)
        if "mark_detector/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text()
    ]

    def worked() -> bool:
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        return sum(process.cpu_times()[:2]) > before + 0.1

    answer: list[object] = []

    def wait_for_long() -> None:
        with on_behalf_of("ada"), Client(detecting.url, timeout=20.0) as client:
            answer.append(together(1, lambda _: client.detect(file.getvalue()))[0])

    waiting = threading.Thread(target=wait_for_long)
    waiting.start()
    until(worked)
    for caller in ("bob", "ada"):
        with on_behalf_of(caller), Client(detecting.url) as client:
            assert client.detect(CLIP).mark is None
            assert not answer, "the long one goes on meanwhile"
    waiting.join()
    assert isinstance(answer[0], DeadlineExceeded)
    until(lambda: not worked())


def test_the_command(detecting: TritonServer, marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--url", detecting.url, "detect", str(marked)]) == 0
    assert capsys.readouterr().out.startswith("marked as synthetic: perth\tconfidence ")
    assert cli.main(["--url", detecting.url, "detect", str(CLIP)]) == 0
    assert capsys.readouterr().out.startswith("no mark\tconfidence 0.0")
    assert cli.main(["--url", detecting.url, "detect", "--json", str(marked)]) == 0
    assert json.loads(capsys.readouterr().out)["mark"] == "perth"


def test_the_gateway(detecting: TritonServer, marked: Path, tmp_path: Path) -> None:
    files = signing_files(tmp_path)
    signer = FileSigner(files.certificates, files.key)
    with (
        Gateway(detecting.url, tmp_path / "log") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):
        answer = http.post("/v1/audio/detect", files={"file": ("a.ogg", marked.read_bytes())})
        assert answer.status_code == 200
        found = answer.json()
        assert found["mark"] == "perth" and found["confidence"] > 0.9 and (found["speed"], found["start"]) == (1.0, 0.0)
        assert found["manifest"] is None and found["manifest_unread"] is None and found["statement"] is None
        for suffix, form in ((".wav", "WAV"), (".mp3", "MP3"), (".flac", "FLAC")):
            samples, rate = soundfile.read(marked, dtype="float32")
            file = io.BytesIO()
            soundfile.write(file, samples, rate, format=form)
            signed = signer.sign(file.getvalue(), TYPES[suffix], "some_family", 64 * "a", "form 12")
            found = http.post("/v1/audio/detect", files={"file": (f"a{suffix}", signed)}).json()
            assert found["mark"] == "perth" and found["manifest"]["valid"] is True, form
            assert (found["manifest"]["voice_digest"], found["manifest"]["consent"]) == (64 * "a", "form 12")
        assert http.post("/v1/audio/detect", files={"file": ("a.wav", CLIP.read_bytes())}).json()["mark"] is None
        bad = http.post("/v1/audio/detect", files={"file": ("a.wav", b"no audio")})
        assert bad.status_code == 400 and bad.json()["error"]["code"] == "invalid_argument"
        assert http.post("/v1/audio/detect", data={}).status_code == 400


def test_a_server_without_it(
    server: TritonServer, http: httpx2.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(server.url) as client, pytest.raises(Unsupported, match="serve the model mark_detector, too"):
        client.detect(CLIP)
    files = signing_files(tmp_path)
    signed = FileSigner(files.certificates, files.key).sign(CLIP.read_bytes(), "audio/wav", "some_family")
    for data in (CLIP.read_bytes(), signed):
        answer = http.post("/v1/audio/detect", files={"file": ("a.wav", data)})
        found = answer.json()
        assert answer.status_code == 200 and found["mark"] is found["confidence"] is None
        assert "serve the model mark_detector, too" in found["mark_unread"]
        assert (found["manifest"] is not None) == (data is signed)
    (tmp_path / "signed.wav").write_bytes(signed)
    assert cli.main(["--url", server.url, "detect", str(tmp_path / "signed.wav")]) == 0
    mark, manifest, _ = capsys.readouterr().out.splitlines()
    assert mark.startswith("no look for a mark: ") and manifest.startswith("a valid manifest, signed by ")
