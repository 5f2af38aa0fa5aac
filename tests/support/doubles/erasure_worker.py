"""A process that registers and deletes a voice whose texts come from its standard input, and stops at each stage."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.doubles.fakes import FakeEncoder, clip
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.parsing import parse


def stage(name: str) -> None:
    """Tell that a stage is reached, and wait."""
    os.write(1, name.encode() + b"\n")
    os.read(0, 1)


def live(cache: SpeakerCache, tokenizer: Tokenizer) -> None:
    """All that is done with a voice."""
    text = os.read(0, 100).decode().strip()
    fields = {"reference_text": f"The harbour {text}", "consent": f"by {text}", "description": f"of {text}"}
    cache.call(parse("upload", {"name": "Ada", "audio": clip(1), **fields}, {"wait": True}))
    for operation in ("get", "export", "prepare"):
        cache.call(parse(operation, {"name": "Ada"}, {}))
    cache.call(parse("list", {}, {}))
    cache.call(parse("resolve", {"name": "Ada", "model_type": "qwen3_tts"}, {}))
    tokenizer.reference_ids(fields["reference_text"])


def main() -> None:
    """Arguments: the folder of the voices, and a checkpoint."""
    store, families = FileStore(Path(sys.argv[1])), ["qwen3_tts"]
    cache, tokenizer = SpeakerCache(store, FakeEncoder(), model_types=lambda: families), Tokenizer(Path(sys.argv[2]))
    live(cache, tokenizer)
    stage("held")
    cache.call(parse("delete", {"name": "Ada"}, {}))
    stage("deleted")


if __name__ == "__main__":
    main()
