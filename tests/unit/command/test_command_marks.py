"""`voice-clone speak --mark`, and what files say of themselves: as those of the gateway do."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import grpc
import numpy as np
import pytest
from voice_clone_client.wav import WavWriter
from voice_clone_command import cli
from voice_clone_command.audio_file import SUFFIXES, AudioFile
from voice_clone_gateway.audio import Encoder
from voice_clone_provenance.manifests import TYPES, read
from voice_clone_provenance.statements import Statement, find

from tests.support.doubles.command_line import Run
from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.official.certificates import signing_files
from tests.support.official.encoded_sound import RATE, SOUND, encode

MARKED = Statement("qwen3_tts", "marked")
TAGGED = [suffix for suffix in SUFFIXES if suffix != ".aac"]  # ADTS has no place


def mark(triton: Server, said: str | None) -> None:
    """Let the server say this of the mark, on the first and the last chunk."""
    info = {} if said is None else {"mark": said}
    triton.play = lambda context: iter([chunk(0, info={"cache": "hit", **info}), chunk(1, final=True, info=info)])


def tag_of(data: bytes) -> str | None:
    """The comment that FFmpeg finds in a file."""
    with av.open(io.BytesIO(data)) as file:
        tags = {**file.metadata, **file.streams[0].metadata}
    return next((value for name, value in tags.items() if name.lower() == "comment"), None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_marked_speech_says_so_in_its_tag(suffix: str, triton: Server, run: Run, tmp_path: Path) -> None:
    out = tmp_path / f"out{suffix}"
    for said in ("marked", "failed", None):
        mark(triton, said)
        assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 0
        expected = Statement("qwen3_tts", said) if said is not None and suffix in TAGGED else None
        assert find(out.read_bytes()) == expected
        assert tag_of(out.read_bytes()) == (None if expected is None else str(expected))
        assert triton.stats_calls == len(triton.spoken), "the family is asked for once, with the speech"


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus"])
def test_it_is_the_tag_of_the_gateway(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{name}"
    with path.open("wb") as file, (WavWriter if name == "wav" else AudioFile)(file, RATE, str(MARKED)) as writer:
        writer.write(SOUND)
    encoded = b"".join(encode(Encoder(name, RATE, streaming=False, comment=str(MARKED)), SOUND))
    assert tag_of(path.read_bytes()) == tag_of(encoded) == str(MARKED)
    if name == "wav":
        assert path.read_bytes() == encoded
    plain = tmp_path / f"plain.{name}"
    with plain.open("wb") as file, (WavWriter if name == "wav" else AudioFile)(file, RATE) as writer:
        writer.write(SOUND)
    with av.open(str(path)) as one, av.open(str(plain)) as other:
        for first, second in zip(one.decode(audio=0), other.decode(audio=0), strict=True):
            np.testing.assert_array_equal(first.to_ndarray(), second.to_ndarray())


@pytest.mark.parametrize("suffix", TYPES)
def test_a_file_with_both(suffix: str, triton: Server, run: Run, tmp_path: Path) -> None:
    files, out = signing_files(tmp_path), tmp_path / f"out{suffix}"
    mark(triton, "marked")
    signing = ("--sign-key", files.key, "--sign-certificates", files.certificates)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, *signing) == 0
    manifest = read(out.read_bytes())
    assert manifest is not None and manifest.valid and find(out.read_bytes()) == MARKED


def test_raw_samples_have_no_tag(triton: Server, run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    mark(triton, "marked")
    assert run("speak", "Hi.", "--voice", "Ada", "-o", "-") == 0
    out = capfdbinary.readouterr().out
    assert len(out) == 2 * 2 * 1920 and find(out) is None


@pytest.mark.parametrize("wish", ["off", "on", "required"])
def test_the_option(wish: str, triton: Server, run: Run, tmp_path: Path) -> None:
    mark(triton, "marked" if wish != "off" else None)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav", "--mark", wish) == 0
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "plain.wav") == 0
    assert [speech.mark for speech in triton.spoken] == [wish, ""]
    assert find((tmp_path / "out.wav").read_bytes()) == (MARKED if wish != "off" else None)


def test_a_server_that_marks_nothing(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(context: grpc.ServicerContext) -> Iterator[Any]:
        text = "unsupported: this server marks no speech, and the request has `mark on`; serve it with mark requested"
        raise Failure(grpc.StatusCode.UNIMPLEMENTED, text)

    triton.play = refuse
    out = tmp_path / "out.wav"
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, "--mark", "on") == 1
    said = capsys.readouterr().err
    assert said.startswith("voice-clone: unsupported: this server marks no speech, and the request has --mark on; ")
    assert said.count("\n") == 1
    mark(triton, None)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, "--mark", "required") == 1
    assert "unsupported: this server does not know --mark required" in capsys.readouterr().err
    assert not out.exists()


def test_a_mark_that_failed(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark(triton, "failed")
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav", "--mark", "on") == 0
    assert "could not be marked as synthetic" in capsys.readouterr().err


# detect


def test_a_server_without_the_detector(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifest and tag are read all the same; so they are without any server."""
    files, out = signing_files(tmp_path), tmp_path / "out.wav"
    mark(triton, "marked")
    signing = ("--sign-key", files.key, "--sign-certificates", files.certificates)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, *signing) == 0

    def unknown(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'mark_detector' is not found")

    triton.answer = unknown
    capsys.readouterr()
    assert run("detect", out) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("no look for a mark: this server does not look for marks; serve the model mark_detector")
    assert second.startswith("a valid manifest") and third.startswith("a tag says: made by a model")
    assert cli.main(["--url", "127.0.0.1:9", "detect", "--json", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mark"] is found["confidence"] is None and "cannot be reached" in found["mark_unread"]
    assert found["manifest"]["valid"] is True and found["statement"]["mark"] == "marked"


def test_a_file_of_which_nothing_can_be_said(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: the `audio` cannot be decoded")

    triton.answer = refuse
    (tmp_path / "text.wav").write_bytes(b"no audio")
    assert run("detect", tmp_path / "text.wav") == 1
    assert capsys.readouterr() == ("", "voice-clone: invalid_argument: FILE cannot be decoded\n")
    assert run("detect", tmp_path / "absent.wav") == 1


def test_an_unknown_wish(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["speak", "Hi.", "--voice", "Ada", "-o", "out.wav", "--mark", "yes"])
    assert "--mark: invalid choice: 'yes'" in capsys.readouterr().err
