"""The network in torch, with native code in place of its large layers on a CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import table_rows, to_device
from voice_clone.layers.mel import whisper_frames
from voice_clone.native.matrix.linear_module import NativeLinear, use_native_linears
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.qwen3_aligner.config import AUDIO_PAD, WEIGHTS, AlignerConfig, TextConfig
from voice_clone.qwen3_aligner.tower import AudioTower, Layer
from voice_clone.settings import Precision, PrecisionSettings
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network

PIECE = 512  # positions that the decoder reads at once, which bounds what it keeps of them
ROOM = 1024  # positions by which the memory of keys and values grows


class Qwen3(DecoderStack):
    """Qwen3's layers with the table of text tokens."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__(StackConfig.of(config))
        self.embed_tokens = empty_table(config.vocab_size, config.hidden_size)


class ForcedAligner(nn.Module):
    """Encoder, decoder and head. Names are those of the checkpoint below `thinker.`.

    Attributes:
        native_stack: runs in place of the decoder's layers; None: the layers run.
    """

    native_stack: Stack | None = None

    def __init__(self, config: AlignerConfig) -> None:
        super().__init__()
        self.config = config
        self.audio_tower = AudioTower(config.audio)
        self.model = Qwen3(config.text)
        self.lm_head: nn.Module = nn.Linear(config.text.hidden_size, config.classify_num, bias=False)

    @torch.inference_mode()
    def rows(self, waveform: NDArray[np.float32]) -> Tensor:
        """What the decoder reads of a sound, float32 [samples] at 16 kHz, in -1..1, more than 200: [rows, C]."""
        like = self.model.like
        rows: Tensor = self.audio_tower(to_device(whisper_frames(torch.from_numpy(waveform)), like.device, like.dtype))
        return rows

    @torch.inference_mode()
    def logits(self, rows: Tensor, ids: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
        """The scores of all classes at some places of a prompt.

        Args:
            rows: [rows, C].
            ids: [N], of the prompt; it has as many tokens for the sound as there are rows.
            places: [n], below N.

        Returns:
            float32 [n, classes].
        """
        prompt = table_rows(self.model.embed_tokens.weight, ids, self.model.like)
        prompt[torch.from_numpy(np.flatnonzero(ids == self.config.tokens[AUDIO_PAD]))] = rows
        hidden = self._read(prompt)[torch.from_numpy(places)]
        found: Tensor = self.lm_head(hidden).float()
        return found

    def _read(self, prompt: Tensor) -> Tensor:
        """The decoder's hidden states of all positions [N, C], in pieces."""
        stack: Stack = self.native_stack or self.model
        length, found = len(prompt), []
        cache = stack.new_cache(1, -(-length // ROOM) * ROOM)
        places = torch.arange(length, device=prompt.device)
        owners = torch.zeros_like(places)
        for begin in range(0, length, PIECE):
            end = min(begin + PIECE, length)
            owner, positions, rows = owners[begin:end], places[begin:end], prompt[begin:end]
            found.append(stack.prefill_together(cache, owners[:1], owner, positions, rows, end))
        return torch.cat(found)


ATTENTION, FEED_FORWARD = ("qkv_proj", "out_proj"), ("fc1", "fc2")
_PROJECTIONS_IN_FILE = ("q_proj", "k_proj", "v_proj", "out_proj")


def _weights_of_layers(config: AlignerConfig) -> tuple[str, ...]:
    """Names of what is packed layer by layer."""
    names = [f"self_attn.{name}" for name in _PROJECTIONS_IN_FILE] + list(FEED_FORWARD)
    tower = [f"audio_tower.layers.{n}.{name}.weight" for n in range(config.audio.encoder_layers) for name in names]
    return ("model.layers.", *tower)


def use_native_code(
    network: ForcedAligner, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> ForcedAligner:
    """Replace the decoder's layers, the projections of the encoder's and the head by native code: a `UseNativeCode`."""
    layers = layer_loader(load, "model")
    network.native_stack = native_stack(network.model, precision, layers, packed.part("decoder"))
    for number, layer in enumerate(network.audio_tower.layers):
        assert isinstance(layer, Layer)
        name = f"audio_tower.layers.{number}"
        for owner, below, projections in ((layer.self_attn, ".self_attn", ATTENTION), (layer, "", FEED_FORWARD)):
            fill = None if load is None else partial(_fill, load, owner, name + below)
            use_native_linears(owner, projections, precision, packed.part(f"{name}{below}"), fill, prompts=True)
    network.lm_head = NativeLinear.of(network.lm_head, head_precision(precision))
    packed.keep()
    leave_threads_to_native_code()
    return network


def _fill(load: Load, module: nn.Module, name: str) -> None:
    load(module, name)
    module.float()


def load_network(settings: PrecisionSettings, folder: Path, config: AlignerConfig) -> ForcedAligner:
    """The network of the checkpoint in `folder`.

    Raises:
        CheckpointError: as of `CheckpointFiles.load`.
    """
    table = ("model.embed_tokens.weight",)  # a prompt needs a few rows of it
    return load_talker_network(
        settings,
        empty(lambda: ForcedAligner(config)),
        CheckpointFiles(folder),
        WEIGHTS,
        [TalkerPart("", "thinker.", _weights_of_layers(config), in_file=table)],
        family="qwen3_aligner",
        sizes=config,
        use_native_code=use_native_code,
    )
