"""Which files the default run leaves out, so that it is short. `tools/test --thorough` runs them; so does CI.

They test what few changes touch: tools beside the server, pages in a browser, programs of other vendors, further ways
to the same result. pytest still runs a file that the command line names. A plugin of pytest, loaded by
tests/conftest.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# How the paths of such files begin.
THOROUGH = (
    # training, converting, exporting, building, measuring, ending
    "tests/parity/test_measurements.py",
    "tests/server/test_built_repository.py",
    "tests/server/test_deaths_and_standstills.py",
    "tests/server/test_inspect.py",
    "tests/server/test_serve.py",
    "tests/server/test_tools_end.py",
    "tests/unit/families/fish_speech/test_pickle_converter.py",
    "tests/unit/families/voxtral/test_voice_converter.py",
    "tests/unit/perf/",
    "tests/unit/tools/demo_voice/",
    "tests/unit/tools/test_build_repository.py",
    "tests/unit/tools/test_compose.py",
    "tests/unit/tools/test_kubernetes.py",
    "tests/unit/tools/test_stopped_tools.py",
    # runs of pytest in runs of pytest
    "tests/unit/test_repeatable.py",
    # pages in a browser, programs of others
    "tests/server/gateway/test_apps.py",
    "tests/server/gateway/test_page.py",
    "tests/unit/gateway/test_audio_encoder.py",
    "tests/unit/gateway/test_page_",
    # what runs on a GPU, in torch on the CPU
    "tests/unit/autoregressive/test_open_texts_of_talkers.py",
    "tests/unit/autoregressive/test_static_",
    "tests/unit/families/test_on_a_gpu.py",
    # further ways of the same result
    "tests/parity/test_checkpoint_parity.py",
    "tests/parity/test_fish_speech_parity.py",
    "tests/parity/test_pipeline_parity.py",
    "tests/parity/test_sampled_parity.py",
    "tests/parity/test_voxtral_parity.py",
    "tests/server/test_large_chunks.py",
    "tests/server/test_float_family.py",
    "tests/server/test_second_family.py",
    "tests/server/test_whole_way.py",
    # many servers, lost ones, floods
    "tests/server/gateway/test_gateway_fuzz.py",
    "tests/server/gateway/test_missed_ends_on_server.py",
    "tests/server/test_fleet_chaos.py",
    "tests/server/test_fleet_on_servers.py",
    "tests/server/test_full_disk.py",
    "tests/server/test_hostile.py",
    "tests/server/test_lost_model.py",
    "tests/server/test_refusals.py",
    "tests/server/test_several_servers.py",
    "tests/server/test_startup.py",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of those files."""
    named = {(config.invocation_params.dir / each.split("::")[0]).resolve() for each in config.args}
    for item in items:
        if item.path not in named and item.path.relative_to(ROOT).as_posix().startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)
