"""What a training of the demo's voice can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tools.demo_voice.training import Plan


@dataclass(frozen=True)
class Options:
    """Size and pace of the whole.

    Attributes:
        seed: of all chance.
        shards: of training data.
        shard_size: utterances of a shard.
        jobs: processes that make data side by side.
        steps: by stage, where they differ from the stage's own plan.
        base: a checkpoint of the demo's shape that is trained on; None: all weights begin at random.
    """

    seed: int = 1
    shards: int = 240
    shard_size: int = 200
    jobs: int = 2
    steps: Mapping[str, int] = field(default_factory=dict)
    base: Path | None = None

    @property
    def device(self) -> torch.device:
        """A GPU where torch sees one."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def plan(self, stage: str, own: Plan) -> Plan:
        """The plan of a stage: its own, with the steps that were asked for.

        Where weights are trained already, the rate falls from the start.
        """
        plan = replace(own, steps=self.steps.get(stage, own.steps))
        return plan if self.base is None else replace(plan, cool_down=1.0)
