"""With CI=true a skip is a failure, unless it is for want of hardware or of code that no package brings."""

from __future__ import annotations

import pytest

from tests.support.strict_run import fail_if_forbidden


def skipped(reason: str) -> pytest.TestReport:
    return pytest.TestReport("a test", ("file", 1, "test"), {}, "skipped", ("file", 1, f"Skipped: {reason}"), "setup")


@pytest.mark.parametrize(
    ("ci", "reason", "outcome"),
    [
        ("true", "no Chromium on this machine (Debian: apt-get install chromium)", "failed"),
        ("true", "needs an NVIDIA GPU", "skipped"),
        ("true", "this processor has no dot products of bf16", "skipped"),
        ("true", "VOICE_CLONE_COSYVOICE names no checkout of the official code", "skipped"),
        ("", "no Chromium on this machine (Debian: apt-get install chromium)", "skipped"),
    ],
)
def test_a_skip(monkeypatch: pytest.MonkeyPatch, ci: str, reason: str, outcome: str) -> None:
    monkeypatch.setenv("CI", ci)
    report = skipped(reason)
    fail_if_forbidden(report)
    assert report.outcome == outcome and reason in str(report.longrepr)


def test_an_expected_failure_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    report = skipped("it is known")
    report.wasxfail = "it is known"
    fail_if_forbidden(report)
    assert report.outcome == "skipped"
