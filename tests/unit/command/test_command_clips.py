"""The command and a clip: what a phone recorded, what is wrong with it, what was cut off it; against the double."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client.clips import readable

from tests.support.doubles.command_line import LINE, VOICE, Run, answer
from tests.support.doubles.triton_double import Server
from tests.support.official.phone_clips import made, phone_clip

REPORT = {
    "speech_seconds": 2.1, "leading_silence": 0.3, "trailing_silence": 0.05, "peak_dbfs": -3.0, "level_dbfs": -21.4,
    "snr_db": 9.6, "clipped_share": 0.00031, "dc_offset": 0.001, "speaking_rate": 4.2,
    "trimmed_start": 1.2, "trimmed_end": 0.0,
}  # fmt: skip
WARNINGS = [{"code": "noise", "message": "too noisy; be quiet"}, {"code": "clipping", "message": "too loud"}]
FAULTY: dict[str, Any] = {**VOICE, "report": REPORT, "warnings": WARNINGS}
CUT = "trimmed: 1.20 s of silence at the start and 0.00 s at the end of the clip were cut off"


@pytest.mark.parametrize("name", ["voice.m4a", "video.mp4", "browser.webm", "call.amr", "call.3gp"])
def test_upload_of_a_phones_clip(
    name: str, triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(phone_clip(name))
    answer(triton, VOICE)
    assert run("upload", "Ada", tmp_path / name) == 0
    assert triton.calls[-1][1]["audio"] == readable(phone_clip(name))
    assert capsys.readouterr() == (LINE, "")


def test_a_clip_that_cannot_be_read_is_reported_in_one_line(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.mp4").write_bytes(made("video.mp4", sound=False, picture=True))
    assert run("upload", "Ada", tmp_path / "a.mp4") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "invalid_argument: the clip is a video without sound" in error
    assert triton.calls == []
    assert run("speak", "Hello.", "--reference", tmp_path / "a.mp4", "-o", tmp_path / "out.wav") == 1
    assert "the clip is a video without sound" in capsys.readouterr().err


def test_warnings_are_reported_after_the_upload(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.wav").write_bytes(b"clip")
    answer(triton, FAULTY)
    assert run("upload", "Ada", tmp_path / "a.wav") == 0
    out, err = capsys.readouterr()
    assert out == LINE
    assert err.splitlines() == [
        f"voice-clone: {CUT}",
        "voice-clone: warning: noise: too noisy; be quiet",
        "voice-clone: warning: clipping: too loud",
    ]


def test_strict_and_trim_silence_are_sent(triton: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"clip")
    answer(triton, VOICE)
    assert run("upload", "Ada", tmp_path / "a.wav", "--no-wait", "--strict", "--trim-silence") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"strict": True, "trim_silence": True}


def test_show(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    clip = {"sample_rate": 24000, "mime_type": "audio/wav", "file_size": 120044, "reference_text": "Hello there."}
    answer(triton, {**FAULTY, **clip, "consent": "by mail"})
    assert run("show", "Ada") == 0
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["name", "Ada"],
        ["generation", "3"],
        ["consent", "by mail"],
        ["clip", "2.50 s, 24000 Hz, audio/wav, 120044 bytes"],
        ["reference_text", "Hello there."],
        ["qwen3_tts icl", "ready"],
        ["speech", "2.1 s"],
        ["silence before", "0.30 s"],
        ["silence after", "0.05 s"],
        ["level", "-21 dBFS"],
        ["peak", "-3.0 dBFS"],
        ["above the noise", "10 dB"],
        ["clipped samples", "0.031%"],
        ["offset", "0.10% of full scale"],
        ["speaking rate", "4.2 syllables a second"],
        ["trimmed", CUT.partition(": ")[2]],
        ["warning", "noise: too noisy; be quiet"],
        ["warning", "clipping: too loud"],
    ]


def test_show_of_an_embedding_and_of_an_older_servers_voice(
    triton: Server, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"model_type": "made_up", "mode": "icl", "state": "unsupported", "reason": "needs reference_text"}
    answer(triton, {"name": "Ben", "generation": 4, "embedding_source": "direct", "artifacts": [state]})
    assert run("show", "Ben") == 0
    assert capsys.readouterr().out.splitlines() == [
        "name\tBen",
        "generation\t4",
        "clip\tnone: a speaker embedding",
        "made_up icl\tunsupported: needs reference_text",
    ]
