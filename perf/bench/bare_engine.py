"""The bare engine: a speech without a server, through the same parts as with one."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perf.bench.reference import TEXT
from voice_clone import compute
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.engine import Engine
from voice_clone.batching.stream import FrameChunk
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.codec.worker import Code2WavWorker, Report
from voice_clone.families.qwen3_tts.codec import load_decoder
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.prompt import CODES, EMBEDDING, Prompt, Tokenizer
from voice_clone.families.qwen3_tts.talker import build_request, load_talker
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speech import ResolvedVoice

GREEDY_OPTIONS = {"subtalker_do_sample": False}  # with do_sample = False
PARTS = ("prompt", "talker", "code2wav", "the way")


@dataclass(frozen=True)
class Heard:
    """A speech at its listener: the arrivals of its chunks, in ms since the request, their samples, and the info."""

    arrivals: list[float]
    chunks: list[npt.NDArray[np.float32]]
    info: Mapping[str, Any]
    cpu: float = 0.0  # ms of all processes

    @property
    def parts(self) -> dict[str, float]:
        """The first chunk's time by part."""
        known = [self.info[name] for name in ("prompt_ms", "first_frame_ms", "code2wav_first_ms")]
        return dict(zip(PARTS, [*known, self.arrivals[0] - sum(known)], strict=True))

    @property
    def measures(self) -> dict[str, float]:
        """All but that of the only chunk."""
        count = len(self.arrivals)
        later = (self.arrivals[-1] - self.arrivals[0]) / max(1, count - 1)
        return {"first chunk": self.arrivals[0], "later chunk": later, "CPU": self.cpu / count}


class Bare:
    """Engine and code2wav in this process, wired as the server's models are."""

    def __init__(self, environment: Mapping[str, str], voice: ResolvedVoice, tokenizer: Tokenizer) -> None:
        settings = Settings({}, environ=environment)
        chosen = TalkerSettings.of(settings)
        self._voice, self._tokenizer = voice, tokenizer
        self._config = load_config(chosen.checkpoint_dir)
        talker = load_talker(settings)
        self._generator = talker.source
        prefill_chunk = compute.prefill_chunk(chosen)
        self._generator.warm_up(talker.example, prefill_chunk, 10.0)
        decoder = load_decoder(settings)
        decoding = Code2Wav(StatefulStreams(decoder.decoder, decoder.form), decoder.form, max_batch=1)
        decoding.warm_up(BASE.chunk_frames, (1,), 20.0)
        self._worker = Code2WavWorker(decoding, 4096, _Unobserved())
        self._engine: Engine[TalkerRequest[Prompt]] = Engine(
            self._generator, schedule=BASE.chunk_frames, max_queue=64, prefill_chunk=prefill_chunk
        )

    def speak(self, frames: int) -> Heard:
        """Speak a number of frames."""
        codes = self._voice.artifacts[CODES]
        listener = _Listener(self._worker, codes)
        began = time.perf_counter()
        text_ids = self._tokenizer.text_ids(TEXT)
        prompt = Prompt(
            role_ids=self._tokenizer.role_ids,
            text_ids=text_ids,
            speaker_embedding=self._voice.artifacts[EMBEDDING],
            reference_ids=self._tokenizer.reference_ids(self._voice.transcript or ""),
            reference_codes=codes,
            language_id=None,
        )
        prompt_ms = 1e3 * (time.perf_counter() - began)
        knobs = {"do_sample": False, "seed": 0, "max_frames": frames}
        request = build_request(prompt, knobs, GREEDY_OPTIONS, self._config, self._generator.max_length)
        self._engine.submit(listener.stream_id, request, listener)
        arrivals, chunks = [], []
        while (decoded := listener.heard.get()) is not None:
            arrivals.append(1e3 * (time.perf_counter() - began))
            chunks.append(decoded.waveform)
            if len(chunks) == 1:
                info = {"prompt_ms": prompt_ms, **listener.timing, "code2wav_first_ms": decoded.first_ms}
        return Heard(arrivals, chunks, info)

    def close(self) -> None:
        """Stop the threads."""
        self._engine.close()
        self._worker.close()


class _Listener:
    """The sink of a stream and the tickets of its chunks."""

    def __init__(self, worker: Code2WavWorker, context: npt.NDArray[np.int32]) -> None:
        self.stream_id = uuid.uuid4().hex
        self.timing: dict[str, float] = {}
        self.heard: queue.SimpleQueue[Decoded | None] = queue.SimpleQueue()
        self._worker = worker
        self._context = context

    def chunk(self, chunk: FrameChunk) -> None:
        context = self._context if chunk.index == 0 else self._context[:0]
        self.timing = self.timing or {"first_frame_ms": chunk.timing.first_frame}
        final = chunk.finish is not None
        self._worker.submit(
            CodecChunk(self.stream_id, chunk.index, chunk.payload, context, final),
            _Ticket(self.heard, final),
        )

    def cancelled(self) -> bool:
        return False

    def announce(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise SystemExit(f"the bare engine failed: {error}")


@dataclass(frozen=True)
class _Ticket:
    heard: queue.SimpleQueue[Decoded | None]
    final: bool

    def cancelled(self) -> bool:
        return False

    def done(self, decoded: Decoded) -> None:
        self.heard.put(decoded)
        if self.final:
            self.heard.put(None)

    def skip(self) -> None:
        raise AssertionError("no stream is broken here")

    def fail(self, error: BaseException) -> None:
        raise SystemExit(f"code2wav failed: {error}")


class _Unobserved:
    """An observer that ignores all reports."""

    def lost(self, stream_id: str) -> None:
        pass

    def answered(self, stream_id: str) -> None:
        pass

    def report(self, report: Report) -> None:
        pass
