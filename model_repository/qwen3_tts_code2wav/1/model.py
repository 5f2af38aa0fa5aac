"""Codec frames to waveform, chunk by chunk: `execute` only queues, the thread of a `Code2WavWorker` decodes.

A talker whose stream fails says so with a last chunk: `final`, and `info` with its message as `error`. Why errors must
come with a stream's final chunk, see there. A chunk without frames that is not final is a beat, which only asks
whether the client is still there (why: see TalkerSink); it has no answer but the end of its request. The first one
brings the reference, so that the decoder's state after it is there when the first chunk comes.
"""

import json
import logging

from watch import Watch

from voice_clone.codec.code2wav import Chunk, Code2Wav
from voice_clone.codec.worker import Code2WavWorker
from voice_clone.errors import from_message
from voice_clone.families.qwen3_tts import stages
from voice_clone.families.qwen3_tts.known_voices import known_references
from voice_clone.triton.model import Model

log = logging.getLogger("voice_clone.code2wav")


class TritonPythonModel(Model):
    single = True  # keeps every stream's decoder state, and the order of its chunks

    def load(self, settings):
        stages.use_threads(settings, share=2)
        decoder, config = stages.load_codec_decoder(settings)
        codec = config.codec.decoder_config
        self._sample_rate = config.codec.output_sample_rate
        code2wav = Code2Wav(
            decoder,
            codec.codebook_size,
            codec.num_quantizers,
            max_state_bytes=settings.integer("max_state_bytes", 1 << 30),
            max_chunk_frames=settings.integer("max_chunk_frames", 512),
            idle_seconds=settings.number("stream_idle_seconds", 60.0),
            primed_bytes=settings.integer("primed_bytes", 256 << 20),
            primed_seconds=settings.number("primed_seconds", 600.0),
        )
        max_batch = stages.max_decode_batch(settings)
        max_waiting = settings.integer("max_waiting_chunks", 4096)
        log.info("at most %d streams, decoded %d at a time", code2wav.max_streams, max_batch)
        frames = settings.integers("chunk_frames", (1, 2, 4, 8, 12))
        code2wav.warm_up(frames, sorted({1, max_batch}), settings.number("warm_up_seconds", 20.0))
        references = known_references(settings.voice_dir)
        restored = code2wav.restore(references, settings.number("restore_seconds", 10.0))
        log.info("restored the decoder's state after the references of %d voices", restored)
        self._watch = Watch()
        frame_seconds = config.codec.decode_upsample_rate / self._sample_rate
        self._worker = Code2WavWorker(code2wav, max_batch, max_waiting, frame_seconds, self._watch)

    def handle(self, request, responder):
        info, final = request.json_object("info"), request.number("final")
        stream_id, codes = request.text("stream_id"), request.array("codes")
        context = request.array("context_codes")
        if not final and len(codes) == 0:  # a beat
            if responder.cancelled():
                self._worker.abandon(stream_id)
            elif context.size:
                self._worker.prepare(context)
            responder.end()
            return
        chunk = Chunk(
            stream_id=stream_id,
            index=request.number("chunk_index"),
            codes=codes,
            context=context,
            final=final,
            failure=from_message(str(info["error"])) if final and "error" in info else None,
        )
        self._worker.submit(chunk, _Ticket(responder, chunk, info, self._sample_rate))

    def close(self):
        self._worker.close()
        self._watch.close()


class _Ticket:
    """Answers the request of one chunk."""

    def __init__(self, responder, chunk, info, sample_rate):
        self._responder = responder
        self._chunk = chunk
        self._info = info
        self._sample_rate = sample_rate

    def cancelled(self):
        return self._responder.cancelled()

    def done(self, decoded):
        spent = {"code2wav_ms": round(decoded.spent_ms, 3), "code2wav_first_ms": round(decoded.first_ms, 3)}
        info = {**self._info, **spent, "primed": decoded.primed} if self._info else {}
        outputs = {
            "audio": decoded.waveform,
            "sample_rate": self._sample_rate,
            "chunk_index": self._chunk.index,
            "final": self._chunk.final,
            "info": json.dumps(info) if info else "",
        }
        self._responder.send(outputs, final=True)

    def skip(self):
        self._responder.end()

    def fail(self, error):
        self._responder.fail(error)
