"""`<family>_talker`: a prompt to a stream of frames; all streams in one batch.

in    prompt, prompt_info  STRING [1]  as `<family>_prompt` makes them
      those of `request_fields.FIELDS` that this stage reads, all optional
      cancel               STRING [1]  instead of all else: the client of the stream of this id has left
      append, text         STRING [1], index INT32 [1], last BOOL [1]  instead of all else, where config.pbtxt has them:
                                       a piece of the text of the stream of this id; see `TextStreams`
      forget               STRING [1]  instead of all else: see `triton.forgetting`
out   stream_id, info STRING [1], codes, context_codes [-1, -1], chunk_index INT32 [1], final BOOL [1]
      voice                STRING [1]  where config.pbtxt has it: what the decoder needs of the voice, packed

An append, and the `cancel` of a stream whose text is open, is answered with `info` alone: JSON with `accepted` (the
last piece that was taken), `text_tokens`, `read` of them, `characters` of the text that they stand for,
`part_characters` (how long a text the model speaks well), `state` (`pending`: waits for a slot, `open`, `closed`,
`ended`) and, of an ended stream, `finish_reason`.

The request parameter `deadline_ms` bounds the time of a whole stream. With `synthesizer`, which is true, `info` has the
digest of that name, or null if it is not known yet; see `voice_clone.synthesizer`. Metrics: see
voice_clone/batching/statistics.py; their names begin with `voice_clone_talker_`, with a label `family`.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from functools import partial
from typing import Any

from voice_clone import compute
from voice_clone.batching.engine import Engine
from voice_clone.batching.statistics import Statistics
from voice_clone.gpu import memory_bounded_by
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.opening import open_known_voices
from voice_clone.stages.protocols import TalkerStage, chunk_schedule
from voice_clone.synthesizer import PartDigest
from voice_clone.triton.forgetting import ForgetHandler, answer_at_rest
from voice_clone.triton.model import Model
from voice_clone.triton.notices import Notices
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.server_stop import HttpEndpoint, ServerStop
from voice_clone.triton.stages.streams import LastChunks, public_id
from voice_clone.triton.stages.talker_call import read_call
from voice_clone.triton.stages.talker_sink import TalkerSink
from voice_clone.triton.stages.text_streams import Piece, TextStreams
from voice_clone.triton.telemetry import Metric

log = logging.getLogger("voice_clone.talker")


class TalkerModel(Model):
    """The base of `<family>_talker`. A family sets `load_stage`."""

    stage = "talker"
    single = True  # one engine batches all streams
    rests_with = "checkpoint_dir"

    @staticmethod
    @abstractmethod
    def load_stage(given: Settings, /) -> TalkerStage[Any, Any]:
        """The family's stage, as the settings ask for it."""

    def load(self, given: Settings) -> None:
        settings = TalkerSettings.of(given)
        compute.prepare(settings)
        log.info("weights in %s on %s", compute.precision(settings), compute.device(settings))
        self._digest = PartDigest(settings)
        self._notices = Notices(f"{self.family}_talker")  # at rest, too: nobody else may take its place
        endpoint = HttpEndpoint.of_parent()
        self._server_stop = ServerStop(endpoint, self._drain) if endpoint else None

    def load_heavy(self, given: Settings) -> None:
        settings = TalkerSettings.of(given)
        self._stage = stage = self.load_stage(given)
        source = stage.source
        usual = source.slots - source.spare_slots
        log.info("%d streams and %d spare, %.1f MB of memory", usual, source.spare_slots, source.memory_bytes / 1e6)
        self._max_reference_frames = settings.max_chunk_frames
        self._engine = Engine(
            source,
            schedule=chunk_schedule(settings, stage.chunk_frames),
            # A chunk that is sent early changes its samples by rounding, which a deterministic engine must not do.
            frame_seconds=0.0 if source.deterministic else stage.frame_seconds,
            max_queue=settings.max_queue,
            prefill_chunk=compute.prefill_chunk(settings),
            spare_slots=source.spare_slots,
            statistics=Statistics("voice_clone_talker_", partial(Metric, family=self.family), stage.frame_seconds),
            news=self._notices.news,
            warm_up=partial(_warm_up, stage, settings, self.rest is not None),
        )
        self._texts = TextStreams(
            self._engine,
            most_open=max(1, usual - 1),
            idle_seconds=settings.text_idle_seconds,
            went_on=self.went_on,
            part_characters=getattr(stage, "part_characters", None),  # of a family whose texts can be appended
        )
        self._last_chunks = LastChunks()
        living = open_known_voices(settings).origins
        self._forget_handler = ForgetHandler(source.forget, living, self._digest.get)

    def serves_at_rest(self, request: Request) -> bool:
        return request.text("forget") is not None or request.text("cancel") is not None

    def busy(self) -> bool:
        return bool(self._engine.streams) or self._texts.busy

    def handle(self, request: Request, responder: Responder) -> None:
        """Queue a stream, append to its text, cancel it, or forget voices."""
        if not self.awake:
            if not answer_at_rest(request, responder, self._digest.get):
                responder.end()  # the stream to cancel has ended
            return
        if self._forget_handler.answer(request, responder):
            return
        appended = request.text("append")
        if appended is not None:
            piece = Piece(request.number("index"), request.text("text") or "", bool(request.number("last")))
            self._texts.append(appended, piece, responder, self.caller(request).name)
            return
        cancelled = request.text("cancel")
        if cancelled is not None:
            self._engine.cancel(public_id(cancelled))
            self._last_chunks.answered(cancelled)
            info = self._texts.info(cancelled)
            if info is not None:
                responder.send({"info": json.dumps(info)}, final=True)
            responder.end()
            return
        caller = self.caller(request)
        stream = read_call(request, self._stage, self.family, self._max_reference_frames)
        if request.parameter("synthesizer"):
            stream = stream.saying({"synthesizer": self._digest.get()})
        plan, text_open = stream.plan, stream.plan.text is not None
        sink = TalkerSink(stream, responder, self._last_chunks, texts=self._texts if text_open else None)
        submit = partial(
            self._engine.submit,
            stream.stream_id,
            plan.request,
            sink,
            stream.deadline,
            text_open,
            plan.chunk_frames,
            caller,
        )
        if plan.text is None:
            submit()
        else:
            self._texts.open(stream.stream_id, plan.text, submit, caller.name)

    def close(self) -> None:
        if self._server_stop is not None:
            self._server_stop.close()
        self._notices.close()

    def _drain(self, seconds: float) -> None:
        if self.rest is not None:
            self.rest.when_awake(partial(self._end_streams, seconds))

    def _end_streams(self, seconds: float) -> None:
        self._texts.close_texts()
        self._engine.drain(seconds)
        if not self._last_chunks.wait():
            log.warning("a stream's last chunk was not decoded in time")


def _warm_up(stage: TalkerStage[Any, Any], settings: TalkerSettings, after_rest: bool) -> None:
    if after_rest and compute.device(settings) == "cpu":  # the code is compiled, and a request waits
        return
    with memory_bounded_by("max_streams"):
        seconds = stage.source.warm_up(stage.example, compute.prefill_chunk(settings), settings.warm_up_seconds)
    log.info("warmed up in %.1f s", seconds)
    if after_rest:
        return
    voices = stage.known_prompts(open_known_voices(settings))
    if restored := stage.source.restore(voices, settings.restore_seconds):
        log.info("restored the prompts' prefixes of %d voices", restored)
