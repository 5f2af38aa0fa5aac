"""POST /v1/audio/detect: the manifest and the tag of a file, read in a process that may die."""

from __future__ import annotations

import asyncio
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from voice_clone_client import Unsupported
from voice_clone_gateway import confined
from voice_clone_gateway.audio import Encoder
from voice_clone_gateway.provenance.manifest_reader import ManifestReader
from voice_clone_provenance.manifests import TYPES, FileSigner, Manifest, read
from voice_clone_provenance.statements import Statement

from tests.support.doubles.command_line import answer
from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.official.certificates import ORGANISATION, signing_files
from tests.support.official.encoded_sound import RATE, SOUND, encode, file

pytestmark = pytest.mark.thorough

DIGEST = 32 * "c5"
UNMARKED = {"mark": None, "confidence": 0.02, "speed": 1.0, "start": 0.0, "seconds": 3.0}
SPEECH = {"input": "Hello there.", "voice": "ada"}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Signed files by their formats."""
    files = signing_files(tmp_path_factory.mktemp("certificates"))
    signer = FileSigner(files.certificates, files.key)
    return {
        name: signer.sign(file(name, streaming=False), TYPES[f".{name}"], "some_family", DIGEST, "form 12")
        for name in ("wav", "mp3", "flac")
    }


def detect(http: httpx2.Client, data: bytes) -> Any:
    reply = http.post("/v1/audio/detect", files={"file": ("a", data)})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_manifest(signed: dict[str, bytes], shared: Shared) -> None:
    triton, http = shared
    answer(triton, UNMARKED)
    found = detect(http, signed["mp3"])
    expected = read(signed["mp3"])
    assert expected is not None and found["manifest"] == {**asdict(expected), "faults": []}
    assert found["manifest"]["valid"] is True and found["manifest"]["signer"] == ORGANISATION
    assert (found["manifest"]["voice_digest"], found["manifest"]["consent"]) == (DIGEST, "form 12")
    assert found["manifest_unread"] is None and found["statement"] is None
    changed = bytearray(signed["mp3"])
    changed[-9] ^= 1
    broken = detect(http, bytes(changed))["manifest"]
    assert broken["valid"] is False and broken["faults"]
    without = {"mark_unread": None, "manifest": None, "manifest_unread": None, "statement": None}
    assert detect(http, file("mp3", streaming=False)) == UNMARKED | without


def test_what_the_gateway_itself_sends(triton: Server, serve: Serve, tmp_path: Path) -> None:
    files = signing_files(tmp_path)
    http = serve(triton.url, signing_certificates=str(files.certificates), signing_key=str(files.key))
    info = {"mark": "marked", "voice": "Ada", "voice_digest": DIGEST}
    answer(triton, UNMARKED)
    for name in ("wav", "mp3", "flac", "opus"):
        for more in ({}, {"stream": False}):
            triton.play = lambda context: iter([chunk(0, final=True, info=info)])
            found = detect(http, http.post("/v1/audio/speech", json=SPEECH | {"response_format": name} | more).content)
            assert found["statement"] == asdict(Statement("qwen3_tts", "marked"))
            manifest = found["manifest"]
            assert (manifest is not None) == (bool(more) and name != "opus")
            assert manifest is None or (manifest["valid"], manifest["voice_digest"]) == (True, DIGEST)


@pytest.mark.parametrize("data", [b"", b"c2pa", b"RIFF\4\0\0\0WAVEc2pa", b"ID3\4\0\0\xff\xff\xff\xffc2pa", b"fLaCc2pa"])
def test_bytes_that_are_no_file(data: bytes, shared: Shared) -> None:
    triton, http = shared
    answer(triton, UNMARKED)
    found = detect(http, data)
    assert found["statement"] is None and found["manifest_unread"] is None
    assert found["manifest"] is None or (found["manifest"]["valid"] is False and found["manifest"]["faults"])


NO_DETECTOR = "Request for unknown model: 'mark_detector' is not found"
UNHEARD = dict.fromkeys(("mark", "confidence", "speed", "start", "seconds"))


def refuse(triton: Server, code: grpc.StatusCode, text: str) -> None:
    def answered(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(code, text)

    triton.answer = answered


def test_a_server_without_the_detector(signed: dict[str, bytes], shared: Shared) -> None:
    """What needs no detector is said all the same."""
    triton, http = shared
    refuse(triton, grpc.StatusCode.NOT_FOUND, NO_DETECTOR)
    said = Statement("some_family", "marked")
    tagged = b"".join(encode(Encoder("mp3", RATE, comment=str(said)), SOUND))
    for data, statement in ((signed["mp3"], None), (tagged, asdict(said)), (file("wav"), None), (b"no audio", None)):
        found = detect(http, data)
        assert {name: found[name] for name in UNHEARD} == UNHEARD
        assert "serve the model mark_detector, too" in found["mark_unread"]
        assert (found["manifest"] is not None and found["manifest"]["valid"]) == (data is signed["mp3"])
        assert found["statement"] == statement and found["manifest_unread"] is None


def test_a_sound_that_the_detector_refuses(signed: dict[str, bytes], shared: Shared) -> None:
    triton, http = shared
    refuse(triton, grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: the audio is 0.04 s long")
    found = detect(http, signed["wav"])
    assert found["mark_unread"] == "the audio is 0.04 s long" and found["manifest"]["valid"] is True
    reply = http.post("/v1/audio/detect", files={"file": ("a", file("wav"))})
    assert reply.status_code == 400 and "0.04 s long" in reply.text, "nothing was found in it"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_detector_that_is_away_for_a_while(
    code: grpc.StatusCode, signed: dict[str, bytes], triton: Server, serve: Serve
) -> None:
    """That is an error: the same request finds the mark later."""
    refuse(triton, code, "try again")
    reply = serve(triton.url).post("/v1/audio/detect", files={"file": ("a", signed["wav"])})
    assert reply.status_code in (503, 504)


# The process


def run(data: bytes) -> Manifest | None:
    return asyncio.run(ManifestReader().read(data))


def in_place_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Let a program of the test's read."""
    (tmp_path / "reader.py").write_text(program)
    monkeypatch.setattr(confined, "_PROGRAM", "reader")
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))


def test_a_file_that_kills_its_process(
    signed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_place_of_the_process(monkeypatch, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = run(signed["wav"])
    assert found is not None and not found.valid and found.faults == ("it cannot be read",)
    assert run(file("wav")) is None, "no process starts for a file without the label of a manifest"


def test_a_file_that_takes_for_ever(signed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_place_of_the_process(monkeypatch, tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(confined, "_SECONDS", 1.0)
    found = run(signed["wav"])
    assert found is not None and not found.valid and found.faults == ("it takes too long to read",)


def test_without_the_package(
    signed: dict[str, bytes], triton: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = "import sys\nsys.modules['c2pa'] = None\nfrom voice_clone_gateway.confined_process import main\n"
    in_place_of_the_process(monkeypatch, tmp_path, f"{program}sys.exit(main())")
    with pytest.raises(Unsupported, match="pip install c2pa-python"):
        run(signed["wav"])
    answer(triton, UNMARKED)
    found = detect(serve(triton.url), signed["wav"])
    assert found["manifest"] is None and "pip install c2pa-python" in found["manifest_unread"]
    assert found["mark_unread"] is None
    refuse(triton, grpc.StatusCode.NOT_FOUND, NO_DETECTOR)
    reply = serve(triton.url).post("/v1/audio/detect", files={"file": ("a", signed["wav"])})
    assert reply.status_code == 501, "nothing could be looked for"


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="calls are not known there")
def test_the_process_is_confined(signed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attacks = ("open('/etc/passwd')", "os.fork()", "socket.socket()", "os.kill(os.getppid(), 0)")
    tries = "".join(
        f"    try: {each}\n    except OSError as error: found.append(str(error.errno))\n" for each in attacks
    )
    program = (
        "import os, socket, sys\nimport voice_clone_gateway.confined_process as process\n"
        "from voice_clone_provenance.manifests import broken\n"
        f"def attack(data):\n    found = []\n{tries}    return broken(' '.join(found))\n"
        "process._load_c2pa(); process.TASKS['manifest'] = (lambda: None, process._read_manifest)\n"
        "process.read = attack\nsys.exit(process.main())"
    )
    in_place_of_the_process(monkeypatch, tmp_path, program)
    found = run(signed["wav"])
    assert found is not None
    errors = found.faults[0].split()
    assert len(errors) == len(attacks) and set(errors) <= {"1", "24"}
