"""The registered voices: upload, get, list, delete, prepare, resolve, stats, export, import."""

import hashlib
import json
import time

from voice_clone.speakers import CacheConfig, Extraction, SpeakerCache
from voice_clone.speakers import Request as CacheRequest
from voice_clone.speakers.write_token import PARAMETER, WriteToken
from voice_clone.triton.model import Model, call
from voice_clone.triton.speaker_metrics import SpeakerMetrics


class TritonPythonModel(Model):
    threads = 32  # a cold voice keeps one busy while its clip is encoded
    single = True  # the one authority over the voices

    def load(self, settings):
        config = CacheConfig(
            max_bytes=settings.integer("cache_bytes", 512 << 20),
            max_entries=settings.integer("cache_entries", 1024),
            max_speakers=settings.integer("max_voices", 1000),
            policy=settings.choice("upload_policy", ("replace", "immutable")),
            extraction_timeout=settings.number("extraction_timeout", 60.0),
            directory_wait=settings.number("voice_dir_wait", 1.0),
        )
        self._write_token = WriteToken(settings.secret("write_token"))
        model_types = [name.strip() for name in settings.text("model_types", "qwen3_tts").split(",")]
        encoder = VoiceEncoder()
        self._cache = SpeakerCache(settings.voice_dir, encoder, config, model_types)
        self._metrics = SpeakerMetrics(lambda: self._cache.call("stats", CacheRequest()).result)
        encoder.extracted = self._metrics.extracted

    def handle(self, request, responder):
        operation, options = request.text("operation"), request.json_object("options")
        self._write_token.check(operation, options, request.parameter(PARAMETER))
        asked = CacheRequest(
            name=request.text("name"),
            model_type=request.text("model_type"),
            audio=request.raw("audio"),
            reference_text=request.text("reference_text"),
            consent=request.text("consent"),
            description=request.text("description"),
            speaker_embedding=request.array("speaker_embedding"),
            options=options,
        )
        reply = self._cache.call(operation, asked)
        return {"result": json.dumps(reply.result), "artifacts": reply.artifacts or b""}

    def close(self):
        self._metrics.close()
        self._cache.close()


class VoiceEncoder:
    """The encoders of all families, found by name."""

    extracted = None  # called with the seconds of each extraction

    def encode(self, model_type, waveform, sample_rate, mode):
        began = time.monotonic()
        outputs = call(f"{model_type}_voice_encoder", {"waveform": waveform, "sample_rate": sample_rate, "mode": mode})
        if waveform.size:
            self.extracted(time.monotonic() - began)
        marks = sorted(name for name in outputs if name.endswith("fingerprint"))
        digest = hashlib.sha256()
        for name in marks:
            digest.update(name.encode() + b"=" + outputs.pop(name)[0] + b"\n")
        return Extraction(outputs, digest.hexdigest())
