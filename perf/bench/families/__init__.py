"""The families whose engines are measured, by their names."""

from __future__ import annotations

from perf.bench.families.family import Family
from perf.bench.families.fish_speech import FishSpeech
from perf.bench.families.qwen3_tts import Qwen3TTS
from perf.bench.families.voxcpm2 import VoxCPM2
from perf.bench.families.voxtral import Voxtral

FAMILIES: dict[str, type[Family]] = {family.name: family for family in (Qwen3TTS, FishSpeech, Voxtral, VoxCPM2)}
