"""What talker and code2wav check alike: the frames of chunks, and of references."""

from __future__ import annotations

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.settings import ChunkSettings, Settings
from voice_clone.stages.protocols import check_reference, chunk_schedule


def settings_of(**values: str) -> ChunkSettings:
    return ChunkSettings.of(Settings({}, {f"VOICE_CLONE_{name.upper()}": value for name, value in values.items()}))


def test_chunks_that_code2wav_would_refuse_are_refused_at_load() -> None:
    for settings in (settings_of(), settings_of(max_chunk_frames="4")):
        assert chunk_schedule(settings, (1, 2, 4)) == (1, 2, 4)
    with pytest.raises(InvalidArgument, match="chunk_frames has 800; it must not be above max_chunk_frames"):
        chunk_schedule(settings_of(chunk_frames="1,800"), (1,))
    with pytest.raises(InvalidArgument, match="which is 3"):
        chunk_schedule(settings_of(max_chunk_frames="3"), (1, 2, 4))


def test_a_reference_that_is_too_long() -> None:
    check_reference(512, 512)
    with pytest.raises(InvalidArgument, match="at most 512"):
        check_reference(513, 512)
