"""The command line: arguments, output, exit codes; against the protocol double."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import save
from voice_clone_client import cli, embedding, pcm16

from tests.unit.client.triton_double import RATE, Failure, Server, chunk, samples_of, speech

VOICE = {
    "name": "Ada",
    "generation": 3,
    "duration": 2.5,
    "artifacts": [{"model_type": "qwen3_tts", "mode": "icl", "state": "ready"}],
}
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
LINE = "Ada\tgeneration 3\t2.5 s\tqwen3_tts icl ready\n"
Run = Callable[..., int]


@pytest.fixture
def run(triton: Server) -> Run:
    """Runs `voice-clone` against the double, in this process."""
    return lambda *arguments: cli.main(["--url", triton.url, *map(str, arguments)])


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(triton: Server, *arguments: object) -> list[str]:
    """The same as a command for a process of its own."""
    return [sys.executable, "-m", "voice_clone_client.cli", "--url", triton.url, *map(str, arguments)]


def answer(triton: Server, value: Any, artifacts: bytes = b"") -> None:
    triton.answer = lambda inputs: {"result": json.dumps(value).encode(), "artifacts": artifacts}


def endless(context: grpc.ServicerContext) -> Iterator[Any]:
    index = 0
    while context.is_active():
        yield chunk(index)
        index += 1
        time.sleep(0.02)


def pcm_of(path: Path) -> bytes:
    """The PCM of a WAV whose sizes are exactly right."""
    with wave.open(str(path)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (RATE, 1, 2)
        assert path.stat().st_size == 44 + 2 * wav.getnframes()
        return bytes(wav.readframes(wav.getnframes()))


def pcm_of_chunks(count: int) -> bytes:
    return b"".join(pcm16(samples_of(index, 1920)) for index in range(count))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["shout"],
        ["upload", "Ada"],
        ["upload", "Ada", "a.wav", "--embedding", "a.npy"],
        ["upload", "Ada", "a.wav", "--text", "a", "--text-file", "b"],
        ["speak", "Hi."],
        ["speak", "Hi.", "--voice", "Ada"],
        ["speak", "Hi.", "-o", "out.wav"],
        ["speak", "Hi.", "--voice", "Ada", "--reference", "a.wav", "-o", "out.wav"],
        ["speak", "Hi.", "--voice", "Ada", "-o", "out.wav", "--top-k", "many"],
        ["speak", "Hi.", "--voice", "Ada", "--seed", "5"],
        ["export"],
        ["embedding"],
        ["embedding", "extract", "Ada"],
        ["embedding", "blend", "Ada", "Ben"],
        ["embedding", "blend", "Ada", "Ben", "-o", "a.npy", "--method", "cubic"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: voice-clone" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name in (
        "upload",
        "list",
        "get",
        "delete",
        "prepare",
        "stats",
        "export",
        "import",
        "speak",
        "embedding",
        "doctor",
    ):
        assert f"    {name}" in text


def test_the_token_comes_from_the_option_or_the_environment(
    triton: Server, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("delete", "Ada") == 0
    monkeypatch.setenv("VOICE_CLONE_TOKEN", "from-the-environment")
    assert run("delete", "Ada") == run("--token", "from-the-option", "delete", "Ada") == 0
    sent = [metadata.get("x-voice-token") for metadata in triton.metadata]
    assert sent == [None, "from-the-environment", "from-the-option"]


def test_help_does_not_show_the_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VOICE_CLONE_TOKEN", "s3cret")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "s3cret" not in capsys.readouterr().out


def test_an_authority_s_file_that_is_absent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--ca", "absent.pem", "list") == 1
    assert capsys.readouterr().err == "voice-clone: absent.pem: No such file or directory\n"


def test_upload(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    (tmp_path / "a.wav").write_bytes(b"clip")
    (tmp_path / "a.txt").write_text("Said in the clip.\n", encoding="utf-8")
    note = ["--consent", "signed", "--description", "calm", "--immutable"]
    assert run("upload", "Ada", tmp_path / "a.wav", "--text-file", tmp_path / "a.txt", *note) == 0
    inputs = triton.calls[-1][1]
    assert json.loads(inputs.pop("options")) == {"wait": True, "policy": "immutable"}
    assert inputs == {
        "operation": b"upload",
        "name": b"Ada",
        "model_type": b"qwen3_tts",
        "audio": b"clip",
        "reference_text": b"Said in the clip.",
        "consent": b"signed",
        "description": b"calm",
    }
    assert capsys.readouterr() == (LINE, "")
    assert run("upload", "Ada", tmp_path / "a.wav", "--no-wait", "--text", "Said.") == 0
    assert "options" not in triton.calls[-1][1]
    assert triton.calls[-1][1]["reference_text"] == b"Said."


def test_upload_of_an_embedding(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    np.save(tmp_path / "a.npy", np.array([1.0, 2.0]))
    assert run("upload", "Ada", "--embedding", tmp_path / "a.npy") == 0
    assert triton.calls[-1][1]["speaker_embedding"].tolist() == [1.0, 2.0]
    capsys.readouterr()
    (tmp_path / "b.npy").write_text("no array")
    assert run("upload", "Ada", "--embedding", tmp_path / "b.npy") == 1
    assert "is no .npy file" in capsys.readouterr().err


def test_upload_that_cannot_be_prepared(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"model_type": "qwen3_tts", "mode": "icl", "state": "failed", "reason": "no encoder is loaded"}
    answer(triton, {**VOICE, "artifacts": [failed]})
    (tmp_path / "a.wav").write_bytes(b"clip")
    assert run("upload", "Ada", tmp_path / "a.wav") == 1
    out, err = capsys.readouterr()
    assert out.startswith("Ada\t") and "no encoder is loaded" in err


def test_list_and_get(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [VOICE, {"name": "世界", "generation": 1}], "count": 2})
    assert run("list") == 0
    assert capsys.readouterr().out == LINE + "世界\tgeneration 1\tembedding\t\n"
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [VOICE, {"name": "世界", "generation": 1}]
    answer(triton, VOICE)
    assert run("get", "Ada") == 0
    assert json.loads(capsys.readouterr().out) == VOICE


def test_delete_prepare_stats(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    assert run("delete", "Ada") == 0
    assert triton.calls[-1][1] == {"operation": b"delete", "name": b"Ada"}
    assert run("prepare", "Ada", "--force") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"force": True}
    assert run("prepare", "Ada", "--mode", "x_vector", "--wait-seconds", "2.5") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"mode": "x_vector", "timeout": 2.5}
    assert capsys.readouterr().out == LINE * 2
    answer(triton, {"hits": 1})
    assert run("stats") == 0
    assert json.loads(capsys.readouterr().out) == {"hits": 1}


def test_doctor(triton: Server, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1})
    monkeypatch.setenv("PATH", "")
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"model\tqwen3_tts is ready at {triton.url}\nvoices\t1\nplayer\tno audio player found")
    assert run("--model", "fish", "doctor") == 1
    assert "its model fish is not ready" in capsys.readouterr().err


def test_export_and_import(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1}, b"\0bundle\xff")
    bundle = tmp_path / "voices.bundle"
    assert run("export", "Ada", "-o", bundle) == 0
    assert bundle.read_bytes() == b"\0bundle\xff"
    assert "options" not in triton.calls[-1][1]
    assert run("export", "-o", bundle, "--no-audio") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"include_audio": False}
    assert run("import", bundle, "--reextract") == 0
    assert triton.calls[-1][1]["audio"] == b"\0bundle\xff"
    assert json.loads(triton.calls[-1][1]["options"]) == {"reextract": True}
    assert capsys.readouterr().out == LINE


def test_speak_to_a_file(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.wav"
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 0
    assert pcm_of(out) == pcm_of_chunks(3)
    assert triton.calls == [("qwen3_tts", {"text": b"Hi.", "voice": b"Ada"})]  # what was not given is not sent
    assert capsys.readouterr() == ("", "")  # stderr is no terminal


def test_speak_options(triton: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"clip")
    options = (
        "--reference-text Said. --language German --seed 5 --max-frames 7 --temperature 0.5 --top-k 3 --top-p 0.25 "
        "--repetition-penalty 1.5 --no-do-sample --subtalker-temperature 2 --subtalker-top-k 4 --subtalker-top-p 0.75 "
        "--subtalker-do-sample --non-streaming-mode --no-x-vector-only --deadline 5"
    )
    source = ["--reference", tmp_path / "a.wav"]
    assert run("speak", "Hi.", *source, "-o", tmp_path / "out.wav", *options.split()) == 0
    inputs = triton.calls[0][1]
    assert {name: value if isinstance(value, bytes) else value.item() for name, value in inputs.items()} == {
        "text": b"Hi.",
        "reference_audio": b"clip",
        "reference_text": b"Said.",
        "language": b"German",
        "seed": 5,
        "max_frames": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "repetition_penalty": 1.5,
        "do_sample": False,
        "subtalker_temperature": 2.0,
        "subtalker_top_k": 4,
        "subtalker_top_p": 0.75,
        "subtalker_do_sample": True,
        "non_streaming_mode": True,
        "x_vector_only": False,
    }


def test_speak_from_stdin_to_stdout(triton: Server) -> None:
    process = subprocess.run(
        command(triton, "speak", "-", "--voice", "Ada", "-o", "-"),
        input=b"From stdin.",
        capture_output=True,
        env=BUFFERED,
        timeout=30,
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout == pcm_of_chunks(3)
    assert triton.calls[0][1]["text"] == b"From stdin."


@pytest.mark.parametrize("existing", [False, True])
def test_speak_that_fails_at_once_leaves_the_file_alone(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: bool
) -> None:
    out = tmp_path / "out.wav"
    if existing:
        out.write_bytes(b"before")

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice\nis registered under the name 'Ada'")
        yield

    triton.play = play
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 1
    assert capsys.readouterr().err == (
        "voice-clone: speaker_not_found: no voice is registered under the name 'Ada'\n"  # one line
    )
    assert out.read_bytes() == b"before" if existing else not out.exists()


def test_speak_that_breaks_off_leaves_a_valid_file(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.play = lambda context: iter(speech(3)[:2])
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav") == 1
    assert pcm_of(tmp_path / "out.wav") == pcm_of_chunks(2)
    assert capsys.readouterr().err.startswith("voice-clone: broken_stream: ")


def start(triton: Server, output: object) -> subprocess.Popen[bytes]:
    """`voice-clone speak` in a process of its own."""
    speak = command(triton, "speak", "Hi.", "--voice", "Ada", "-o", output)
    return subprocess.Popen(speak, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Makes the only player on the PATH: a script of that name; answers where it may leave what it heard."""

    def make(name: str, script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\nheard={tmp_path / 'heard'}\n{script}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path / "heard"

    return make


@pytest.mark.parametrize("name", ["paplay", "aplay", "play", "ffplay"])
def test_speak_plays_and_saves(
    triton: Server, run: Run, tmp_path: Path, player: Callable[[str, str], Path], name: str
) -> None:
    heard = player(name, 'echo "$*" > "$heard.options"; cat > "$heard"')
    assert run("speak", "Hi.", "--voice", "Ada", "--play", "-o", tmp_path / "out.wav") == 0
    assert heard.read_bytes() == pcm_of_chunks(3) == pcm_of(tmp_path / "out.wav")
    assert "24000" in heard.with_suffix(".options").read_text()


def test_playing_begins_before_the_speech_is_whole(
    triton: Server, run: Run, player: Callable[[str, str], Path]
) -> None:
    heard = player("aplay", 'head -c 3840 > "$heard"; cat >> "$heard"')

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        until = time.monotonic() + 20
        while not (heard.exists() and heard.stat().st_size == 3840):
            assert time.monotonic() < until
            time.sleep(0.01)
        yield chunk(1, final=True)

    triton.play = play
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 0
    assert heard.read_bytes() == pcm_of_chunks(2)


def test_no_player(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 1
    assert "no audio player found; install one of" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["echo first >&2; echo no sound card >&2; exit 3", "exit 0"])
def test_player_that_gives_up(
    triton: Server, run: Run, player: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str], script: str
) -> None:
    player("aplay", script)
    triton.play = endless
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 1
    reason = "could not play: no sound card" if "exit 3" in script else "stopped playing"
    assert capsys.readouterr().err == f"voice-clone: aplay {reason}\n"
    assert triton.left.acquire(timeout=10)


def test_player_stops_with_a_speech_that_fails(
    triton: Server, run: Run, player: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    player("aplay", "exec sleep 60")
    triton.play = lambda context: iter(speech(3)[:2])
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 1
    assert capsys.readouterr().err.startswith("voice-clone: broken_stream: ")


def embeddings(triton: Server, **known: list[float]) -> None:
    """The double knows the speaker embeddings of these voices, and answers every upload."""

    def reply(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"resolve":
            values = np.array(known[inputs["name"].decode()], np.float32)
            return {"result": b"{}", "artifacts": save({"speaker_embedding": values})}
        return {"result": json.dumps(VOICE).encode(), "artifacts": b""}

    triton.answer = reply


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_embedding_extract(triton: Server, run: Run, tmp_path: Path, suffix: str) -> None:
    embeddings(triton, Ada=[1.0, 2.0])
    path = tmp_path / f"ada{suffix}"
    assert run("embedding", "extract", "Ada", "-o", path) == 0
    assert triton.calls[-1][1] == {"operation": b"resolve", "name": b"Ada", "model_type": b"qwen3_tts"}
    assert embedding.load(path).tolist() == [1.0, 2.0]
    assert run("upload", "Ben", "--embedding", path) == 0
    assert triton.calls[-1][1]["speaker_embedding"].tolist() == [1.0, 2.0]


def test_embedding_blend(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings(triton, Ada=[1.0, 0.0])
    np.save(tmp_path / "b.npy", np.array([0.0, 1.0]))
    ends = ["Ada", tmp_path / "b.npy"]
    straight = ["--method", "linear", "--weight", "0.25", "-o", tmp_path / "out.safetensors"]
    assert run("embedding", "blend", *ends, *straight) == 0
    assert embedding.load(tmp_path / "out.safetensors").tolist() == [0.75, 0.25]
    assert run("embedding", "blend", *ends, "--register", "Between", "--consent", "signed") == 0
    inputs = triton.calls[-1][1]
    np.testing.assert_allclose(inputs["speaker_embedding"], np.sqrt([0.5, 0.5]), rtol=1e-6)
    assert (inputs["name"], inputs["consent"]) == (b"Between", b"signed")
    assert inputs["description"].startswith(b"spherical blend of Ada and ")
    assert capsys.readouterr().out == LINE


def test_ctrl_c_stops_the_server_and_leaves_a_valid_file(triton: Server, tmp_path: Path) -> None:
    triton.play = endless
    out = tmp_path / "out.wav"
    process = start(triton, out)
    until = time.monotonic() + 20
    while not (out.exists() and out.stat().st_size > 20000):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (130, b"", b"")
    pcm = pcm_of(out)
    assert len(pcm) >= 3840 and len(pcm) % 3840 == 0
    assert pcm == pcm_of_chunks(len(pcm) // 3840)
    assert triton.left.acquire(timeout=10)


def test_reader_of_stdout_goes_away(triton: Server) -> None:
    received = threading.Event()

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        assert received.wait(20)
        yield from (chunk(index) for index in range(1, 10000))

    triton.play = play
    process = start(triton, "-")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(3840) == pcm_of_chunks(1)  # nothing is held back
    process.stdout.close()
    received.set()
    assert process.wait(timeout=20) == 1
    assert process.stderr.read() == b"voice-clone: the reader of the output went away\n"
    process.stderr.close()
    assert triton.left.acquire(timeout=10)


def test_progress_on_a_terminal(triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav") == 0
    updates = terminal.getvalue().split("\r\x1b[K")
    assert len(updates) == 4 and updates[0] == "" and updates[-1].endswith("\n")
    assert updates[-1].startswith("0.2 s of audio, first after ")
    assert "real-time factor" in updates[-1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["upload", "Ada", "missing.wav"], "missing.wav: No such file or directory"),
        (["import", "missing.bundle"], "missing.bundle: No such file or directory"),
        (["speak", "Hi.", "--voice", "Ada", "-o", "missing/out.wav"], "missing/out.wav: No such file or directory"),
        (["speak", "Hi.", "--voice", "Ada", "-o", "a.wav", "--seed", "-1"], "invalid_argument: seed cannot be sent"),
    ],
)
def test_failures_are_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Any,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"voice-clone: {text}") and error.count("\n") == 1


def test_transcript_that_is_no_text(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfd")
    assert run("upload", "Ada", "a.wav", "--text-file", tmp_path / "a.txt") == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--url", "127.0.0.1:1", "list"]) == 1
    assert capsys.readouterr().err.startswith("voice-clone: connection_failed: ")


def test_installed_command_has_a_version() -> None:
    script = Path(sys.executable).with_name("voice-clone")
    if not script.exists():
        pytest.skip("the client is not installed in this environment")
    process = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=30)
    assert process.stdout.strip() == "0.1.0"
