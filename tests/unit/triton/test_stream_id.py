"""Ids between talker and code2wav."""

from __future__ import annotations

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.settings import ChunkSettings, Settings
from voice_clone.stages.protocols import check_reference, chunk_schedule
from voice_clone.triton.stages.streams import of_talker, public_id, with_secret


def settings_of(**values: str) -> ChunkSettings:
    return ChunkSettings.of(Settings({}, {f"VOICE_CLONE_{name.upper()}": value for name, value in values.items()}))


@pytest.mark.parametrize("public", ["a", "x" * 128, "a.talker-b", "ü\n", f"a.talker-{'0' * 32}"])
def test_a_secret_id_is_new_each_time_and_tells_the_public_one(public: str) -> None:
    made = {with_secret(public) for _ in range(100)}
    assert len(made) == 100 and all(of_talker(each) and public_id(each) == public for each in made)


@pytest.mark.parametrize("other", ["", "a", f"a.talker-{'0' * 31}", f"a.talker-{'0' * 32}\n", f"talker-{'0' * 32}"])
def test_other_ids_are_no_talkers(other: str) -> None:
    assert not of_talker(other) and public_id(other) == other


def test_chunks_that_code2wav_would_refuse_are_refused_at_load() -> None:
    assert chunk_schedule(settings_of(), (1, 2, 4)) == (1, 2, 4)
    with pytest.raises(InvalidArgument, match="chunk_frames has 600; it must not be above max_chunk_frames"):
        chunk_schedule(settings_of(chunk_frames="1,600"), (1,))
    with pytest.raises(InvalidArgument, match="which is 3"):
        chunk_schedule(settings_of(max_chunk_frames="3"), (1, 2, 4))


def test_a_reference_that_is_too_long() -> None:
    check_reference(512, 512)
    with pytest.raises(InvalidArgument, match="has 513 frames, and this server takes at most 512; use a shorter clip"):
        check_reference(513, 512)
