"""The command that plays what it speaks, by players that work and players that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.doubles.command_line import Run, pcm_of, pcm_of_chunks
from tests.support.doubles.triton_double import Server, chunk, endless, speech
from tests.support.waiting import WAIT, until


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
        until(lambda: heard.exists() and heard.stat().st_size == 3840)
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
    triton.play = endless()
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 1
    reason = "could not play: no sound card" if "exit 3" in script else "stopped playing"
    hint = "without a sound device here, save the speech with -o FILE and play it elsewhere"
    assert capsys.readouterr().err == f"voice-clone: aplay {reason}; {hint}\n"
    assert triton.left.acquire(timeout=WAIT)


@pytest.mark.parametrize("script", ["echo no sound card >&2; exit 3", "exit 0", "cat > /dev/null; exit 1"])
@pytest.mark.parametrize("suffix", [".wav", ".mp3"])
def test_a_player_that_gives_up_costs_no_audio(
    triton: Server,
    run: Run,
    tmp_path: Path,
    player: Callable[[str, str], Path],
    capsys: pytest.CaptureFixture[str],
    script: str,
    suffix: str,
) -> None:
    player("aplay", script)
    triton.play = lambda context: iter(speech(60))
    output = tmp_path / f"out{suffix}"
    assert run("speak", "Hi.", "--voice", "Ada", "--play", "-o", output) == 1
    error = capsys.readouterr().err
    assert error.startswith("voice-clone: aplay ")
    assert error.endswith(f"; the whole speech is in {output}\n") and "-o FILE" not in error
    assert suffix == ".mp3" or pcm_of(output) == pcm_of_chunks(60)
    assert not triton.left.acquire(blocking=False)


def test_player_stops_with_a_speech_that_fails(
    triton: Server, run: Run, player: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    player("aplay", "exec sleep 60")
    triton.play = lambda context: iter(speech(3)[:2])
    assert run("speak", "Hi.", "--voice", "Ada", "--play") == 1
    assert capsys.readouterr().err.startswith("voice-clone: broken_stream: ")
