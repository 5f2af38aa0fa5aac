"""The speaker cache registers preloaded voices, and looks for unfinished ones, while the server still loads models.

That may last several periods of its looks.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.doubles.fakes import Voices
from tests.support.servers.cache_calls import Cache
from tests.support.servers.single_model import write_model
from voice_clone_server.triton_server import MODELS, TritonServer

LOADING = 2.0  # seconds
CACHE = '''"""The model, with a short period."""

from functools import partial

from voice_clone.triton.stages import speaker_cache

speaker_cache.CacheConfig = partial(speaker_cache.CacheConfig, finish_seconds=0.01)
TritonPythonModel = speaker_cache.SpeakerCacheModel
'''
SLOW = f"""import time


class TritonPythonModel:
    def initialize(self, args):
        time.sleep({LOADING})
"""
CONFIG = 'name: "slow_voice_encoder" backend: "python" max_batch_size: 0 instance_group [ { count: 1 kind: KIND_CPU } ]'


def test_it_asks_for_no_model_before_the_server_is_ready(tmp_path: Path) -> None:
    """Triton 2.51 asked for a model too early lets the process that asks die, and so the server ended."""
    models = tmp_path / "models"
    write_model(models, CACHE, (MODELS / "speaker_cache" / "config.pbtxt").read_text(encoding="utf-8"))
    write_model(models, SLOW, CONFIG)
    voices = Voices(tmp_path / "other")
    voices.upload("Ada", 1)
    preloaded = tmp_path / "preloaded"
    preloaded.mkdir()
    (preloaded / "ada.voices").write_bytes(voices.call("export").artifacts or b"")
    voices.cache.close()
    environment = {"VOICE_CLONE_PRELOADED_VOICES": str(preloaded)}
    with TritonServer(
        None, tmp_path / "voices", models=models, log=tmp_path / "log", environment=environment
    ) as server:
        cache = Cache(server)
        assert cache("list")[0]["speakers"][0]["name"] == "Ada"
        assert cache("stats")[0]["model_types"] == ["slow"]
        cache.close()
        server.kill()
