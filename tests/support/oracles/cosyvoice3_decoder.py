"""The flow and vocoder of CosyVoice3 in the official code and in vllm-omni 0.30.0, with the weights of a checkpoint.

The official code is a checkout, which may be missing: see `tests.support.oracles.cosyvoice3`. vllm-omni is put into
`.venv/official` by tools/env.sh, without what it depends on. Of vllm, diffusers and others the modules import names;
stubs stand in. vllm-omni has the official networks, but for the mask of the flow's attention and the precision of the
pitch: the official code lets each frame see its block of 50 frames and those before it, and computes the pitch in fp64.
Both are put right here, in the stub of the attention and around the pitch network.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.oracles.cosyvoice3 import official_package
from tests.support.oracles.packages import bare_packages, check_there, importable, quiet
from voice_clone.families.cosyvoice3.config import FLOW, HIFT
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint

BLOCK_FRAMES = 50
MODELS = "vllm_omni.model_executor.models"
BARE = (
    *("vllm_omni", "vllm_omni.model_executor", "vllm_omni.model_executor.layers", MODELS, f"{MODELS}.common"),
    *(
        f"{MODELS}.cosyvoice3",
        f"{MODELS}.cosyvoice3.code2wav_core",
        "vllm_omni.diffusion",
        "vllm_omni.diffusion.models",
    ),
    *("vllm_omni.diffusion.models.cosyvoice3_audio", "vllm_omni.diffusion.attention"),
)
DIT = "vllm_omni.diffusion.models.cosyvoice3_audio.cosyvoice3_dit"


class _Norm(nn.Module):
    """Stands in for that of diffusers: a norm with scale and shift of an embedding, and what comes behind it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 6 * dim)

    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, ...]:
        shift, scale, *others = self.linear(F.silu(emb)).chunk(6, dim=1)
        return (F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None], *others)


class _Attention(nn.Module):
    """Stands in for that of the package: [B, T, heads, size], with the official mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_metadata: Any) -> Tensor:
        block = torch.arange(query.shape[1]) // BLOCK_FRAMES
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, block[:, None] >= block).transpose(1, 2)


class _WidePitch(nn.Module):
    """The pitch network in fp64."""

    def __init__(self, narrow: nn.Module) -> None:
        super().__init__()
        self.narrow = narrow.double()
        self.condnet = narrow.condnet

    def forward(self, mel: Tensor, finalize: bool) -> Tensor:
        pitch: Tensor = self.narrow(mel.double(), finalize=finalize)
        return pitch


def _stubs() -> dict[str, types.ModuleType]:
    logger = types.SimpleNamespace(**dict.fromkeys(("info", "warning", "debug"), lambda *args: None))
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.logger": {"init_logger": lambda name: logger},
        "diffusers": {},
        "diffusers.models": {},
        "diffusers.models.normalization": {"AdaLayerNormZero": _Norm},
        "omegaconf": {"DictConfig": types.SimpleNamespace, "OmegaConf": object},
        "loguru": {"logger": logger},
        "vllm_omni.diffusion.attention.backends": {},
        "vllm_omni.diffusion.attention.backends.abstract": {"AttentionMetadata": types.SimpleNamespace},
        "vllm_omni.diffusion.attention.layer": {"Attention": _Attention},
        f"{MODELS}.cosyvoice3.runtime": {"cosyvoice3_batch_flow_profile": lambda name: nullcontext()},
        f"{MODELS}.cosyvoice3.utils": {"make_pad_mask": lambda lengths, max_len: torch.zeros(1, max_len).bool()},
    }
    made = bare_packages(BARE)
    for name, content in contents.items():
        made[name] = types.ModuleType(name)
        made[name].__dict__.update(content)
    # The default of a signature, never used, is made of a dictionary.
    made["omegaconf"].DictConfig = lambda values=None, **named: types.SimpleNamespace(**named)  # type: ignore[attr-defined]
    return made


class _Modules(NamedTuple):
    """Where the networks' classes are."""

    flow: Any
    matching: Any
    transformer: Any
    layers: Any
    vocoder: Any
    pitch: Any


@contextmanager
def _packages(stubs: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """What is in `.venv/official`, for the time of an import, and modules in place of those that are not."""
    check_there("x_transformers")
    for name in ("transformers", "einops", "torch._dynamo"):  # what must not be imported twice, while all is as it is
        importlib.import_module(name)
    with mock.patch.dict(sys.modules, stubs), importable():
        yield


@cache
def _modules() -> _Modules:
    """Of vllm-omni."""
    core = f"{MODELS}.cosyvoice3.code2wav_core"
    with quiet(), _packages(_stubs()):
        names = (f"{core}.cfm", DIT, f"{core}.layers", f"{core}.hifigan")
        matching, transformer, layers, vocoder = map(importlib.import_module, names)
    return _Modules(matching, matching, transformer, layers, vocoder, vocoder)


@cache
def official_modules() -> _Modules:
    """Of the official code. Matcha-TTS, of which the flow inherits a constructor, is replaced."""
    stubs = {name: module for name, module in _stubs().items() if name in ("omegaconf", "loguru")}
    stubs |= {name: types.ModuleType(name) for name in ("matcha", "matcha.models", "matcha.models.components")}
    stubs["matcha.models.components.flow_matching"] = types.ModuleType("flow_matching")
    base = type("BASECFM", (nn.Module,), {"__init__": lambda self, **options: nn.Module.__init__(self)})
    stubs["matcha.models.components.flow_matching"].BASECFM = base  # type: ignore[attr-defined]
    names = ("flow.flow", "flow.flow_matching", "flow.DiT.dit", "transformer.upsample_encoder", "hifigan.generator")
    with quiet(), _packages(stubs), official_package():
        return _Modules(*(importlib.import_module(f"cosyvoice.{name}") for name in (*names, "hifigan.f0_predictor")))


def official_flow(checkpoint: DecoderCheckpoint, checkout: bool = False) -> nn.Module:
    """`CausalMaskedDiffWithDiT` with the checkpoint's weights, in fp32.

    Args:
        checkout: the official code's own, with the checkpoint's noise; else vllm-omni's, which draws it.
    """
    modules = official_modules() if checkout else _modules()
    config = checkpoint.flow_config
    estimator = modules.transformer.DiT(
        dim=config.dim,
        depth=config.layers,
        heads=config.heads,
        dim_head=64,
        ff_mult=config.ffn // config.dim,
        mel_dim=80,
        mu_dim=80,
        spk_dim=80,
        out_channels=80,
        static_chunk_size=BLOCK_FRAMES,
        num_decoding_left_chunks=-1,
    )
    parameters = types.SimpleNamespace(
        sigma_min=1e-6, solver="euler", t_scheduler="cosine", training_cfg_rate=0.2, inference_cfg_rate=0.7
    )
    flow: nn.Module = modules.flow.CausalMaskedDiffWithDiT(
        input_size=80,
        vocab_size=6561,
        spk_embed_dim=192,
        input_frame_rate=25,
        pre_lookahead_len=3,
        pre_lookahead_layer=modules.layers.PreLookaheadLayer(80, config.look_ahead_channels, 3),
        decoder=modules.matching.CausalConditionalCFM(240, parameters, 1, 80, estimator),
    )
    weights = load_file(checkpoint.folder / f"{FLOW}.safetensors")
    noise = weights.pop("decoder.rand_noise")
    missing, unknown = flow.load_state_dict(weights, strict=False)
    assert not unknown and {*missing} <= {"decoder.estimator.rotary_embed.inv_freq"}, (missing, unknown)
    flow.decoder.rand_noise = noise  # type: ignore[union-attr]
    return flow.eval().requires_grad_(False)


def official_mel(
    flow: Any, noise: Tensor, reference: Tensor, tokens: Tensor, mel: Tensor, speaker: Tensor, more: bool = False
) -> Tensor:
    """The mel [frames, 80] of a stream.

    Args:
        noise: [frames, 80], of the reference, too.
        reference, tokens: int64 [P], [N].
        mel: of the reference, [2P, 80].
        speaker: [192].
        more: whether more tokens follow: the last three then make no frames.
    """
    lengths = torch.tensor([len(tokens)]), torch.tensor([len(reference)]), torch.tensor([len(mel)])

    def given(*size: int, **options: Any) -> Tensor:
        [shape] = size
        return noise[: shape[2]].T[None].clone()  # type: ignore[index]

    with mock.patch.object(torch, "randn", given):
        made, _ = flow.inference(
            tokens[None], lengths[0], reference[None], lengths[1], mel[None], lengths[2], speaker[None], True, not more
        )
    found: Tensor = made[0].T
    return found


def official_vocoder(checkpoint: DecoderCheckpoint, checkout: bool = False) -> Any:
    """`CausalHiFTGenerator` with the checkpoint's weights and noise, in fp32, its pitch in fp64.

    Args:
        checkout: the official code's own; else vllm-omni's.
    """
    modules = official_modules() if checkout else _modules()
    config = checkpoint.vocoder_config
    dilations = [[1, 3, 5]] * 3
    vocoder = modules.vocoder.CausalHiFTGenerator(
        base_channels=config.channels,
        sampling_rate=24000,
        upsample_rates=[8, 5, 3],
        upsample_kernel_sizes=[16, 11, 7],
        resblock_dilation_sizes=dilations,
        source_resblock_kernel_sizes=[7, 7, 11],
        source_resblock_dilation_sizes=dilations,
        f0_predictor=modules.pitch.CausalConvRNNF0Predictor(cond_channels=config.f0_channels),
        nsf_voiced_threshold=10,
    )
    weights = load_file(checkpoint.folder / f"{HIFT}.safetensors")
    noise = weights.pop("m_source.l_sin_gen.sine_waves")
    missing, unknown = vocoder.load_state_dict(weights, strict=False)
    assert not unknown and not [name for name in missing if not name.startswith("m_source.l_sin_gen.")], missing
    vocoder.m_source.l_sin_gen.sine_waves = noise
    if not checkout:
        vocoder.f0_predictor = _WidePitch(vocoder.f0_predictor)
    return vocoder.eval().requires_grad_(False)
