"""The flow: speech tokens and a voice to a mel spectrogram, block by block (flow matching, Lipman et al. 2023; DiT).

Ten steps of Euler's method turn noise into the spectrogram. In each step a transformer computes the direction, twice:
with and without tokens and voice (classifier-free guidance). Attention is causal by blocks of 50 frames, counted from
the reference's first frame, and the convolutions before it are causal. So a block depends on those before it by their
keys and values at each step and layer, and by the convolutions' last inputs, which a `Page` keeps. Blocks whose pages
are gone are computed again together with the next ones, with the same results, because the same products are computed
in another order. Source: the official repository's `cosyvoice/flow`.

Shapes: n frames of a block, 50 but in the last one; D the transformer's width; 2 stands for with and without guidance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.cosyvoice3.config import BLOCK, CODES, MEL_BANDS, MEL_FRAMES, SPEAKER_SIZE
from voice_clone.families.cosyvoice3.decoder_config import (
    GROUPS,
    GUIDANCE,
    HEAD_DIM,
    KERNEL,
    LOOK_AHEAD,
    NOISE_FRAMES,
    STEPS,
    TIME_SIZE,
    FlowConfig,
)
from voice_clone.layers.fused import empty_table

BLOCK_FRAMES = BLOCK * MEL_FRAMES
EPS = 1e-6
THETA = 10000.0  # of the rotary embedding
TIME_SCALE = 1000.0


@dataclass(eq=False)
class Page:
    """What later blocks need of a whole block.

    Attributes:
        number: in its pool; when this page is gone it is another one's.
        keys: [steps, layers, 2 (keys, values), 2, heads, 50, 64].
        inputs: [steps, 2 (convolutions), 2, D, 30], what the two convolutions saw last.
    """

    number: int
    keys: Tensor
    inputs: Tensor

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.inputs.nbytes


@dataclass(frozen=True)
class Block:
    """What a block is made of.

    Attributes:
        tokens: [n, bands] fp32, of the tokens, a row for each frame.
        reference: [n, bands] fp32, frames of the voice's clip, zeros behind its end.
    """

    tokens: Tensor
    reference: Tensor


@dataclass(frozen=True)
class Span:
    """Consecutive blocks of one stream that are to be solved.

    Attributes:
        speaker: [bands] fp32.
        pages: of all blocks before them, from the first one on.
        blocks: at least one; all but the stream's last one are whole.
        keep: for each of the blocks the page to be filled, or None. That of a block that is not whole is of no use.
    """

    speaker: Tensor
    pages: Sequence[Page]
    blocks: Sequence[Block]
    keep: Sequence[Page | None]


class LookAhead(nn.Module):
    """Two convolutions over the tokens' embeddings; the first one sees 3 tokens ahead."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MEL_BANDS, channels, LOOK_AHEAD + 1)
        self.conv2 = nn.Conv1d(channels, MEL_BANDS, 3)

    def forward(self, embeds: Tensor, begins: bool) -> Tensor:
        """Two tokens before, n of a block and 3 behind: [2 + n + 3, bands] -> [n, bands]; zeros where there is none."""
        x = F.leaky_relu(self.conv1(embeds.T[None]))
        if begins:
            x = F.pad(x[..., 2:], (2, 0))
        out: Tensor = self.conv2(x)[0].T + embeds[2:-LOOK_AHEAD]
        return out


class Layer(nn.Module):
    """A layer of the transformer. Its norms' scales and shifts are a table, made of `modulation` for each step."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.modulation: nn.Linear | None = nn.Linear(config.dim, 6 * config.dim)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)
        self.up = nn.Linear(config.dim, config.ffn)
        self.down = nn.Linear(config.ffn, config.dim)


class FlowNetwork(nn.Module):
    """Blocks of tokens to blocks of mel frames."""

    tables: Tensor  # [steps, layers, 6, D]
    final_table: Tensor  # [steps, 2, D]

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = empty_table(CODES, MEL_BANDS)
        self.speaker = nn.Linear(SPEAKER_SIZE, MEL_BANDS)
        self.look_ahead = LookAhead(config.look_ahead_channels)
        self.noise = nn.Parameter(torch.empty(NOISE_FRAMES, MEL_BANDS))
        self.time_mlp = nn.ModuleList([nn.Linear(TIME_SIZE, config.dim), nn.Linear(config.dim, config.dim)])
        self.proj = nn.Linear(4 * MEL_BANDS, config.dim)
        self.convs = nn.ModuleList(nn.Conv1d(config.dim, config.dim, KERNEL, groups=GROUPS) for _ in range(2))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_modulation: nn.Linear | None = nn.Linear(config.dim, 2 * config.dim)
        self.final = nn.Linear(config.dim, MEL_BANDS)

    @property
    def device(self) -> torch.device:
        return self.final.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the products, keys and values."""
        return self.final.weight.dtype

    def new_page(self, number: int) -> Page:
        """An empty page, the `number`-th of its pool."""
        config, wide = self.config, {"device": self.device, "dtype": self.dtype}
        heads = (2, 2, config.heads, BLOCK_FRAMES, HEAD_DIM)
        keys = torch.empty(STEPS, config.layers, *heads, **wide)  # type: ignore[call-overload]
        inputs = torch.empty(STEPS, 2, 2, config.dim, KERNEL - 1, **wide)  # type: ignore[call-overload]
        return Page(number, keys, inputs)

    @property
    def page_bytes(self) -> int:
        numbers = BLOCK_FRAMES * self.config.frame_numbers + STEPS * 2 * 2 * self.config.dim * (KERNEL - 1)
        return numbers * self.dtype.itemsize

    @torch.inference_mode()
    def compute_in(self, dtype: torch.dtype) -> None:
        """Make the loaded network ready: the norms' scales and shifts, which depend on the step alone, become tables in
        place of the weights that make them, and all but the noise gets the type.
        """
        half = TIME_SIZE // 2
        rates = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
        angles = TIME_SCALE * torch.tensor(_points()[:-1])[:, None] * rates
        encoded = torch.cat([angles.sin(), angles.cos()], dim=-1).to(self.device)
        first, second = self.time_mlp
        time = F.silu(second(F.silu(first(encoded))))  # [steps, D]
        tables = []
        for number in range(len(self.layers)):
            layer = self.layer(number)
            assert layer.modulation is not None
            tables.append(layer.modulation(time).view(STEPS, 6, -1))
            layer.modulation = None
        assert self.final_modulation is not None
        table, final = torch.stack(tables, dim=1), self.final_modulation(time).view(STEPS, 2, -1)
        table[:, :, 1::3] += 1  # the scales are differences from 1
        final[:, 0] += 1
        self.tables, self.final_table = table.to(dtype), final.to(dtype)
        self.final_modulation = None
        del self.time_mlp
        state = {name: tensor if name == "noise" else tensor.to(dtype) for name, tensor in self.state_dict().items()}
        self.load_state_dict(state, assign=True)

    @torch.inference_mode()
    def embed_speaker(self, embedding: Tensor) -> Tensor:
        """An embedding fp32 [192] -> [bands]."""
        made: Tensor = self.speaker(F.normalize(embedding, dim=0).to(self.dtype))
        return made.float()

    @torch.inference_mode()
    def embed_tokens(self, tokens: Tensor, number: int) -> Tensor:
        """Of all tokens int64 [N] of a stream, reference included, the rows [n, bands] of block `number`.

        Tokens that are not there yet count as the stream's end.
        """
        begin = BLOCK * number
        end = min(begin + BLOCK, len(tokens))
        seen = tokens[max(0, begin - 2) : end + LOOK_AHEAD]
        missing = 2 if begin == 0 else 0
        embeds = F.pad(F.embedding(seen, self.input_embedding.weight), (0, 0, missing, 0))
        embeds = F.pad(embeds, (0, 0, 0, 2 + end - begin + LOOK_AHEAD - len(embeds)))
        rows: Tensor = self.look_ahead(embeds, begin == 0)
        return rows.float().repeat_interleave(MEL_FRAMES, dim=0)

    @torch.inference_mode()
    def solve(self, spans: Sequence[Span], together: bool) -> list[list[Tensor]]:
        """The mel frames fp32 [n, bands] of each block of each span.

        Args:
            together: the rows of all blocks share matrix products, which is faster on a GPU. Otherwise each block has
                its own, and its numbers do not depend on what else is solved.
        """
        rows = [Rows(self, span) for span in spans]
        blocks = [(each, place) for each in rows for place in range(len(each.span.blocks))]
        groups = [_Group(self, members) for members in ([blocks] if together else [[block] for block in blocks])]
        for step, distance in enumerate(step_lengths()):
            for each in rows:
                each.begin(step)
            for group in groups:
                group.begin()
            for number in range(len(self.layers)):
                for each in rows:
                    each.read(step, number)
                for group in groups:
                    group.layer(step, number)
            for group in groups:
                group.move(step, distance)
        return [each.x for each in rows]

    def layer(self, number: int) -> Layer:
        return cast(Layer, self.layers[number])

    def embed(self, x: Tensor, fixed: Tensor, past: list[Tensor]) -> Tensor:
        """What goes into the layers: [2, n, D].

        Args:
            x: what is moved, twice: [2, n, bands].
            fixed: [2, n, 3 bands], what does not change from step to step.
            past: of each convolution what it saw last, [2, D, 30]; replaced by what it sees last now.
        """
        embeds = self.proj(torch.cat([x, fixed], dim=-1))
        seen = embeds.transpose(1, 2)
        for place, conv in enumerate(self.convs):
            seen = torch.cat([past[place], seen], dim=-1)
            past[place] = seen[..., seen.shape[-1] - (KERNEL - 1) :]
            seen = F.mish(conv(seen))
        out: Tensor = seen.transpose(1, 2) + embeds
        return out

    def attention_inputs(self, number: int, table: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys and values [rows, 3, heads, 64] of a layer, of rows [rows, D].

        Args:
            table: of the step and the layer, [6, D].
            cos, sin: what `_turns` makes of the rows' frames, [rows, 1, 64].
        """
        qkv: Tensor = self.layer(number).qkv(_norm(hidden, table[1], table[0])).view(len(hidden), 3, -1, HEAD_DIM)
        first = qkv[:, :2, 0]  # of queries and keys the first head alone turns
        pairs = first.reshape(len(first), 2, -1, 2)
        crossed = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
        qkv[:, :2, 0] = (first * cos + crossed * sin).to(qkv.dtype)
        return qkv

    def behind_attention(self, number: int, table: Tensor, hidden: Tensor, heard: Tensor) -> Tensor:
        """The rest of a layer: rows, and what attention found for them, [rows, D] each -> [rows, D]."""
        layer = self.layer(number)
        hidden = torch.addcmul(hidden, layer.out(heard), table[2])
        inner = F.gelu(layer.up(_norm(hidden, table[4], table[3])), approximate="tanh")
        return torch.addcmul(hidden, layer.down(inner), table[5])

    def directions(self, table: Tensor, hidden: Tensor) -> Tensor:
        """Where rows are to be moved, fp32 [rows, bands]; `table`: of the step, [2, D]."""
        found: Tensor = self.final(_norm(hidden, table[0], table[1])).float()
        return found


class Rows:
    """The blocks of a span on their way.

    Attributes:
        x: of each block, what is moved: [n, bands] fp32.
        hidden: of each block, what goes into the layers: [2, n, D].
        fixed: of each block, what does not change from step to step: [2, n, 3 bands].
        turns: of each block, what `_turns` makes of its frames.
    """

    def __init__(self, network: FlowNetwork, span: Span) -> None:
        self.span = span
        self._network = network
        first = BLOCK_FRAMES * len(span.pages)
        sizes = [len(block.tokens) for block in span.blocks]
        frames = torch.arange(first, first + sum(sizes), device=network.device)
        self.x = list(torch.split(network.noise[frames % NOISE_FRAMES], sizes))
        self.hidden: list[Tensor] = []
        self.turns = [_turns(part) for part in torch.split(frames, sizes)]
        whole = [len(block.tokens) == BLOCK_FRAMES for block in span.blocks]
        self._keep = [page if each else None for page, each in zip(span.keep, whole, strict=True)]
        self._keys: list[Tensor] = []  # of the layer, [2 (keys, values), 2, heads, n, 64] a block
        self.fixed = [torch.cat(list(self._columns(block)), dim=-1).to(network.dtype) for block in span.blocks]

    def _columns(self, block: Block) -> Iterator[Tensor]:
        """What does not change from step to step, [2, n, 3 bands]; without guidance all of it is zero."""
        speaker = self.span.speaker.expand_as(block.tokens)
        for each in (block.reference, block.tokens, speaker):
            yield torch.stack([each, torch.zeros_like(each)])

    def begin(self, step: int) -> None:
        """The hidden rows of a step."""
        network = self._network
        if self.span.pages:
            past = list(self.span.pages[-1].inputs[step].unbind())
        else:
            zeros = (2, network.config.dim, KERNEL - 1)
            past = [network.proj.weight.new_zeros(zeros) for _ in network.convs]
        self.hidden = []
        for x, fixed, keep in zip(self.x, self.fixed, self._keep, strict=True):
            self.hidden.append(network.embed(x.to(network.dtype).expand(2, -1, -1), fixed, past))
            if keep is not None:
                torch.stack(past, out=keep.inputs[step])

    def read(self, step: int, layer: int) -> None:
        """Take the keys and values of a layer from the pages."""
        self._keys = [page.keys[step, layer] for page in self.span.pages]

    def add(self, step: int, layer: int, place: int, qkv: Tensor) -> Tensor:
        """Queries, keys and values [2 n, 3, heads, 64] of a block: keeps the last two, returns [2, heads, n, 64]."""
        query, *others = qkv.view(2, -1, *qkv.shape[1:]).permute(2, 0, 3, 1, 4).unbind()
        keep = self._keep[place]
        if keep is None:
            kept = torch.stack(others)
        else:
            kept = keep.keys[step, layer]
            kept[0], kept[1] = others
        self._keys.append(kept)
        return query

    def attend(self, query: Tensor, place: int) -> Tensor:
        """The values that a block's queries find in it and in all blocks before it: [2 n, D]."""
        seen = torch.cat(self._keys[: len(self.span.pages) + place + 1], dim=-2)
        found = F.scaled_dot_product_attention(query, seen[0], seen[1])
        return found.transpose(1, 2).flatten(2).flatten(0, 1)


class _Group:
    """Blocks, by their spans' rows and their places there, which share products. Its tensors are of [rows, ...]."""

    def __init__(self, network: FlowNetwork, members: Sequence[tuple[Rows, int]]) -> None:
        self._network = network
        self._members = members
        self._sizes = [2 * len(rows.x[place]) for rows, place in members]
        turns = [rows.turns[place] for rows, place in members]
        self._cos, self._sin = (
            torch.cat([each for pair in turns for each in (pair[part], pair[part])])[:, None] for part in (0, 1)
        )

    def begin(self) -> None:
        """Take the hidden rows of a step."""
        self._hidden = torch.cat([rows.hidden[place].flatten(0, 1) for rows, place in self._members])

    def layer(self, step: int, number: int) -> None:
        network, hidden = self._network, self._hidden
        table = network.tables[step, number]
        qkv = network.attention_inputs(number, table, hidden, self._cos, self._sin)
        parts = zip(self._members, torch.split(qkv, self._sizes), strict=True)
        queries = [rows.add(step, number, place, part) for (rows, place), part in parts]
        heard = [rows.attend(query, place) for (rows, place), query in zip(self._members, queries, strict=True)]
        self._hidden = network.behind_attention(number, table, hidden, torch.cat(heard))

    def move(self, step: int, distance: np.float32) -> None:
        """A step of Euler's method."""
        directions = self._network.directions(self._network.final_table[step], self._hidden)
        for (rows, place), part in zip(self._members, torch.split(directions, self._sizes), strict=True):
            guided, free = part.chunk(2)
            rows.x[place] = rows.x[place] + float(distance) * mixed(guided, free)


def mixed(guided: Tensor, free: Tensor) -> Tensor:
    """The direction of classifier-free guidance, of those with and without tokens and voice."""
    return (1 + GUIDANCE) * guided - GUIDANCE * free


@cache
def step_lengths() -> list[np.float32]:
    """Of the steps of Euler's method."""
    points = _points()
    return [after - before for before, after in pairwise(points)]


def _points() -> list[np.float32]:
    """Points of time from 0 to 1, as the official code adds them up in fp32."""
    wanted = 1 - torch.cos(torch.linspace(0, 1, STEPS + 1) * 0.5 * torch.pi)
    points = [wanted[0]]
    for point in wanted[1:]:
        points.append(points[-1] + (point - points[-1]))
    return [np.float32(point.item()) for point in points]


def _norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=EPS), scale)


def _turns(frames: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, 64] of frames; the dimensions 2i and 2i + 1 turn together."""
    rates = 1.0 / (THETA ** (torch.arange(0, HEAD_DIM, 2, device=frames.device).float() / HEAD_DIM))
    angles = (frames[:, None].float() * rates).repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()
