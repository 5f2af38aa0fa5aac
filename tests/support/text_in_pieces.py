"""The plan of a text that comes in pieces."""

from __future__ import annotations

from voice_clone_text.pieces import Joiner, Plan
from voice_clone_text.planner import Planner, Settings


def in_pieces(text: str, settings: Settings, size: int = 1) -> Plan:
    planner, joiner = Planner(settings), Joiner()
    for at in range(0, len(text), size):
        joiner.add(planner.feed(text[at : at + size]))
    joiner.add(planner.feed("", final=True))
    return joiner.plan(planner.warnings)
