"""A codec decoder small enough to be decoded often, its codes, and what it makes of them in one piece."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.support.families.random_weights import fill_random
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.chunk import CodecChunk
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

SMALL = CodecDecoderConfig(  # 24 samples a frame; the window is shorter than most chunkings
    codebook_dim=16,
    head_dim=8,
    codebook_size=32,
    hidden_size=16,
    latent_dim=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=9,
    intermediate_size=32,
    num_hidden_layers=2,
    num_quantizers=4,
    upsample_rates=(3, 2),
    upsampling_ratios=(2, 2),
    decoder_dim=32,
)
SAMPLES = 24  # a frame
FORM = CodecFormat(
    PayloadForm(SMALL.num_quantizers), frame_samples=SAMPLES, sample_rate=24000, limits=SMALL.codebook_size
)
NO_CODES = np.zeros((0, SMALL.num_quantizers), np.int32)

Codes = NDArray[np.int32]


def small_decoder() -> CodecDecoder:
    """A decoder with random weights, always the same."""
    decoder = CodecDecoder(SMALL)
    fill_random(decoder, seed=0)
    return decoder


def random_codes(frames: int, seed: int) -> Codes:
    """Codes of a stream, int32 [frames, codebooks]."""
    return np.random.default_rng(seed).integers(0, SMALL.codebook_size, (frames, 4), dtype=np.int32)


def whole(decoder: CodecDecoder, codes: Codes, context: Codes = NO_CODES) -> NDArray[np.float32]:
    """The samples of `codes` in one causal decode of the context and them."""
    joined = torch.from_numpy(np.concatenate((context, codes)).T[None].astype(np.int64))
    with torch.inference_mode():
        return np.asarray(decoder(joined)[0, len(context) * SAMPLES :].numpy())


def chunks_of(stream_id: str, codes: Codes, sizes: list[int], context: Codes = NO_CODES) -> list[CodecChunk]:
    """`codes` cut into chunks of `sizes`; what is left over belongs to the last one."""
    cuts = np.cumsum(sizes)[:-1]
    parts = np.split(codes, cuts)
    return [
        CodecChunk(stream_id, i, part, context if i == 0 else NO_CODES, i == len(parts) - 1)
        for i, part in enumerate(parts)
    ]


def make_code2wav(decoder: StreamDecoder[Any], form: CodecFormat = FORM, **given: Any) -> Code2Wav:
    """The streams of a decoder; what is given is for `StatefulStreams`, `Code2Wav` or both."""
    makers: tuple[Any, Any] = StatefulStreams, Code2Wav
    inner, outer = ({n: v for n, v in given.items() if n in inspect.signature(maker).parameters} for maker in makers)
    assert given.keys() <= {*inner, *outer}
    return Code2Wav(StatefulStreams(decoder, form, **inner), form, **outer)
