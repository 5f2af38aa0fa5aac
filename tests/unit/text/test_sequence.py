"""Texts one after the other: which parts, silences and marks they have, and dialogues as scripts."""

from __future__ import annotations

import pytest
from voice_clone_text.planner import plan
from voice_clone_text.sequence import Planned, in_sequence, turns_of


def test_parts_silences_and_marks() -> None:
    first = plan("<speak><break time='1s'/>A<mark name='m'/>. <break time='2s'/>...<mark name='n'/></speak>")
    second = plan("<speak><mark name='o'/>B<break time='3s'/><mark name='p'/></speak>")
    found = in_sequence([Planned(first, pause=0.5), Planned(second, 1.5, 0.25)])
    assert [(part.turn, part.span.text, part.pause) for part in found.parts] == [(0, "A.", 1.0), (1, "B", 2.5)]
    assert [part.rate for part in found.parts] == [1.0, 1.5]
    assert (found.pause, found.marks) == (3.25, (("m", 0, 1), ("n", 1, 3), ("o", 1, 0), ("p", 2, 0)))


def test_nothing_to_speak() -> None:
    with pytest.raises(ValueError, match="letter or digit"):
        in_sequence([Planned(plan("<speak><break/>...</speak>")), Planned(plan(" "), pause=1.0)])


def test_rates_multiply_up_to_a_limit() -> None:
    fast = plan("<speak>A <prosody rate='3'>B</prosody></speak>")
    assert [part.rate for part in in_sequence([Planned(fast, 1.25)]).parts] == [1.25, 3.75]
    for rate in (1.5, 0.2):
        with pytest.raises(ValueError, match=r"0\.25 to 4"):
            in_sequence([Planned(fast, rate)])


def test_silences_add_up_to_a_limit() -> None:
    word, end, silent = (Planned(plan(text), pause=pause) for text, pause in (("A.", 10.0), ("A.", 0.0), ("...", 10.0)))
    assert in_sequence([word, *[silent] * 29, end]).parts[1].pause == 300
    for plans in ([word, *[silent] * 30, end], [word, *[silent] * 30]):
        with pytest.raises(ValueError, match="more than 300 s of silence"):
            in_sequence(plans)


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ("Ada: Good morning.\nBob: Is it?", [("Ada", "Good morning."), ("Bob", "Is it?")]),
        (
            "\r\n  Ada :  It is 5:30,\n\n at last.\u2028Bob: https://a.b",
            [("Ada", "It is 5:30, at last."), ("Bob", "https://a.b")],
        ),
        ("Ada:\nGood morning.\nBob:", [("Ada", "Good morning.")]),
        ("Ada: A\n10:30 is late.", [("Ada", "A 10:30 is late.")]),
        ("", []),
    ],
)
def test_turns_of_a_script(script: str, turns: list[tuple[str, str]]) -> None:
    assert turns_of(script) == turns


def test_a_script_that_begins_without_a_name() -> None:
    with pytest.raises(ValueError, match="name and a colon"):
        turns_of("Good morning.\nAda: Yes.")
