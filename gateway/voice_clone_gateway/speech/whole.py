"""Speak one text to its end, where the answer has the whole audio at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voice_clone_client import Incomplete
from voice_clone_client.long_text.speaker import Speech

from ..audio import Encoder
from ..http.account import Answer, Item
from ..http.keys import Key
from ..schemas import SpeechRequest
from ..services import Services
from .audited import audited, audited_result
from .synthesis import encoder as encoder_of
from .synthesis import open_speech


@dataclass(frozen=True)
class FinishedSpeech:
    """A speech that has ended.

    Attributes:
        audio: in the format of the request, signed where the settings ask for it.
        media_type: of the audio.
        info: what the server says of the speech; empty if it says nothing.
        warnings: of the order.
    """

    audio: bytes
    media_type: str
    info: Mapping[str, Any]
    warnings: Sequence[str]


async def speak_whole(
    services: Services,
    key: Key,
    request_id: str,
    payload: SpeechRequest,
    held: Item,
    *,
    in_one: bool = False,
) -> FinishedSpeech:
    """Speak one text to its end.

    Args:
        held: what the request holds.
        in_one: see `open_speech`.

    Raises:
        Exception: as `open_speech`, as `Answer.has`, and what the speech raises.
    """
    asked, metrics = audited(key, payload), services.metrics
    spoken: Speech | None = None
    with (
        services.audit.act(key, request_id, "speech", **asked, characters=len(payload.input)) as entry,
        metrics.live.track_inprogress(),
        held.part() as hold,
    ):
        encoder: Encoder | None = None
        kept = Answer(held, services.settings.max_answer_bytes)
        try:
            spoken, ordered = await open_speech(services, key, payload, hold, hold=True, in_one=in_one)
            async for chunk in spoken:
                if encoder is None:
                    comment = services.signing.statement(ordered.family, spoken.info)
                    encoder = encoder_of(payload, chunk.sample_rate, ordered.speed, streaming=False, comment=comment)
                await encoder.encode_aside(chunk.samples)
                kept.has(encoder.size)
            assert encoder is not None  # a speech without a chunk is a broken stream
            data, client = await encoder.finish_aside(), services.clients.of(key)
            kept.has(len(data))
            media_type = encoder.format.base_type
            data = await services.signing.signed(data, media_type, ordered.family, spoken.info, client, held)
        except BaseException as error:
            kept.drop()
            metrics.count_failed(error, encoder is not None or isinstance(error, Incomplete))
            raise
        finally:
            if spoken is not None:
                spoken.close()
                seconds = 0.0 if encoder is None else encoder.seconds
                metrics.audio_seconds.inc(seconds)
                metrics.count_mark(key, spoken.info)
                entry |= audited_result(spoken.info, seconds)
    return FinishedSpeech(data, encoder.media_type, spoken.info or {}, ordered.warnings)
