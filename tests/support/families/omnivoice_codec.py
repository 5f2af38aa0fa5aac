"""Small codecs of OmniVoice, and our networks with their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tools.families.omnivoice.audio_tokenizer import make_audio_tokenizer
from voice_clone.codec.chunk import Reference
from voice_clone.families.omnivoice.codec import FORM
from voice_clone.families.omnivoice.codec_checkpoint import CodecCheckpoint
from voice_clone.families.omnivoice.codec_streams import CodecStreams
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC, CODES
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.families.omnivoice.networks.codec_decoder import CodecDecoder
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder


def make_omnivoice_codec(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """The codec's files alone, in a new folder."""
    folder.mkdir(parents=True)
    make_audio_tokenizer(shape, seed, folder)
    return folder


def load_omnivoice_codec(folder: Path) -> tuple[VoiceEncoder, CodecDecoder]:
    """Our networks in fp32, on the CPU."""
    checkpoint = CodecCheckpoint(folder)
    with torch.device("meta"):
        encoder, decoder = VoiceEncoder(checkpoint.config), CodecDecoder(checkpoint.config)
    for module in (encoder, decoder):
        checkpoint.load(module, CODEC, "", torch.float32, "cpu")
        module.eval().requires_grad_(False)
    return encoder, decoder


def some_frames(count: int, seed: int = 0) -> NDArray[np.uint16]:
    """Frames [count, 8]."""
    return np.random.default_rng(seed).integers(0, CODES, (count, CODEBOOKS)).astype(np.uint16)


def cut_at_random(count: int, most: int, seed: int) -> list[int]:
    """Numbers from 0 to `most` whose sum is `count`."""
    draw, parts = np.random.default_rng(seed), []
    while count:
        parts.append(int(min(count, draw.integers(0, most + 1))))
        count -= parts[-1]
    return parts


def open_stream(streams: CodecStreams, plan: FinishPlan) -> int:
    """The number of a new stream."""
    return streams.open(Reference(FORM.payload.zeros(0), plan.arrays))[0]


def heard(
    streams: CodecStreams, plan: FinishPlan, frames: NDArray[np.uint16], sizes: Sequence[int]
) -> NDArray[np.float32]:
    """A stream's samples, in chunks of so many frames."""
    number, done, made = open_stream(streams, plan), 0, []
    for size in sizes:
        made += streams.decode([number], [frames[done : done + size]])
        done += size
    made.append(streams.flush(number))
    streams.close(number)
    return np.concatenate(made)
