"""A long step of a tool is said on stderr, a short one is not."""

from __future__ import annotations

import pytest

from voice_clone_server import steps


def test_a_long_step_is_said_and_said_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "PERIOD", 0.01)
    said, far = "", 0
    with steps.step(lambda: f"{far} of 9 done"):
        while said.count("done") < 2:
            far += 1
            said += capsys.readouterr().err
    assert "of 9 done, 0 s so far ..." in said


def test_a_short_step_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with steps.step("nothing"):
        pass
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
