"""The talker's networks in torch. Names are official."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from voice_clone.array_kinds import in_kind_of
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.families.pocket_tts.config import HeadConfig, PocketConfig
from voice_clone.families.pocket_tts.head import EPS, Block, Flow, LatentHead, TimeWeights, time_table
from voice_clone.families.pocket_tts.talker import FREQUENCIES, Talker, layout, modulated
from voice_clone.layers.fused import empty_table, fused_linear


class Scaled(nn.Module):
    """The last part of a `TimeEmbedding`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(size))


class TimeEmbedding(nn.Module):
    """The weights of a row of a time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.freqs = nn.Parameter(torch.zeros(FREQUENCIES // 2))
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, size), nn.SiLU(), nn.Linear(size, size), Scaled(size))

    @property
    def arrays(self) -> TimeWeights:
        frequencies, *linears, scale = (each.detach().to("cpu", torch.float32).numpy() for each in self.parameters())
        return TimeWeights(frequencies, (linears[0], linears[1]), (linears[2], linears[3]), scale)


class ResidualBlock(nn.Module):
    """The weights of a `Block`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(size, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))

    def block(self) -> Block:
        return Block((self.in_ln.weight, self.in_ln.bias), (self.mlp[0], self.mlp[2]))


class FlowNetwork(nn.Module):
    """The weights of a `Flow`."""

    def __init__(self, config: HeadConfig, frame: int, hidden: int) -> None:
        super().__init__()
        size = config.dim
        self.kind = config.type
        self.cond_embed, self.input_proj = nn.Linear(hidden, size), nn.Linear(frame, size)
        self.res_blocks = nn.ModuleList(ResidualBlock(size) for _ in range(config.depth))
        self.final_layer = nn.ModuleDict({"linear": nn.Linear(size, frame)})
        self.modulation: nn.Module = fused_linear(self, "modulation", size, modulated(config, ""), bias=True)
        self.time_embed = nn.ModuleList(TimeEmbedding(size) for _ in range(2 if config.type == "lsd" else 0))
        self._times: tuple[Tensor, Tensor] | None = None  # made when they are first needed: the weights are loaded then

    def flow(self) -> Flow:
        def noise(z: Tensor) -> Any:
            return self.input_proj(z.to(self.cond_embed.weight.dtype))

        blocks = [block.block() for block in self.res_blocks if isinstance(block, ResidualBlock)]
        last: Any = self.final_layer["linear"]
        return Flow(self.kind, self.cond_embed, self.modulation, noise, blocks, last, self.times)

    @torch.inference_mode()
    def times(self) -> tuple[Tensor, Tensor]:
        """As of `time_table`: computed on the host, in fp32, for every device."""
        if self._times is None:
            like = self.input_proj.weight
            first, second = (each.arrays for each in self.time_embed if isinstance(each, TimeEmbedding))
            rows, lengths = time_table(first, second)
            self._times = in_kind_of(like, rows).to(like.dtype), in_kind_of(like, lengths).to(like.dtype)
        return self._times


class TalkerNetwork(nn.Module):
    """All networks of the talker."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        self.config = config
        table, frame = config.flow_lm.lookup_table, config.mimi.quantizer.dimension
        size, z_dim = config.flow_lm.transformer.d_model, config.flow_lm.z_dim
        self.backbone = DecoderStack(layout(config))
        self.conditioner = nn.ModuleDict({"embed": empty_table(table.n_bins + 1, table.rank or size)})
        if table.rank:
            self.conditioner["proj"] = nn.Linear(table.rank, size, bias=False)
        self.speaker_proj = nn.Linear(config.mimi.voice_width, size, bias=False)
        self.input_linear = nn.Linear(frame, size, bias=False)
        self.bos_emb = nn.Parameter(torch.zeros(frame))
        if config.flow_lm.insert_bos_before_voice:
            self.bos_before_voice = nn.Parameter(torch.zeros(1, 1, size))
        self.z_proj = nn.Linear(size, z_dim, bias=False) if z_dim else None
        self.out_eos = nn.Linear(z_dim or size, 1)
        self.flow_net = FlowNetwork(config.flow_lm.flow, frame, z_dim or size)

    def talker(self) -> Talker:
        """The talker of these networks."""
        names = {"table": "embed", "project": "proj"}
        parts: Any = {ours: self.conditioner[name] for ours, name in names.items() if name in self.conditioner}
        return Talker(
            self.config,
            self.backbone,
            parts["table"].weight,
            parts.get("project"),
            lambda latents: self.speaker_proj(latents.to(self.backbone.like.dtype)),
            lambda frames: self.input_linear(frames.to(self.backbone.like.dtype)),
            self.bos_emb[None],
            self.bos_before_voice[0] if self.config.flow_lm.insert_bos_before_voice else None,
            LatentHead(self.config, self.z_proj, self.flow_net.flow(), self.out_eos),
        )
