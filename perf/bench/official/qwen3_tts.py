"""The official package qwen-tts 0.1.1, in fp32 and in bf16."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from perf.bench.official.comparison import Asked, Official, Spoken
from perf.bench.official.peers import Official as Package


class Adapter(Official):
    """See `Official`. It returns all samples at the end, and decodes the reference with them."""

    source = "qwen-tts 0.1.1"
    dtypes = ("float32", "bfloat16")
    lists = True
    language = "English"
    knobs = MappingProxyType({"do_sample": False})

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        self._package = Package(folder, dtype=getattr(torch, dtype))
        [item] = self._package.items
        item.ref_code = torch.from_numpy(asked.artifacts["codec_codes"]).long()
        item.ref_spk_embedding = torch.from_numpy(asked.artifacts["speaker_embedding"]).to(getattr(torch, dtype))

    @staticmethod
    def options(frames: int) -> dict[str, Any]:
        return {"subtalker_do_sample": False}

    def speak(self, frames: int, streams: int) -> Spoken:
        codes, spent = self._package.speak(frames, streams)
        seconds = {
            "first audio": spent.first_audio,
            "prompt": spent.prefill,
            "frame": spent.frame,
            "decode": spent.code2wav / spent.decoded / streams,
            "total": spent.total,
        }
        return Spoken(codes, None, seconds)
