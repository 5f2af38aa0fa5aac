"""An official checkpoint folder of Qwen3-TTS: configuration, weights by stage, fingerprints."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from voice_clone.checkpoint import CheckpointFiles
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.family import BASE

MODEL, CODEC = (each.name for each in BASE.weights)


class Checkpoint(CheckpointFiles):
    config: Qwen3TTSConfig
    load_config = staticmethod(load_config)

    def stage_fingerprint(self, file: str, prefix: str, names: Collection[str]) -> str:
        """`fingerprint` with the part of the configuration that belongs to the stage of `prefix`."""
        codec = self.config.codec
        stages: dict[str, Any] = {
            "speaker_encoder.": dataclasses.asdict(self.config.speaker_encoder),
            "talker.": dataclasses.asdict(self.config.talker),
            "encoder.": [dataclasses.asdict(codec.encoder_config), codec.encoder_valid_num_quantizers],
            "decoder.": dataclasses.asdict(codec.decoder_config),
        }
        return self.fingerprint(stages[prefix], file, prefix, names)
