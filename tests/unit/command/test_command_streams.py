"""Standard streams that are closed, full or cannot encode a name, and signals while a program begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.command_line import VOICE, answer
from tests.support.doubles.triton_double import Server, endless

NAME = "Łódź"


def shell(triton: Server, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of the shell; `voice-clone` there is that of this Python, against the double."""
    program = f'voice-clone() {{ "{sys.executable}" -m voice_clone_command.cli "$@"; }}\n'
    known = {**os.environ, "VOICE_CLONE_SERVER": triton.url, **environment}
    return subprocess.run(["bash", "-c", program + line], capture_output=True, env=known, stdin=subprocess.DEVNULL)


@pytest.fixture
def listed(triton: Server) -> Server:
    answer(triton, {"speakers": [{**VOICE, "name": NAME}], "count": 1})
    return triton


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "utf-8"},
    ],
)
def test_a_name_that_the_terminal_cannot_show(listed: Server, environment: dict[str, str]) -> None:
    done = shell(listed, "voice-clone list", **environment)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\t") == 3
    assert (NAME.encode() in done.stdout) == (environment.get("PYTHONIOENCODING") == "utf-8")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_leads_nowhere(listed: Server, closed: str) -> None:
    done = shell(listed, f"voice-clone list {closed}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["list", "--help", "speak Hi. --voice Ada -o -"])
def test_a_full_stdout_is_one_line(listed: Server, line: str, unbuffered: str) -> None:
    done = shell(listed, f"voice-clone {line} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, b"voice-clone: stdout: No space left on device\n")


def test_a_failed_handshake_is_one_line(triton: Server) -> None:
    done = shell(triton, "voice-clone list --tls")
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"is TLS on at both ends" in done.stderr


@pytest.mark.parametrize("suffix", ["wav", "mp3", "webm"])
def test_a_full_disk_is_one_line(triton: Server, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"full.{suffix}"
    file.symlink_to("/dev/full")
    done = shell(triton, f"voice-clone speak Hi. --voice Ada -o {file}")
    assert (done.returncode, done.stderr) == (1, f"voice-clone: {file}: No space left on device\n".encode())


def test_audio_for_a_closed_stdout_is_refused(triton: Server) -> None:
    done = shell(triton, "voice-clone speak Hi. --voice Ada -o - >&-")
    assert (done.returncode, done.stderr) == (1, b"voice-clone: stdout: it is closed\n")


def test_a_closed_stdin_is_an_empty_text(triton: Server) -> None:
    assert b"Traceback" not in shell(triton, "voice-clone speak - --voice Ada -o /dev/null <&-").stderr


def test_an_argument_that_is_not_utf8(triton: Server) -> None:
    done = shell(triton, "voice-clone delete $'X\\xff'")
    assert (
        done.returncode == 1 and done.stderr == b"voice-clone: invalid_argument: NAME cannot be sent: it is not UTF-8\n"
    )
    answer(triton, {})
    done = shell(triton, f"voice-clone delete {NAME}", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    assert done.returncode == 0 and triton.calls[-1][1]["name"] == NAME.encode()


@pytest.mark.parametrize("words", ["--model $'X\\xff' speak Hi. --voice Ada -o -", "list --url $'X\\xff'"])
def test_an_option_of_the_connection_that_is_not_utf8(triton: Server, words: str) -> None:
    done = shell(triton, f"voice-clone {words}")
    assert done.returncode == 1 and done.stderr.startswith(b"voice-clone: invalid_argument: --")


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}],
)
def test_a_text_on_stdin_is_utf8_or_refused(triton: Server, environment: dict[str, str], tmp_path: Path) -> None:
    def speak(text: bytes, more: str = "--non-streaming-mode") -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "text").write_bytes(text)
        return shell(
            triton, f"voice-clone speak - --voice Ada -o /dev/null {more} < {tmp_path / 'text'}", **environment
        )

    usual, triton.play = triton.play, endless()  # as a server whose speech has no end before its text has
    refused = speak("Grün.".encode("latin-1"), "")
    triton.play = usual
    for done in (refused, speak("Grün.".encode("utf-16"))):
        assert done.returncode == 1 and b"stdin is not UTF-8" in done.stderr and done.stderr.count(b"\n") == 1
    speak("\ufeffGrün.".encode())
    assert triton.speeches[-1][1]["text"] == "Grün.".encode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["voice_clone_command.cli", "voice_clone_gateway"])
def test_a_signal_while_it_imports(tmp_path: Path, module: str, number: int) -> None:
    """What is imported first that takes time is numpy, or FastAPI."""
    for name in ("numpy", "fastapi"):
        (tmp_path / f"{name}.py").write_text("import time\nprint('x', flush=True)\ntime.sleep(60)\n")
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", module, *(["list"] if module.endswith("cli") else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"x\n"
        process.send_signal(number)
        assert process.communicate(timeout=30) == (b"", b"") and process.returncode == 128 + number
