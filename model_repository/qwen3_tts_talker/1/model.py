"""Prompt to a stream of codec frames. A request with `cancel` ends the stream of that id instead."""

import json
import logging
import secrets

import numpy as np

from voice_clone.batching.engine import Engine
from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts import stages
from voice_clone.qwen3_tts.generator import Generator
from voice_clone.qwen3_tts.prompt import Prompt
from voice_clone.qwen3_tts.talker_request import build_request
from voice_clone.triton_io import Model

KNOBS = (
    *("do_sample", "temperature", "top_k", "top_p", "repetition_penalty"),
    *("subtalker_do_sample", "subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)
PROMPT = ("role_ids", "text_ids", "speaker_embedding", "reference_ids", "reference_codes", "language_id", "stream_id")

log = logging.getLogger("voice_clone.talker")


class TritonPythonModel(Model):
    single = True  # one engine batches all streams

    def load(self, settings):
        talker, self._config = stages.load_talker(settings)
        self._generator = Generator(
            talker, self._config, settings.integer("max_streams", 8), settings.integer("max_length", 4096)
        )
        log.info("%d streams, %.1f MB of KV cache", self._generator.slots, self._generator.kv_bytes / 1e6)
        schedule = settings.integers("chunk_frames", (1, 2, 4, 8, 12))
        codebooks = self._config.talker.num_code_groups
        self._engine = Engine(self._generator, codebooks, schedule, settings.integer("max_queue", 64))

    def handle(self, request, responder):
        cancelled = request.text("cancel")
        if cancelled is not None:
            self._engine.cancel(cancelled)
            responder.end()
            return
        missing = [name for name in PROMPT if request.array(name) is None]
        if missing:
            raise InvalidArgument(f"{missing[0]} is missing; qwen3_tts_prompt makes it")
        language = request.number("language_id")
        prompt = Prompt(
            **{name: request.array(name) for name in PROMPT[:5]},
            language_id=None if language < 0 else language,
            non_streaming_mode=bool(request.number("non_streaming_mode")),
        )
        seed = request.number("seed")
        seed = secrets.randbits(64) if seed is None else seed
        knobs = {name: request.number(name) for name in KNOBS}
        max_frames = request.number("max_frames")
        wanted = build_request(prompt, knobs, seed, max_frames, self._config, self._generator.max_length)
        info = json.loads(request.text("prompt_info") or "{}") | {"seed": seed}
        stream_id = request.text("stream_id")
        self._engine.submit(stream_id, wanted, _Sink(stream_id, prompt, info, responder, self._engine))

    def close(self):
        self._engine.close()


class _Sink:
    """Sends a stream's chunks to whoever asked for it."""

    def __init__(self, stream_id, prompt, info, responder, engine):
        self._stream_id = stream_id
        self._prompt = prompt
        self._info = info
        self._responder = responder
        self._engine = engine

    def chunk(self, chunk):
        first, final = chunk.index == 0, chunk.finish is not None
        outputs = {
            "stream_id": self._stream_id,
            "codes": chunk.codes,
            "context_codes": self._prompt.reference_codes if first else np.zeros((0, chunk.codes.shape[1]), np.int32),
            "chunk_index": chunk.index,
            "final": final,
            "info": json.dumps(self._told(chunk)) if first or final else "",
        }
        self._responder.send(outputs, final)
        if self._responder.cancelled():
            self._engine.cancel(self._stream_id)

    def fail(self, error):
        self._responder.fail(error)

    def _told(self, chunk):
        timing = chunk.timing
        told = {"queue_ms": timing.queue, "prefill_ms": timing.prefill, "talker_ms": timing.generate}
        told = {**self._info, "frames": chunk.frames, **{name: round(ms, 3) for name, ms in told.items()}}
        return told if chunk.finish is None else {**told, "finish_reason": chunk.finish}
