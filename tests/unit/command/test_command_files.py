"""The files that `voice-clone` writes and reads: whole or not there; pipes, stdin, and files without end."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import voice_clone_client as vc
from voice_clone_client import sources
from voice_clone_command import cli
from voice_clone_program.whole_file import WholeFile, whole_file

from tests.support.doubles.command_line import VOICE, Run, answer
from tests.support.doubles.triton_double import Server, speech
from tests.support.official.certificates import SigningFiles

SPEAK = ("speak", "Hi.", "--voice", "Ada", "-o")


@pytest.mark.parametrize("suffix", [".wav", ".m4a", ".flac"])
def test_a_speech_that_breaks_off_leaves_an_older_file(triton: Server, run: Run, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    out.write_bytes(b"before")
    triton.play = lambda context: iter(speech(3)[:2])
    assert run(*SPEAK, out) == 1
    assert out.read_bytes() == b"before" and list(tmp_path.iterdir()) == [out]


def test_a_file_keeps_its_mode_and_its_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real.wav", tmp_path / "link.wav"
    real.write_bytes(b"before")
    real.chmod(0o640)
    link.symlink_to("folder/real.wav")
    assert run(*SPEAK, link) == 0
    assert link.is_symlink() and real.read_bytes()[:4] == b"RIFF" and stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with whole_file(tmp_path / "new") as file:
        file.write(b"new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_of_two_at_once_the_last_one_wins_whole(tmp_path: Path) -> None:
    first, second = WholeFile(tmp_path / "out"), WholeFile(tmp_path / "out")
    first.file.write(b"first")
    second.file.write(b"2")
    second.keep()
    assert (tmp_path / "out").read_bytes() == b"2"
    first.keep()
    assert (tmp_path / "out").read_bytes() == b"first" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("suffix", [".wav", ".mp3"])
def test_a_full_disk(triton: Server, tmp_path: Path, suffix: str) -> None:
    """As a limit of the size of files has it: one line, the older file, and nothing else."""
    out = tmp_path / f"out{suffix}"
    out.write_bytes(b"before")
    triton.play = lambda context: iter(speech(500))
    # not by preexec_fn: gRPC of this process now and then ends its fork
    limit = ["bash", "-c", 'ulimit -f 20; exec "$@"', "bash"]
    command = [*limit, sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, *SPEAK, str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"voice-clone: {out}: File too large\n")
    assert out.read_bytes() == b"before" and list(tmp_path.iterdir()) == [out]


def test_what_is_no_file_is_written_directly(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "pipe.wav").read_bytes()))
    reader.start()
    assert run(*SPEAK, tmp_path / "pipe.wav") == 0
    reader.join()
    assert heard[0][:4] == b"RIFF" and (tmp_path / "pipe.wav").is_fifo()
    assert run(*SPEAK, "/dev/null") == 0


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        WholeFile(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        WholeFile(tmp_path / "absent" / "out.wav")
    assert caught.value.filename == str(tmp_path / "absent" / "out.wav")


def test_a_file_that_cannot_be_signed_replaces_none(
    triton: Server, run: Run, tmp_path: Path, files: SigningFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voice_clone_provenance.manifests import FileSigner

    (tmp_path / "out.wav").write_bytes(b"before")
    signing = ("--sign-key", files.key, "--sign-certificates", files.certificates)
    real = FileSigner.sign

    def sign(self: Any, data: bytes, *arguments: Any) -> bytes:
        if arguments[1:]:
            raise vc.Internal("files cannot be signed any more")
        return real(self, data, *arguments)

    monkeypatch.setattr(FileSigner, "sign", sign)
    assert run(*SPEAK, tmp_path / "out.wav", *signing) == 1
    assert (tmp_path / "out.wav").read_bytes() == b"before"


# What is read


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["-", "/dev/fd/N", "pipe", "file"])
@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["upload", "Ada", "FILE"], "audio"),
        (["import", "FILE"], "audio"),
        (["speak", "Hi.", "-o", "/dev/null", "--reference", "FILE"], "reference_audio"),
        (["speak", "Hi.", "-o", "/dev/null", "--prompt", "FILE"], "voice_prompt"),
        (["upload", "Ada", "/dev/null", "--text-file", "FILE"], "reference_text"),
    ],
)
def test_a_pipe_is_a_file(
    triton: Server,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    words: list[str],
    field: str,
) -> None:
    answer(triton, VOICE if words[0] == "upload" else {"speakers": [VOICE]})
    path, data = tmp_path / "clip", b"the words of a clip"
    writer = None
    if way == "file":
        path.write_bytes(data)
    elif way == "pipe":
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(data,))
        writer.start()
    elif way == "/dev/fd/N":
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        path = Path(f"/dev/fd/{reading}")
    else:
        monkeypatch.setattr(sys, "stdin", Stdin(data))
    assert run(*(("-" if way == "-" else path) if word == "FILE" else word for word in words)) == 0
    sent = triton.speeches if words[0] == "speak" else triton.calls
    assert sent[-1][1][field] == data
    if writer is not None:
        writer.join()


def test_a_file_named_dash(triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(triton, VOICE)
    monkeypatch.chdir(tmp_path)
    Path("-").write_bytes(b"clip")
    assert run("upload", "Ada", "./-") == 0 and triton.calls[-1][1]["audio"] == b"clip"


def test_data_goes_to_stdout_alone(
    triton: Server, run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    answer(triton, {"speakers": [VOICE]}, b"\0bundle\xff")
    assert run("export", "Ada", "-o", "-") == 0
    assert capfdbinary.readouterr() == (b"\0bundle\xff", b"")


def test_stdin_is_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["speak", "-", "--reference", "-", "-o", "out.wav"])
    assert caught.value.code == 2 and "stdin" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["/dev/zero", "file", "bytes of a file"])
def test_a_file_without_end_is_refused(
    triton: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(sources, "LARGEST", 1 << 20)
    monkeypatch.setattr(sources.rest, "__defaults__", (1 << 20,))
    given: Any = source
    if source != "/dev/zero":
        (tmp_path / "clip.wav").write_bytes(bytes(3 << 20))
        given = (tmp_path / "clip.wav") if source == "file" else (tmp_path / "clip.wav").open("rb")
    with vc.Client(triton.url) as client, pytest.raises(vc.InvalidArgument, match="more than 1 MiB"):
        client.upload("Ada", given)
    if source == "bytes of a file":
        given.close()
    assert not triton.calls


def test_an_open_file_is_a_clip(triton: Server, tmp_path: Path) -> None:
    answer(triton, VOICE)
    with vc.Client(triton.url) as client:
        client.upload("Ada", io.BytesIO(b"clip"))
        assert triton.calls[-1][1]["audio"] == b"clip"
        with pytest.raises(vc.InvalidArgument, match="binary"):
            client.upload("Ada", io.StringIO("clip"))  # type: ignore[arg-type]
