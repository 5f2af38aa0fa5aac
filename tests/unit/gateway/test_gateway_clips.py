"""Clips that reach the gateway: decoded where the server does not read them, in a process that may die; warnings."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client import InvalidArgument
from voice_clone_client.clips import readable
from voice_clone_gateway import confined, confined_process
from voice_clone_gateway.audio.clips import ClipReader

from tests.support.doubles.command_line import VOICE, answer
from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server
from tests.support.official.phone_clips import CLIP, long_clip, made, phone_clip

VOICES = "/v1/audio/voices"


def confinement_is_known() -> bool:
    """The numbers of calls below are those of this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


WARNINGS = [{"code": "noise", "message": "too noisy; be quiet"}]


def upload(http: Any, name: str, clip: bytes, **fields: str) -> Any:
    form = {"name": "Ada", "consent": "by mail", **fields}
    return http.post(VOICES, data=form, files={"audio_sample": (name, clip, "application/octet-stream")})


def test_detection_of_a_phones_clip(triton: Server, serve: Serve) -> None:
    found = {"mark": None, "confidence": 0.02, "speed": 1.0, "start": 0.0, "seconds": 3.0}
    answer(triton, found)
    http = serve(triton.url)
    sound = phone_clip("voice.m4a")
    reply = http.post("/v1/audio/detect", files={"file": ("voice.m4a", sound, "audio/mp4")})
    unsigned = {"mark_unread": None, "manifest": None, "manifest_unread": None, "statement": None}
    assert (reply.status_code, reply.json()) == (200, {**found, **unsigned})
    assert triton.calls[-1] == ("mark_detector", {"audio": readable(sound)})
    wrong = http.post("/v1/audio/detect", data={"audio": "x"})
    assert wrong.status_code == 400


@pytest.mark.parametrize("name", ["voice.m4a", "browser.webm", "call.amr", "call.3gp"])
def test_an_upload_of_a_phones_clip(name: str, triton: Server, serve: Serve) -> None:
    answer(triton, VOICE)
    http = serve(triton.url)
    assert upload(http, name, phone_clip(name)).status_code == 200
    assert triton.calls[-1][1]["audio"] == readable(phone_clip(name))
    assert upload(http, "clip.wav", CLIP.read_bytes()).status_code == 200
    assert triton.calls[-1][1]["audio"] == CLIP.read_bytes()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: made("video.mp4", sound=False, picture=True), "the clip is a video without sound"),
        (lambda: long_clip("voice.m4a", 40.0), "is 40.0 s long; it must be 1 to 30 s"),
        (lambda: phone_clip("voice.m4a")[:9000], "an MP4 file, but damaged"),
    ],
)
def test_what_is_wrong_is_reported(make: Callable[[], bytes], words: str, triton: Server, serve: Serve) -> None:
    http, clip = serve(triton.url), make()
    refused = upload(http, "a.mp4", clip)
    assert refused.status_code == 400 and words in refused.json()["error"]["message"]
    url = "data:audio/mp4;base64," + base64.b64encode(clip).decode()
    refused = http.post("/v1/audio/speech", json={"input": "Hello.", "model": "qwen3_tts", "ref_audio": url})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "invalid_reference"
    assert words in refused.json()["error"]["message"]


def test_reference_audio_of_a_speech(triton: Server, serve: Serve) -> None:
    url = "data:audio/webm;base64," + base64.b64encode(phone_clip("browser.webm")).decode()
    serve(triton.url).post("/v1/audio/speech", json={"input": "Hello.", "model": "qwen3_tts", "ref_audio": url})
    assert triton.speeches[-1][1]["reference_audio"] == readable(phone_clip("browser.webm"))


def test_the_form_has_strict_trim_silence_and_replace(triton: Server, serve: Serve) -> None:
    answer(triton, VOICE)
    http = serve(triton.url)
    upload(http, "clip.wav", CLIP.read_bytes(), strict="true", trim_silence="true", replace="true")
    assert json.loads(triton.calls[-1][1]["options"]) == {"strict": True, "trim_silence": True, "replace": True}
    upload(http, "clip.wav", CLIP.read_bytes(), strict="false", replace="false")
    assert "options" not in triton.calls[-1][1]
    assert upload(http, "clip.wav", CLIP.read_bytes(), strict="perhaps").status_code == 400


def test_a_bundle_replaces_voices_if_it_says_so(triton: Server, serve: Serve) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1})
    http = serve(triton.url)
    for query, options in (("", None), ("?replace=true", {"replace": True})):
        sent = {"content": b"x", "headers": {"Content-Type": "application/octet-stream"}}
        assert http.post(f"/v1/audio/bundle{query}", **sent).status_code == 200
        assert json.loads(triton.calls[-1][1].get("options", "null")) == options


def test_warnings_of_a_voice(triton: Server, serve: Serve) -> None:
    voice = {**VOICE, "created_at": 1.8e9, "report": {"snr_db": 9.6}, "warnings": WARNINGS}
    http = serve(triton.url)
    answer(triton, voice)
    shown = http.get(f"{VOICES}/ada").json()
    uploaded = upload(http, "clip.wav", CLIP.read_bytes()).json()["voice"]
    answer(triton, {"speakers": [voice, {"name": "Old", "artifacts": []}]})
    listed, old = http.get(VOICES).json()["uploaded_voices"]
    for each in (shown, uploaded, listed):
        assert each["warnings"] == WARNINGS and each["report"] == {"snr_db": 9.6}
    assert old["warnings"] == [] and "report" not in old


# The process


def run(clip: bytes) -> bytes:
    return asyncio.run(ClipReader().readable(clip))


def in_place_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Let a program of the test's decode."""
    (tmp_path / "decoder.py").write_text(program)
    monkeypatch.setattr(confined, "_PROGRAM", "decoder")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_clip_that_kills_its_process_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_place_of_the_process(monkeypatch, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(InvalidArgument, match="an MP4 file, but damaged"):
        run(phone_clip("voice.m4a"))


def test_a_clip_that_takes_for_ever_is_given_up_and_its_process_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[int] = []
    create = asyncio.create_subprocess_exec

    async def noted(*command: Any, **given: Any) -> asyncio.subprocess.Process:
        process = await create(*command, **given)
        begun.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    in_place_of_the_process(monkeypatch, tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(confined, "_SECONDS", 1.0)
    with pytest.raises(InvalidArgument, match="takes too long to decode"):
        run(phone_clip("voice.m4a"))
    [pid] = begun
    assert not Path(f"/proc/{pid}").exists()


def test_the_process_has_little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import sys\nfrom voice_clone_gateway import confined_process\n"
    program += "confined_process.readable = lambda clip: bytes(bytearray(4 << 30)[:1])\n"
    program += "sys.exit(confined_process.main())"
    in_place_of_the_process(monkeypatch, tmp_path, program)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    with pytest.raises(InvalidArgument, match="damaged"):
        run(phone_clip("voice.m4a"))


def in_a_confined_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attack: str) -> bytes:
    """What a program writes that runs in place of the decoder, when all is ready to decode."""
    program = "import ctypes, os, socket, subprocess, sys, threading\n"
    program += "import voice_clone_gateway.confined_process as process\n"
    program += "libc = ctypes.CDLL(None, use_errno=True)\n"
    program += f"def attack(clip):\n    {attack}\n"
    program += "process.readable = attack\nsys.exit(process.main())"
    in_place_of_the_process(monkeypatch, tmp_path, program)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    return run(phone_clip("voice.m4a"))


def test_a_confined_process_lets_all_others_compute_first() -> None:
    program = "import os, sys\nfrom voice_clone_gateway import confined_process as process\nseen = []\n"
    program += "process.TASKS['clip'] = (lambda: seen.append(os.nice(0)), lambda clip: bytes(seen))\n"
    program += "sys.exit(process.main())"
    done = subprocess.run([sys.executable, "-c", program, "clip"], input=b"", capture_output=True, check=True)
    assert list(done.stdout) == [min(19, os.nice(0) + confined_process.NICE)]


def test_a_confined_process_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attack = "return bytes(bytearray(300 << 20)[:2]) + str(sum(range(10**6))).encode() + os.urandom(1)[:0]"
    assert in_a_confined_process(monkeypatch, tmp_path, attack) == b"\0\x00499999500000"


ATTACKS: dict[str, tuple[int, ...]] = {  # and how each may end: the call is refused, or no file may be opened
    "open('/etc/passwd')": (1, 24),
    "os.open('/dev/null', os.O_RDONLY)": (1, 24),
    "os.unlink('/tmp/x')": (1,),
    "os.listdir('/')": (1, 24),
    "os.stat('/')": (1,),
    "socket.socket()": (1, 24),
    "os.dup(0)": (1, 24),
    "os.memfd_create('x')": (1, 24),
    "os.fork()": (1,),
    "os.execv('/bin/true', ['true'])": (1,),
    "os.kill(os.getppid(), 0)": (1,),
    "os.setuid(0)": (1,),
}


@pytest.mark.skipif(not confinement_is_known(), reason="the machine's calls are not known")
def test_a_confined_process_can_do_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = ["found = []"]
    for attack in ATTACKS:
        lines += [f"try: {attack}", "except OSError as error: found.append(error.errno)", "else: found.append(0)"]
    lines.append("return bytes(found)")
    found = in_a_confined_process(monkeypatch, tmp_path, "\n    ".join(lines))
    ends = dict(zip(ATTACKS, found, strict=True))
    assert not {attack: end for attack, end in ends.items() if end not in ATTACKS[attack]}


@pytest.mark.skipif(not confinement_is_known(), reason="the machine's calls are not known")
def test_calls_by_number_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = {
        "ptrace": 101,
        "socket": 41,
        "execve": 59,
        "openat2": 437,
        "io_uring_setup": 425,
        "clone3": 435,
        "bpf": 321,
    }
    calls = f"[(libc.syscall(each, 0, 0, 0, 0), ctypes.get_errno()) for each in {list(numbers.values())}]"
    found = json.loads(in_a_confined_process(monkeypatch, tmp_path, f"return process.json.dumps({calls}).encode()"))
    assert dict(zip(numbers, found, strict=True)) == {name: [-1, 1] for name in numbers}


def test_where_the_kernel_cannot_filter_calls_nothing_can_be_opened_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys\nfrom voice_clone_gateway import confined_process\n"
    program += "from voice_clone_program import confinement\nconfinement._CALLS = {}\n"
    program += (
        "def attack(clip):\n    try: open('/etc/passwd')\n    except OSError as error: return b'%d' % error.errno\n"
    )
    program += "confined_process.readable = attack\nsys.exit(confined_process.main())"
    in_place_of_the_process(monkeypatch, tmp_path, program)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))

    async def twice() -> list[bytes]:
        reader = ClipReader()
        return [await reader.readable(phone_clip("call.amr")) for _ in range(2)]

    assert asyncio.run(twice()) == [b"24", b"24"]
    [record] = [each for each in caplog.records if each.name == confined.log.name]
    assert record.levelname == "WARNING" and "not confined: calls of the system are not filtered on" in record.message


def test_the_process_gets_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOICE_CLONE_GATEWAY_TRITON_TOKEN", "secret")
    names = in_a_confined_process(monkeypatch, tmp_path, "return ' '.join(os.environ).encode()").decode().split()
    assert "PYTHONPATH" in names and not any(name.startswith("VOICE_CLONE") for name in names)


def test_many_at_once_all_end() -> None:
    async def together() -> list[bytes]:
        reader = ClipReader()
        return await asyncio.gather(*(reader.readable(phone_clip("call.amr")) for _ in range(3)))

    assert set(asyncio.run(together())) == {readable(phone_clip("call.amr"))}
