"""Speech tokens to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voice_clone import compute
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.cosyvoice3.config import (
    CODES,
    CROSS_LINGUAL,
    FRAME_SAMPLES,
    MEL,
    MEL_FRAMES,
    SAMPLE_RATE,
    SPEAKER,
    TOKENS,
    ZERO_SHOT,
    stream_chunks,
)
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.decoder_config import LOOK_AHEAD
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.flow_streams import FlowStreams
from voice_clone.families.cosyvoice3.networks.flow import FlowNetwork
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import known_artifacts

log = logging.getLogger(__name__)

CPU_PAGE_BYTES = 4_000_000_000
GPU_SHARE = 4  # the pages take one in so many bytes that are free
FORM = CodecFormat(
    PayloadForm(1, np.uint16), FRAME_SAMPLES, SAMPLE_RATE, CODES, look_ahead=LOOK_AHEAD, needs_voice=True
)


class FlowDecoderStage:
    """The flow and the vocoder of a checkpoint."""

    card, form = CARD, FORM
    chunk_frames = stream_chunks(0)

    def __init__(self, flow: FlowNetwork, vocoder: Vocoder) -> None:
        self.flow = flow
        self.vocoder = vocoder

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> FlowStreams:
        """Both networks with all their streams. On a CPU each stream has products of its own: sharing gains nothing."""
        on_gpu = self.flow.device.type == "cuda"
        default = torch.cuda.mem_get_info()[0] // GPU_SHARE if on_gpu else CPU_PAGE_BYTES
        return FlowStreams(
            self.flow,
            self.vocoder,
            self.form,
            page_bytes=settings.page_bytes or default,
            primed_seconds=settings.primed_seconds,
            together=on_gpu,
            graphs=GraphRunner.on(self.flow.device) if compute.wants_graphs(settings) else None,
        )

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """As of `DecoderStage`: tokens and mel are cut to one length, as the prompt stage does it."""
        for mode in (ZERO_SHOT, CROSS_LINGUAL):
            for record, found in known_artifacts(voices, ArtifactId(CARD.name, mode), [TOKENS, SPEAKER, MEL]):
                tokens = min(len(found[TOKENS]), len(found[MEL]) // MEL_FRAMES)
                voice = {MEL: found[MEL][: MEL_FRAMES * tokens], SPEAKER: found[SPEAKER]}
                yield Reference(found[TOKENS][:tokens, None], voice, record.origin)


def flow_dtype(settings: DecoderSettings) -> torch.dtype:
    """In which the flow computes: as other decoders, but in bf16 also on a CPU that has it, if the settings ask for it.

    Two thirds of its time and half of its pages are saved so, and it is nearly all of the work.
    """
    if settings.precision == "bf16" and compute.device(settings) == "cpu" and INSTRUCTIONS.bf16_dots:
        log.info("the flow computes in bf16")
        return torch.bfloat16
    return compute.decoder_dtype(settings)


def load_decoder(given: Settings) -> FlowDecoderStage:
    """The decoder stage as the settings ask for it, in torch. The vocoder computes in fp32 at any precision."""
    settings = DecoderSettings.of(given)
    checkpoint = DecoderCheckpoint(settings.checkpoint_dir)
    device = torch.device(compute.device(settings))
    flow = checkpoint.load_flow(flow_dtype(settings), device)
    return FlowDecoderStage(flow, checkpoint.load_vocoder(device))
