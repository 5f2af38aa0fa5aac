"""What a run must not pass over in silence: skipped tests under CI=true, and servers that had to be started again.

A plugin of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from voice_clone_server.triton_server import TritonServer

# In the reasons of skips that CI allows, too: hardware, official code that no package of Python's index brings, and
# npm's registry, which not every network that has that index reaches.
_ALLOWED = ("GPU", "processor", "checkout of the official code", "npm's registry could not be reached")
_restarts: list[int] = []  # of each process of the run


def is_forbidden(reason: str, environment: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Whether a test may not be skipped for this reason."""
    return environment.get("CI") == "true" and not any(each in reason for each in _ALLOWED)


def fail_if_forbidden(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip that CI does not allow; its reason says what to install."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if is_forbidden(reason):
            report.outcome = "failed"
            report.longrepr = f"with CI=true a test is skipped only for want of hardware or of a checkout. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """As `fail_if_forbidden`."""
    report = yield
    fail_if_forbidden(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """As `fail_if_forbidden`, for a file that is skipped as a whole."""
    report = yield
    fail_if_forbidden(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of xdist tells the first one; the first one counts its own."""
    output = getattr(session.config, "workeroutput", None)
    if output is None:
        _restarts.append(TritonServer.restarts)
    else:
        output["restarts"] = TritonServer.restarts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a process of xdist has reported."""
    _restarts.append(getattr(node, "workeroutput", {}).get("restarts", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how often the known fault of Triton was got over."""
    if total := sum(_restarts):
        terminalreporter.write_sep("=", "restarts", yellow=True)
        terminalreporter.write_line(f"tritonserver took a loading model for dead and was started again: {total} times")
