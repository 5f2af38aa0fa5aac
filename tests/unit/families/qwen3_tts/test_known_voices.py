"""What a starting server prepares from the voices on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from tests.support.doubles.fakes import Voices
from tests.support.families.factories import CheckpointFactory
from voice_clone.families.qwen3_tts.codec import Qwen3TTSDecoder
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.families.qwen3_tts.talker import Qwen3TTSTalker
from voice_clone.speakers.disk.store import KnownInDirectory
from voice_clone.speakers.encoders import Extraction


class OtherNames:
    """The encoder of another version: its tensors have other names."""

    def encode(self, model_type: str, waveform: np.ndarray, sample_rate: int, mode: str) -> Extraction:
        return Extraction({"embedding": np.zeros(4, np.float32), "codes": np.zeros((3, 4), np.int32)}, "other")


def test_voices_of_another_version_are_passed_over(tmp_path: Path, checkpoint_folder: CheckpointFactory) -> None:
    folder = checkpoint_folder("tiny", 0)
    talker = Qwen3TTSTalker(cast(Any, None), load_config(folder), lambda: Tokenizer(folder))
    voices = Voices(tmp_path)
    voices.upload("Ada", 1, reference_text="Hello there.")
    voices.restart(OtherNames())
    voices.upload("Bob", 2, reference_text="Hello there.")
    voices.cache.close()
    known = KnownInDirectory(tmp_path)
    assert (
        len(list(Qwen3TTSDecoder(None, cast(Any, None)).known_references(known)))
        == len(list(talker.known_prompts(known)))
        == 1
    )
