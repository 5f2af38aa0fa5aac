"""Prompt to a stream of codec frames. A request with `cancel` says instead that nobody takes more of the stream of that
id; it ends, if it has not.

The request parameter `deadline_ms` bounds the time of a whole stream. Metrics: see voice_clone/batching/statistics.py;
their names begin with `voice_clone_talker_`.
"""

import logging

from voice_clone.autoregressive.warm_up import warm_up
from voice_clone.batching.engine import Engine
from voice_clone.batching.statistics import Statistics
from voice_clone.families.qwen3_tts import stages
from voice_clone.families.qwen3_tts.known_voices import known_prompts
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.triton.last_chunks import LastChunks
from voice_clone.triton.model import Model
from voice_clone.triton.server_stop import HttpEndpoint, ServerStop
from voice_clone.triton.talker_call import TalkerCall, TalkerSink
from voice_clone.triton.telemetry import Metric

log = logging.getLogger("voice_clone.talker")


class TritonPythonModel(Model):
    single = True  # one engine batches all streams

    def load(self, settings):
        stages.use_threads(settings)
        self._generator = generator = stages.load_generator(settings)
        log.info("%d streams, %.1f MB of KV cache", generator.slots, generator.kv_bytes / 1e6)
        prefill_chunk = stages.prefill_chunk(settings)
        took = warm_up(generator, prefill_chunk, settings.number("warm_up_seconds", 10.0))
        log.info("warmed up in %.1f s", took)
        voices = known_prompts(settings.voice_dir, Tokenizer(settings.checkpoint_dir))
        restored = generator.restore(voices, settings.number("restore_seconds", 10.0))
        log.info("restored what the talker has read of %d voices", restored)
        codec = generator.config.codec
        # A chunk sent early moves its samples by rounding, which a deterministic engine must not do.
        pace = 0.0 if generator.deterministic else codec.decode_upsample_rate / codec.output_sample_rate
        self._engine = Engine(
            generator,
            codebooks=generator.config.talker.num_code_groups,
            frame_seconds=pace,
            schedule=settings.integers("chunk_frames", (1, 2, 4, 8, 12)),
            max_queue=settings.integer("max_queue", 64),
            prefill_chunk=prefill_chunk,
            statistics=Statistics("voice_clone_talker_", Metric),
        )
        self._last_chunks = LastChunks()
        endpoint = HttpEndpoint.of_parent()
        self._server_stop = ServerStop(endpoint, self._drain) if endpoint else None

    def handle(self, request, responder):
        cancelled = request.text("cancel")
        if cancelled is not None:
            self._engine.cancel(cancelled)
            self._last_chunks.answered(cancelled)
            responder.end()
            return
        call = TalkerCall.read(request, self._generator.config, self._generator.max_length)
        sink = TalkerSink(call, responder, self._last_chunks)
        self._engine.submit(call.stream_id, call.request, sink, call.deadline)

    def close(self):
        if self._server_stop is not None:
            self._server_stop.close()
        self._engine.close()

    def _drain(self, seconds):
        self._engine.drain(seconds)
        if not self._last_chunks.wait():
            log.warning("a stream's last chunk was not decoded in time")
