"""`<family>_code2wav`: frames to audio, chunk by chunk. `execute` only queues; the worker's thread decodes.

in    stream_id, info STRING [1], codes, context_codes [-1, -1], chunk_index INT32 [1], final BOOL [1]
      voice  STRING [1]  where config.pbtxt has it, with the reference: what the decoder needs of the voice, packed
      forget STRING [1]  instead of all else: see `triton.forgetting`
out   audio FP32 [-1], sample_rate INT32 [1], chunk_index INT32 [1], final BOOL [1], info STRING [1]

A talker whose stream fails sends a last chunk: `final`, and `info` with the error's message as `error` (TalkerSink says
why errors travel so). A chunk without frames that is not final is a heartbeat: it only asks whether the client is still
there, and gets no response; `OpenRequests` says when it ends. The first heartbeat brings the reference, so that
the decoder's state after it is computed before the first chunk comes. `soon` in its `info` means that a listener waits
for that chunk: batch work is then held back for it. `info` of what brings the reference may have an
`origin`, which stays here: what is computed of the reference is filed under it.

With the request parameter `errors_in_info` a stream that fails ends with such a last chunk for its listener, too, in
place of an error. `speech_whole` asks for it: in a call between models python_backend loses an error that is not the
first response, for it saves no id with it, and the caller waits for ever (fault: lost-late-error).

The request parameter `mark` says whether the stream is to be marked as synthetic: `off`, `on` or `required`. The
setting `mark` may ask for more, and gets it.

If `info` has a `synthesizer`, that is the talker's digest; it becomes that of both. See `voice_clone.synthesizer`.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from voice_clone import compute
from voice_clone.codec.chunk import CodecChunk, Decoded, MarkWish, Reference
from voice_clone.codec.code2wav import Code2Wav, load_code2wav
from voice_clone.codec.marks import mark_wish
from voice_clone.codec.worker import MAX_BROKEN, Code2WavWorker
from voice_clone.errors import VoiceCloneError, from_message
from voice_clone.gpu import memory_bounded_by
from voice_clone.lru_cache import Origin
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.opening import open_known_voices
from voice_clone.speech import synthesizer_digest
from voice_clone.stages.protocols import DecoderStage, chunk_schedule
from voice_clone.synthesizer import PartDigest
from voice_clone.triton.forgetting import ForgetHandler, answer_at_rest
from voice_clone.triton.model import Model
from voice_clone.triton.notices import Notices
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.stages.code2wav_observer import Code2WavObserver
from voice_clone.triton.stages.streams import OpenRequests, public_id, talker_of
from voice_clone.triton.tensors import Array, Value, unpack

log = logging.getLogger("voice_clone.code2wav")


class Code2WavModel(Model):
    """The base of `<family>_code2wav`. A family sets `load_stage`."""

    stage = "code2wav"
    single = True  # it holds every stream's decoder state and the order of its chunks
    rests_with = "checkpoint_dir"

    @staticmethod
    @abstractmethod
    def load_stage(given: Settings, /) -> DecoderStage:
        """The family's stage, as the settings ask for it."""

    def load(self, given: Settings) -> None:
        settings = DecoderSettings.of(given)
        precision = compute.decoder_precision(settings)
        compute.prepare(settings, share=2, tf32=precision == "tf32")
        log.info("decodes in %s on %s", precision, compute.device(settings))
        self._digest = PartDigest(settings)
        self._notices = Notices(f"{self.family}_code2wav")  # at rest, too: nobody else may take its place
        self._observer = Code2WavObserver(self.family)
        self._refused: OrderedDict[str, BaseException] = OrderedDict()  # why talkers' streams found no decoder

    def load_heavy(self, given: Settings) -> None:
        settings = DecoderSettings.of(given)
        stage = self.load_stage(given)
        self._sample_rate = stage.form.sample_rate
        schedule = chunk_schedule(settings, stage.chunk_frames)
        code2wav = load_code2wav(settings, stage.streams(settings, schedule), stage.form)
        self._open = OpenRequests()
        self._worker = Code2WavWorker(
            code2wav,
            settings.max_waiting_chunks,
            self._observer,
            news=self._notices.news,
            warm_up=partial(_warm_up, code2wav, stage, settings, schedule, self.rest is not None),
        )
        living = open_known_voices(settings).origins
        self._forget_handler = ForgetHandler(code2wav.forget, living, self._digest.get)

    def serves_at_rest(self, request: Request) -> bool:
        return request.text("forget") is not None or request.text("stream_id") in self._refused

    def busy(self) -> bool:
        return self._worker.busy

    def refuse(self, request: Request, responder: Responder, error: BaseException) -> None:
        """A talker's stream gets an error with its last chunk; see `codec.worker`. If this model did not wake up for
        it, that is so for all of the stream, and the talker is asked to stop.
        """
        stream_id = request.text("stream_id") or ""
        if talker_of(stream_id) is None:
            responder.fail(error)
            return
        if not self.awake and stream_id not in self._refused:
            self._refused[stream_id] = error.with_traceback(None)  # which holds the request
            if len(self._refused) > MAX_BROKEN:
                self._refused.popitem(last=False)
            self._observer.lost(stream_id)
        if request.number("final"):
            responder.fail(self._refused.pop(stream_id, error))
            self._observer.answered(stream_id)
        else:
            responder.end()

    def close(self) -> None:
        self._notices.close()
        self._observer.close()

    def handle(self, request: Request, responder: Responder) -> None:
        """Queue a chunk, or answer a heartbeat, or forget voices."""
        refused = self._refused.get(request.text("stream_id") or "")
        if refused is not None:
            self.refuse(request, responder, refused)
            return
        if not self.awake:
            answer_at_rest(request, responder, self._digest.get)
            return
        if self._forget_handler.answer(request, responder):
            return
        request.require("stream_id", "codes", "context_codes", "chunk_index", "final", "info")
        stream_id, payload, context = request.text("stream_id"), request.array("codes"), request.array("context_codes")
        assert stream_id is not None and payload is not None and context is not None
        final, from_talker = bool(request.number("final")), talker_of(stream_id) is not None
        if not final and len(payload) == 0:  # a heartbeat
            if responder.cancelled():
                self._worker.abandon(stream_id)
                self._open.end(stream_id)
                responder.end()
                return
            self._worker.keep(stream_id)
            self._look_ahead(request, stream_id, context)
            self._open.hold(stream_id, responder)
            return
        self._open.end(stream_id)
        info: dict[str, Any] = {}
        voice: dict[str, Array] = {}
        mark: MarkWish = "off"
        failure: VoiceCloneError | None = None
        try:
            info = request.json_object("info")
            voice = unpack("voice", request.raw("voice"))
            failure = from_message(str(info["error"])) if final and "error" in info else None
            mark = mark_wish(request.parameter("mark"))
        except VoiceCloneError as error:
            if not from_talker:
                raise
            failure = error
        if "synthesizer" in info:  # so far it has the talker's digest
            talker, own = info["synthesizer"], self._digest.get()
            info["synthesizer"] = None if None in (talker, own) else synthesizer_digest(str(talker), str(own))
        index = request.number("chunk_index")
        origin = Origin.from_json(info.pop("origin", None))
        chunk = CodecChunk(stream_id, index, payload, context, final, failure, voice, from_talker, origin, mark)
        in_info = bool(request.parameter("errors_in_info"))
        ticket = _ChunkTicket(responder, chunk, info, self._sample_rate, self._open, in_info)
        self._worker.submit(chunk, ticket, self.caller(request))

    def _look_ahead(self, request: Request, stream_id: str, context: Array) -> None:
        """A heartbeat may say that the first chunk comes soon, and bring the reference; it must not fail, and the first
        chunk brings the reference again.
        """
        try:
            info = request.json_object("info")
            if info.get("soon"):
                self._worker.expect(stream_id, public_id(stream_id))
            voice = unpack("voice", request.raw("voice"))
            if context.size or voice:
                self._worker.prepare(Reference(context, voice, Origin.from_json(info.get("origin"))))
        except VoiceCloneError as error:
            log.info("a reference could not be prepared: %s", error)


def _warm_up(
    code2wav: Code2Wav, stage: DecoderStage, settings: DecoderSettings, lengths: Sequence[int], after_rest: bool
) -> None:
    if after_rest and compute.device(settings) == "cpu":  # the code is compiled, and a request waits
        return
    batches = sorted({1, code2wav.max_batch})
    with memory_bounded_by("max_decode_batch"):
        code2wav.warm_up(lengths, batches, settings.warm_up_seconds)
    if after_rest:
        return
    references = stage.known_references(open_known_voices(settings))
    if restored := code2wav.restore(references, settings.restore_seconds):
        log.info("restored the decoder's state after the references of %d voices", restored)


class _ChunkTicket:
    """Answers the request of one chunk; a `Ticket`."""

    def __init__(
        self,
        responder: Responder,
        chunk: CodecChunk,
        info: Mapping[str, Any],
        sample_rate: int,
        open_requests: OpenRequests,
        errors_in_info: bool,
    ) -> None:
        self._responder = responder
        self._open = open_requests
        self._chunk = chunk
        self._info = info
        self._sample_rate = sample_rate
        self._errors_in_info = errors_in_info

    def cancelled(self) -> bool:
        return self._responder.cancelled()

    def done(self, decoded: Decoded) -> None:
        spent = {"code2wav_ms": round(decoded.spent_ms, 3), "code2wav_first_ms": round(decoded.first_ms, 3)}
        mark = {} if decoded.mark == "off" else {"mark": decoded.mark}
        info = {**self._info, **spent, "primed": decoded.primed, **mark} if self._info else {}
        outputs = self._outputs(decoded.waveform, info)
        if self._chunk.from_talker and not self._chunk.final:
            self._responder.send(outputs)
            self._open.hold_unless_newer(self._chunk.stream_id, self._responder)
            return
        self._open.end(self._chunk.stream_id)
        self._responder.send(outputs, final=True)

    def _outputs(self, waveform: Array, info: Mapping[str, Any]) -> dict[str, Value]:
        return {
            "audio": waveform,
            "sample_rate": self._sample_rate,
            "chunk_index": self._chunk.index,
            "final": self._chunk.final,
            "info": json.dumps(info) if info else "",
        }

    def skip(self) -> None:
        self._responder.end()

    def fail(self, error: BaseException) -> None:
        self._open.end(self._chunk.stream_id)
        if self._errors_in_info and self._chunk.final and isinstance(error, VoiceCloneError):
            outputs = self._outputs(np.zeros(0, np.float32), {**self._info, "error": error.message})
            self._responder.send(outputs, final=True)
            return
        self._responder.fail(error)
