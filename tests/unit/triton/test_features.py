"""docs/triton_features.md says which of Triton's features the models do without: their configurations agree."""

from __future__ import annotations

import re

import pytest

from voice_clone_server.config_file import ConfigFile
from voice_clone_server.triton_server import MODELS, ROOT

FIELDS = {
    "dynamic batching": "dynamic_batching",
    "sequence batching": "sequence_batching",
    "rate limiter": "rate_limiter",
    "response cache": "response_cache",
    "warm-up by `model_warmup`": "model_warmup",
    "`max_inflight_requests` of an ensemble": "max_inflight_requests",
}
PAGE = (ROOT / "docs" / "triton_features.md").read_text(encoding="utf-8")
CONFIGS = sorted(MODELS.glob("*/config.pbtxt"))


@pytest.mark.parametrize("feature", FIELDS)
def test_the_repository_has_no_field_of_a_feature_that_is_not_used(feature: str) -> None:
    [row] = [line for line in PAGE.splitlines() if f"| {feature} |" in line]
    assert re.search(r"\| (no|for (native )?encoders)\b", row)
    set_in_line = re.compile(rf"^[^#]*\b{FIELDS[feature]}\b", re.MULTILINE)
    assert not [config for config in CONFIGS if set_in_line.search(config.read_text())]


def test_the_public_models_are_ensembles_and_decoupled() -> None:
    families = {
        config.parent.name.removesuffix("_talker") for config in CONFIGS if config.parent.name.endswith("_talker")
    }
    assert len(families) > 5
    for family in families:
        config = ConfigFile((MODELS / family / "config.pbtxt").read_text()).message
        assert config.platform == "ensemble" and config.model_transaction_policy.decoupled


def test_a_model_in_python_has_one_process() -> None:
    configs = [ConfigFile(path.read_text()).message for path in CONFIGS]
    counts = {each.name: [group.count for group in each.instance_group] for each in configs if each.backend == "python"}
    assert counts and {name: count for name, count in counts.items() if count != [1]} == {}
