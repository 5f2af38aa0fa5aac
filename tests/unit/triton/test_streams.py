"""Ids between talker and code2wav."""

from __future__ import annotations

import pytest

from voice_clone.triton.stages.streams import public_id, talker_of, with_secret


@pytest.mark.parametrize("public", ["a", "x" * 128, "a.chirp_talker-b", "ü\n", f"a.chirp_talker-{'0' * 32}"])
def test_a_secret_id_is_new_each_time_and_shows_the_public_one(public: str) -> None:
    made = {with_secret(public, "some_family_talker") for _ in range(100)}
    assert len(made) == 100
    assert all(talker_of(each) == "some_family_talker" and public_id(each) == public for each in made)


@pytest.mark.parametrize("end", ["x_talker-0", "_talker-00", "x_talker-00\n", "speaker_cache-00", "X_talker-00"])
def test_other_ids_are_no_talkers(end: str) -> None:
    for other in ("", "a", f"a.{end.replace('00', '0' * 32)}", f"x_talker-{'0' * 32}"):
        assert talker_of(other) is None and public_id(other) == other
