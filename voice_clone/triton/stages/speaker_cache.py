"""The model `speaker_cache`: requests in, operations of `SpeakerCache`, answers out."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from voice_clone.audio import ClipLimits
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import Settings
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.name import check_word
from voice_clone.speakers.opening import open_store
from voice_clone.speakers.parsing import parse
from voice_clone.speakers.transfer import MAX_PROMPT_BYTES
from voice_clone.speakers.write_token import WriteToken
from voice_clone.triton.calls import call
from voice_clone.triton.forgetting import ForgetRequests
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.stages.speaker_metrics import SpeakerMetrics
from voice_clone.triton.stages.voice_encoders import TritonVoiceEncoders
from voice_clone.triton.tensors import Value
from voice_clone.turns import TOKEN_PARAMETER


class SpeakerCacheModel(Model):
    """Owns the registered voices; serves every family."""

    threads = 32  # a cold voice keeps one of them busy while its clip is encoded
    large_at_once = 1  # an imported bundle is in memory three times
    single = True  # two owners of the voices would contradict each other

    def initialize(self, args: Mapping[str, str]) -> None:
        """As `Model.initialize`; remembers the repository, where the folders of the other models are."""
        self._repository = Path(args["model_repository"]).parent
        super().initialize(args)

    def load(self, given: Settings) -> None:
        settings = SpeakerCacheSettings.of(given)
        config = CacheConfig(
            max_bytes=settings.cache_bytes,
            max_entries=settings.cache_entries,
            max_speakers=settings.max_voices,
            clip=ClipLimits(max_seconds=settings.max_clip_seconds),
            require_consent=settings.require_consent,
            extraction_timeout=settings.extraction_timeout,
        )
        self._write_token = WriteToken(settings.write_token)
        self._server_ready = threading.Event()
        self._encoders = TritonVoiceEncoders(
            self._repository, self._server_ready, [check_word("model_types", name) for name in settings.model_types]
        )
        self._forget_requests = ForgetRequests(self._repository, request_forget, self._server_ready)
        self._cache = SpeakerCache(
            open_store(settings),
            self._encoders,
            config,
            self._encoders.model_types,
            on_extraction=lambda seconds: self._metrics.extracted(seconds),
            other_processes=self._forget_requests,
            traits=self._encoders.traits,
        )
        self._metrics = SpeakerMetrics(self._cache.counters)
        if settings.preloaded_voices:
            self._cache.preload(settings.preloaded_voices)

    def large(self, request: Request) -> bool:
        operation = request.text("operation")
        if operation == "import":  # the last part of one that comes in parts
            options = request.json_object("options")
            in_parts = "part" in options and not options.get("more")
            return in_parts or len(request.raw("audio") or b"") > MAX_PROMPT_BYTES
        return operation == "export" and not request.text("name") and not request.json_object("options").get("offset")

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        self._server_ready.set()  # a request comes when all models are loaded
        operation, options = request.text("operation") or "", request.json_object("options")
        if operation in ("export", "import"):  # in parts, which any thread takes: each would keep the memory of some
            self.trim_afterwards()
        self._write_token.check(operation, options, request.parameter(TOKEN_PARAMETER))
        inputs = {
            "name": request.text("name"),
            "model_type": request.text("model_type"),
            "audio": request.raw("audio"),
            "reference_text": request.text("reference_text"),
            "consent": request.text("consent"),
            "description": request.text("description"),
            "speaker_embedding": request.array("speaker_embedding"),
            "voice_prompt": request.raw("voice_prompt"),
        }
        reply = self._cache.call(parse(operation, inputs, options))
        return {"result": json.dumps(reply.result), "artifacts": reply.artifacts or b""}

    def close(self) -> None:
        self._metrics.close()
        self._cache.close()
        self._forget_requests.close()


def request_forget(model: str, voices: Collection[str], digest: bool) -> Mapping[str, Any]:
    """Make a model forget voices, or ask for its digest; answers what it keeps.

    Raises:
        Unsupported: the model is not loaded.
        Exception: anything else that is wrong.
    """
    outputs = call(model, {"forget": json.dumps({"digest": True} if digest else list(voices))}, decoupled=True)
    kept: Mapping[str, Any] = json.loads(outputs["info"][0])
    return kept
