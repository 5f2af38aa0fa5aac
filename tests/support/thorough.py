"""Which files the default run leaves out, so that it takes minutes; `tools/test --thorough` and CI run them, too.

They hold what few changes touch: tools beside the server, pages in a browser, programs of others, further ways of the
same result. A file that is named on the command line runs. A plugin of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# How the paths of such files begin.
THOROUGH = (
    # training, converting, exporting, building, measuring
    "tests/unit/families/fish_speech/test_codec_converter.py",
    "tests/unit/families/qwen3_tts/demo_voice/",
    "tests/unit/perf/",
    "tests/unit/tools/demo_voice/",
    "tests/unit/tools/test_build_repository.py",
    "tests/unit/tools/test_stopped_tools.py",
    # pages in a browser
    "tests/unit/gateway/test_page_",
    # what runs on a GPU, in torch on the CPU
    "tests/unit/autoregressive/test_static_",
    "tests/unit/families/test_on_a_gpu.py",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of those files."""
    named = {(config.invocation_params.dir / each.split("::")[0]).resolve() for each in config.args}
    for item in items:
        if item.path not in named and item.path.relative_to(ROOT).as_posix().startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)
