"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.example_family.config import WEIGHTS, ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE, check_timbre
from voice_clone.batching.source import PayloadForm
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.decoder import CodecFormat, RaggedDecoder, StreamState
from voice_clone.errors import InvalidArgument
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import CachedOnGpu
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork


class ChirpDecoder(nn.Module, RaggedDecoder):
    """Codes [B, K, n] to a waveform [B, n * frame_samples]."""

    any_shape = False

    def __init__(self, config: ChirpConfig) -> None:
        super().__init__()
        dim, sizes = config.decoder.hidden_size, config.codebook_sizes
        self.timbre_size = config.timbre_size
        self.codes = empty_table(sum(sizes), dim)
        self.timbre = nn.Linear(config.timbre_size, dim)
        self.first = CausalConv1d(dim, dim, 3)
        self.upsampling = nn.ModuleList(
            CausalConvTranspose1d(dim, dim, 2 * rate, rate) for rate in config.decoder.upsampling
        )
        self.last = CausalConv1d(dim, 1, 7)
        self._first_rows = [0, *accumulate(sizes[:-1])]
        self._first_row: CachedOnGpu[Tensor] = CachedOnGpu()
        self._slots = streaming_slots(self)

    @property
    def device(self) -> torch.device:
        return self.timbre.weight.device

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState[Tensor]:
        buffers = [module.new_state(batch) for module in self._slots]
        no_timbre = self.timbre.weight.new_zeros(batch, self.timbre.out_features)
        return StreamState(torch.zeros(batch, dtype=torch.int64, device=self.device), [*buffers, no_timbre])

    @torch.inference_mode()
    def condition(self, state: StreamState[Tensor], voice: Mapping[str, NDArray[Any]]) -> None:
        if TIMBRE not in voice:
            raise InvalidArgument(f"voice lacks {TIMBRE}; the prompt stage makes it")
        check_timbre(voice[TIMBRE], self.timbre_size)
        mean = torch.from_numpy(voice[TIMBRE].astype(np.float32).mean(axis=0, keepdims=True))
        weight = self.timbre.weight
        state.buffers[-1] = self.timbre(mean.to(weight.device, weight.dtype))

    @torch.inference_mode()
    def decode_chunk(self, frames: Tensor, state: StreamState[Tensor], lengths: Tensor | None = None) -> Tensor:
        stream = ChunkPass(self._slots, state.buffers, lengths, frames.shape[-1])
        rows = frames + self._first_row.get(self.timbre.weight, self._first_of_each)[:, None]
        x = self.codes(rows).sum(1).transpose(1, 2) + state.buffers[-1][..., None]  # [B, C, n]
        x = stream(self.first, x)
        for upsample in self.upsampling:
            x = stream(upsample, torch.tanh(x))
        waveform = torch.tanh(stream(self.last, x)).squeeze(1)
        moved = frames.shape[-1] if lengths is None else lengths
        state.position, state.buffers = state.position + moved, stream.buffers
        return waveform

    def _first_of_each(self) -> Tensor:
        return torch.tensor(self._first_rows, device=self.device)

    def prime(self, frames: Tensor, state: StreamState[Tensor]) -> None:
        self.decode_chunk(frames, state)


class ChirpDecoderStage(CardDecoder):
    """The decoder of a checkpoint."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[ChirpDecoder]:
        config = load_config(folder)
        form = CodecFormat(
            payload=PayloadForm(len(config.codebook_sizes), np.uint16),
            frame_samples=config.frame_samples,
            sample_rate=config.sample_rate,
            limits=config.codebook_sizes,
            needs_voice=True,
        )
        return DecoderNetwork(CheckpointFiles(folder), WEIGHTS, "decoder.", lambda: ChirpDecoder(config), form)


load_decoder = ChirpDecoderStage.load
