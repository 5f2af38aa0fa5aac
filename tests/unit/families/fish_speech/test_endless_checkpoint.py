"""A checkpoint whose speech never ends, of one in whole or in shards, as the released one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.families.fish import load_fish_network
from tools.families.fish_speech.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.families.fish_speech.checkpoint import Checkpoint


@pytest.mark.parametrize("shards", [1, 3])
def test_only_the_end_of_speech_is_another(shards: int, tmp_path: Path) -> None:
    make_checkpoint("tiny", 0, tmp_path / "whole", shards=shards)
    before = load_fish_network(Checkpoint(tmp_path / "whole"))
    after = load_fish_network(Checkpoint(make_endless(tmp_path / "whole", tmp_path / "endless")))
    tables = before.slow.embeddings.weight, after.slow.embeddings.weight
    [changed] = (tables[0] != tables[1]).any(dim=1).nonzero()
    assert changed == before.config.eos_token_id and not tables[1][changed].any()
    others = [dict(talker.named_parameters()) for talker in (before, after)]
    assert all(
        torch.equal(value, others[1][name]) for name, value in others[0].items() if name != "slow.embeddings.weight"
    )
    linked = [file.name for file in (tmp_path / "endless").iterdir() if file.is_symlink()]
    assert len(linked) == len([*(tmp_path / "whole").iterdir()]) - 1
