"""The talker: Qwen3's layers, whose positions all see each other, with tables and heads of codes: a `MaskPredictor`.

Source: omnivoice 0.2.1, `models/omnivoice.py` (`_prepare_embed_inputs`, `forward`). Names equal the checkpoint's.

Shapes: K codebooks, T frames, S positions before them, N of a sequence, C hidden size, V codes of a codebook and the
mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_projections import pack_projections
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader
from voice_clone.batching.source import PayloadForm
from voice_clone.families.omnivoice.config import CODEBOOKS, IDS, MASK, TalkerConfig
from voice_clone.families.omnivoice.prompt import Prompt
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import table_rows, to_device
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import Precision


class Qwen3(DecoderStack):
    """Qwen3's layers, without a direction, and the table of text tokens."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config, causal=False))
        self.embed_tokens = empty_table(config.vocab_size, config.hidden_size)


class Talker(nn.Module):
    """Layers, tables and heads."""

    form = PayloadForm(CODEBOOKS, np.uint16)
    mask = MASK

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = Qwen3(config)
        self.audio_embeddings = empty_table(CODEBOOKS * IDS, config.hidden_size)
        self.audio_heads: nn.Module = nn.Linear(config.hidden_size, CODEBOOKS * IDS, bias=False)

    @property
    def like(self) -> Tensor:
        return self.llm.like

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def utterances(self, prompt: Prompt) -> list[tuple[int, int]]:
        return prompt.lengths

    def context(self, prompt: Prompt, index: int, first: Tensor | None) -> Tensor:
        """The ids of a chunk, then the codes of the clip or of the first chunk."""
        rows = table_rows(self.llm.embed_tokens.weight, prompt.chunks[index], self.like)
        if len(prompt.codec_codes):
            clip = torch.from_numpy(prompt.codec_codes.T.astype(np.int64))
            return torch.cat([rows, self.embed(to_device(clip, self.like.device))])
        return rows if first is None else torch.cat([rows, self.embed(first)])

    def embed(self, codes: Tensor) -> Tensor:
        """The sum of the rows of a frame's codes."""
        offsets = torch.arange(0, CODEBOOKS * IDS, IDS, device=codes.device)[:, None]
        return F.embedding(codes + offsets, self.audio_embeddings.weight).sum(dim=0)

    def logits(self, sequences: Sequence[Tensor], frames: Sequence[int]) -> list[Tensor]:
        lengths = [len(each) for each in sequences]
        most, mask = max(lengths), None
        if min(lengths) < most:
            ends = to_device(torch.tensor(lengths), self.like.device)
            mask = torch.arange(most, device=ends.device) < ends[:, None]
        hidden = self.llm.together(nn.utils.rnn.pad_sequence(list(sequences), batch_first=True), mask)
        return [
            self.audio_heads(row[end - count : end]).float().view(count, CODEBOOKS, IDS).transpose(0, 1)
            for row, end, count in zip(hidden, lengths, frames, strict=True)
        ]


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the projections and the heads of a talker by native code, unless they stay fp32; returns it.

    In fp32 native code is no faster: with so many positions at once, arithmetic takes the time, not memory.

    Args:
        talker: on the CPU.
        precision: to which the weights of all layers are rounded; those of the heads not below int8.
        load: fills a module, given its name below the talker; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """
    if precision == "fp32":
        for index, layer in enumerate([] if load is None else talker.llm.layers):
            assert load is not None
            load(layer, f"llm.layers.{index}")
            layer.float()
        return talker
    pack_projections(talker.llm, precision, layer_loader(load, "llm"), packed)
    talker.audio_heads = NativeLinear.of(talker.audio_heads, head_precision(precision))
    packed.keep()
    leave_threads_to_native_code()
    return talker
