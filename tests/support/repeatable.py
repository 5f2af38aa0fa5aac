"""Each run draws the same examples, and runs the tests in the same order, unless it is given a seed.

`--randomly-seed=N`, an option of pytest-randomly, asks for another order and other examples of Hypothesis, which N
repeats. `tools/test --long` takes a fresh seed. A plugin of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

import sys
from typing import Any
from zlib import crc32

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

SEED = 1
"""Of a run that is given none."""

# A busy machine is no failure, and no run depends on what an earlier one has found.
_ALIKE: Any = {"deadline": None, "database": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **_ALIKE)
hypothesis.settings.register_profile("seeded", derandomize=False, print_blob=True, **_ALIKE)
hypothesis.settings.register_profile("explore", hypothesis.settings.get_profile("seeded"), max_examples=1000)
hypothesis.settings.load_profile("same")

# Hypothesis also draws constants from the modules imported so far. They depend on the tests that ran before.
assert callable(providers._get_local_constants)
providers._get_local_constants = lambda: providers._local_constants


def seed_of(config: pytest.Config) -> int:
    """The seed of a run."""
    seed = getattr(config.option, "randomly_seed", SEED)  # -p no:randomly
    return seed if isinstance(seed, int) else SEED


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give pytest-randomly the seed if the command line has none."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = SEED


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give Hypothesis a seed that was asked for. Processes of xdist get the options of the first one."""
    option = session.config.option
    if seed_of(session.config) == SEED or option.hypothesis_seed is not None:
        return
    hypothesis.core.global_force_seed = seed_of(session.config)  # type: ignore[assignment]  # declared as None alone
    hypothesis.settings.load_profile(option.hypothesis_profile or "seeded")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed PyTorch for each test, as pytest-randomly seeds Python and NumPy."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed_of(item.config) + crc32(item.nodeid.encode()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how to repeat a run that was given a seed."""
    if (seed := seed_of(config)) != SEED:
        terminalreporter.write_line(f"This run had the seed {seed}. --randomly-seed={seed} repeats it.")
