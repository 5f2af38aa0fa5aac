"""The streams of a decoder by the settings of its model, in the same way for all families."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from voice_clone import compute
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import DecoderStreams, StatefulStreams
from voice_clone.codec.graphed_streams import Graphs
from voice_clone.gpu import memory_bounded_by
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import DecoderSettings

log = logging.getLogger("voice_clone.code2wav")


def load_streams(
    settings: DecoderSettings, decoder: StreamDecoder, form: CodecFormat, chunk_frames: Sequence[int]
) -> StatefulStreams:
    """The streams of a decoder with one state a stream: in CUDA graphs on a GPU, if it is a `PaddedDecoder`.

    Args:
        form: of the frames.
        chunk_frames: of a stream's chunks.
    """
    graphs = None
    if decoder.padded and compute.wants_graphs(settings):
        graphs = Graphs(GraphRunner.on(decoder.device), compute.max_decode_batch(settings), chunk_frames)
    with memory_bounded_by("max_state_bytes"):
        return StatefulStreams(
            decoder,
            form,
            graphs=graphs,
            max_state_bytes=settings.max_state_bytes,
            primed_bytes=settings.primed_bytes,
            primed_seconds=settings.primed_seconds,
        )


def load_code2wav(settings: DecoderSettings, decoding: DecoderStreams, form: CodecFormat) -> Code2Wav:
    """The decoders of all streams.

    Args:
        decoding: the family's.
        form: of the frames.
    """
    code2wav = Code2Wav(
        decoding, form, max_chunk_frames=settings.max_chunk_frames, idle_seconds=settings.stream_idle_seconds
    )
    max_batch = compute.max_decode_batch(settings)
    log.info("at most %d streams, decoded %d at a time", code2wav.max_streams, max_batch)
    return code2wav
