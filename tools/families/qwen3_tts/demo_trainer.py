"""The training of the demo's checkpoint, as `tools.families.toolkit.DemoTrainer` asks for it."""

from __future__ import annotations

from tools.families.qwen3_tts.demo_voice.bare_engine import BareEngine
from tools.families.qwen3_tts.demo_voice.stages import STAGES

load = BareEngine

__all__ = ["STAGES", "load"]
