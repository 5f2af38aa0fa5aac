"""Ids between talker and code2wav."""

from __future__ import annotations

import pytest

from voice_clone.triton.stages.streams import of_talker, public_id, with_secret


@pytest.mark.parametrize("public", ["a", "x" * 128, "a.talker-b", "ü\n", f"a.talker-{'0' * 32}"])
def test_a_secret_id_is_new_each_time_and_shows_the_public_one(public: str) -> None:
    made = {with_secret(public) for _ in range(100)}
    assert len(made) == 100 and all(of_talker(each) and public_id(each) == public for each in made)


@pytest.mark.parametrize("other", ["", "a", f"a.talker-{'0' * 31}", f"a.talker-{'0' * 32}\n", f"talker-{'0' * 32}"])
def test_other_ids_are_no_talkers(other: str) -> None:
    assert not of_talker(other) and public_id(other) == other
