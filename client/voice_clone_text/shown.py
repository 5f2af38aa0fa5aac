"""Plans as JSON, for who wants to see what would be spoken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .pieces import Plan, Silence
from .sequence import Planned


def shown(texts: Iterable[Planned]) -> dict[str, Any]:
    """Texts one after the other.

    `items`: of `type` speech, with text, voice, language, rate, gain and `replaced`, the parts of the text that are
    written otherwise, or silence, with its seconds; each with the index of its text as `segment`, and its `start` and
    `end` there. `marks`: name, the item that has it or follows it, characters of that before it. `warnings`.
    """
    items, marks, warnings = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, None]()
    for segment, (plan, rate, behind) in enumerate(texts):
        marks += [{**mark._asdict(), "item": mark.item + len(items)} for mark in plan.marks]
        items += ({"segment": segment, **item} for item in _items(plan, rate))
        warnings |= dict.fromkeys(plan.warnings)
        if behind:
            items.append({"segment": segment, "type": "silence", "seconds": behind})
    return {"items": items, "marks": marks, "warnings": [*warnings]}


def _items(plan: Plan, rate: float) -> Iterator[dict[str, Any]]:
    for item in plan.items:
        if isinstance(item, Silence):
            yield {"type": "silence", **item._asdict()}
            continue
        style = {name: value for name, value in item.style._asdict().items() if value is not None}
        replaced = [each._asdict() for each in item.replaced]
        place = {"text": item.text, "start": item.start, "end": item.end}
        yield {"type": "speech", **place, **style, "rate": rate * item.style.rate, "replaced": replaced}
