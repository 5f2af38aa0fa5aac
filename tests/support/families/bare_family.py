"""A family in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.audio import decode, resample
from voice_clone.codec.chunk import Reference
from voice_clone.lru_cache import Origin
from voice_clone.stages.protocols import Arrays, EncoderStage, StreamPlan


@dataclass(frozen=True, eq=False)
class Spoken:
    """Codes int32 [frames, codebooks], samples float32, and why the stream ended."""

    codes: NDArray[np.int32]
    samples: NDArray[np.float32]
    finish: str


def encode(encoder: EncoderStage, clip: bytes, mode: str | None = None) -> Arrays:
    """What an encoder makes of an audio file."""
    decoded = decode(clip)
    return encoder.encode(resample(decoded.waveform, decoded.sample_rate, encoder.sample_rate), mode)


def speak(source: Any, decoder: Any, plan: StreamPlan[Any]) -> Spoken:
    """The codes of a planned stream, and their decode in one piece."""
    codes, finish = _generate(source, plan)
    return Spoken(codes, decode_whole(decoder, codes, plan), finish)


def speak_in_streams(source: Any, streams: Any, plan: StreamPlan[Any]) -> Spoken:
    """The same of a family whose decoder has `DecoderStreams` of its own."""
    codes, finish = _generate(source, plan)
    stream, _ = streams.open(Reference(plan.context, plan.voice, Origin.unknown()))
    samples = [*streams.decode([stream], [codes]), streams.flush(stream)]
    streams.close(stream)
    return Spoken(codes, np.concatenate(samples), finish)


def _generate(source: Any, plan: StreamPlan[Any]) -> tuple[NDArray[Any], str]:
    source.start(0, plan.request)
    frames, finish = [], None
    while finish is None:
        [frame] = source.step([0])
        finish = frame.finish
        frames += [] if frame.payload is None else [frame.payload]
    source.free(0)
    return source.payload.join(frames), finish


def decode_whole(decoder: Any, codes: NDArray[np.int32], plan: StreamPlan[Any]) -> NDArray[np.float32]:
    """Codes [frames, codebooks], in the voice of `plan` if the decoder needs it, in one piece."""
    if not len(codes):
        return np.zeros(0, np.float32)
    state = decoder.new_state(1)
    if plan.voice:
        decoder.condition(state, plan.voice)
    samples: NDArray[np.float32] = decoder.decode_chunk(torch.from_numpy(codes.T[None].astype(np.int64)), state)[0]
    return np.asarray(samples)
