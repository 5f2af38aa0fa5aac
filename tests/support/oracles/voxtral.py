"""The official networks of Voxtral TTS, of vllm-omni 0.30.0, with the weights of a checkpoint, for comparison.

tools/env.sh puts the package into `.venv/official` without what it depends on. Of vllm and mistral_common the modules
import names, but what is compared uses none of them: stubs stand in. The backbone is transformers' Mistral.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from tests.support.oracles.fish_speech import BARE
from tests.support.oracles.packages import bare_packages, check_there, importable, quiet
from voice_clone.array_kinds import as_tensor
from voice_clone.autoregressive.philox import NormalDraws
from voice_clone.families.voxtral.checkpoint import CODEC, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.config import MODEL
from voice_clone.families.voxtral.prompt import Prompt

MODELS = "vllm_omni.model_executor.models.voxtral_tts"
STUBS = (
    *("vllm.config", "vllm.inputs", "vllm.logger", "vllm.model_executor.model_loader.weight_utils"),
    *("vllm.model_executor.models.interfaces", "vllm.model_executor.models.utils", "vllm.multimodal"),
    *("vllm.multimodal.inputs", "vllm.multimodal.parse", "vllm.multimodal.processing"),
    *("vllm.multimodal.processing.processor", "vllm.sequence", "vllm.tokenizers", "vllm.tokenizers.mistral"),
    *("vllm_omni.quantization.component_config", "vllm_omni.platforms"),
    *("mistral_common.protocol.instruct.chunk", "mistral_common.tokens.tokenizers.audio"),
)


class _Anything(types.ModuleType):
    """A module of whatever is asked for: classes to inherit from, decorators, functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Base,), {})


class _Base:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


@contextlib.contextmanager
def _stubs() -> Iterator[None]:
    """The modules that are not there, for the time of an import."""
    stubs: dict[str, types.ModuleType] = {}
    for name in STUBS:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            stubs.setdefault(".".join(parts[:depth]), _Anything(name)).__path__ = []
    del stubs["vllm_omni"]
    logger = types.SimpleNamespace(**dict.fromkeys(("info", "warning", "debug"), lambda *args: None))
    stubs["vllm.logger"].init_logger = lambda name: logger  # type: ignore[attr-defined]
    registry = types.SimpleNamespace(register_processor=lambda *args, **kwargs: lambda cls: cls)
    stubs["vllm.multimodal"].MULTIMODAL_REGISTRY = registry  # type: ignore[attr-defined]
    platform = types.SimpleNamespace(device_type="cpu")
    stubs["vllm_omni.platforms"].current_omni_platform = platform  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {**bare_packages(BARE), **stubs}), importable():
        yield


@cache
def _modules() -> tuple[Any, Any]:
    """Of the generator, and of the codec."""
    check_there()
    with quiet():
        importlib.import_module("transformers")
        importlib.import_module("einops")
        with _stubs():
            generation = importlib.import_module(f"{MODELS}.voxtral_tts_audio_generation")
            return generation, importlib.import_module(f"{MODELS}.voxtral_tts_audio_tokenizer")


def _tensors(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """The weights under a prefix, in fp32, without it."""
    with safe_open(checkpoint.folder / f"{MODEL}.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # it is no mapping
        return {name.removeprefix(prefix): file.get_tensor(name).float() for name in names}


def _multimodal(checkpoint: Checkpoint) -> dict[str, Any]:
    """That part of params.json, with the number of Euler's steps as the official reader of the file adds it."""
    values: dict[str, Any] = json.loads((checkpoint.folder / "params.json").read_text())["multimodal"]
    values["audio_model_args"]["acoustic_transformer_args"].setdefault("n_decoding_steps", 7)
    return values


def official_head(checkpoint: Checkpoint) -> nn.Module:
    """`FlowMatchingAudioTransformer`: hidden states [B, C] and guidance [B] -> ids [B, K]."""
    made: nn.Module = _modules()[0].FlowMatchingAudioTransformer(_multimodal(checkpoint)["audio_model_args"])
    made.load_state_dict(_tensors(checkpoint, FLOW))
    return made.eval().requires_grad_(False)


def official_codec(checkpoint: Checkpoint) -> Any:
    """`VoxtralTTSAudioTokenizer`, its encoder filled at random if the checkpoint has none."""
    values = _multimodal(checkpoint)
    audio = {"codec_args": values["audio_tokenizer_args"], "audio_model_args": values["audio_model_args"]}
    text = types.SimpleNamespace(hidden_size=checkpoint.config.dim)
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(hf_config=types.SimpleNamespace(audio_config=audio, text_config=text))
    )
    made = _modules()[1].VoxtralTTSAudioTokenizer(vllm_config=config)
    tensors = _tensors(checkpoint, CODEC)
    embeddings = _tensors(checkpoint, f"{TABLES}audio_codebook_embeddings.")
    tensors |= {f"audio_token_embedding.{name}": each for name, each in embeddings.items()}
    result = made.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert all(name.startswith(("input_proj.", "encoder_blocks.")) for name in result.missing_keys)
    assert bool(result.missing_keys) != checkpoint.has_encoder
    return made.eval().requires_grad_(False)


@torch.inference_mode()
def official_codes(codec: Any, waveform: Tensor) -> Tensor:
    """A clip [samples] -> the ids that `encode_waveforms` embeds, [frames + 1, K]; in fp32, not bf16 as on a GPU."""
    seen: list[Tensor] = []
    codec._encoder_loaded = True
    with mock.patch.object(codec, "encode_tokens", lambda codes: seen.extend(codes)), _fp32():
        codec.encode_waveforms([waveform])
    return seen[0][0].T


@contextlib.contextmanager
def _fp32() -> Iterator[None]:
    with mock.patch.object(torch, "autocast", lambda **kwargs: contextlib.nullcontext()):
        yield


class OfficialTalker:
    """Greedy frames of the official networks, as vllm-omni's engine runs them, with noise that is given.

    Attributes:
        backbone: transformers' Mistral.
        head: as of `official_head`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        with quiet():
            transformers: Any = importlib.import_module("transformers")
            self.backbone: Any = transformers.MistralModel(
                transformers.MistralConfig(
                    vocab_size=config.vocab_size,
                    hidden_size=config.dim,
                    intermediate_size=config.hidden_dim,
                    num_hidden_layers=config.n_layers,
                    num_attention_heads=config.n_heads,
                    num_key_value_heads=config.n_kv_heads,
                    head_dim=config.head_dim,
                    rms_norm_eps=config.norm_eps,
                    rope_theta=config.rope_theta,
                    max_position_embeddings=4096,
                    sliding_window=None,
                    attn_implementation="sdpa",
                )
            ).eval()
        self.backbone.load_state_dict(_huggingface(checkpoint))
        self.backbone.requires_grad_(False)
        self.head: Any = official_head(checkpoint)
        self.codec = official_codec(checkpoint)
        self.config = config

    @torch.inference_mode()
    def embed_prompt(self, checkpoint: Checkpoint, prompt: Prompt) -> Tensor:
        """A prompt of ours as the backbone reads it, [positions, C]."""
        preset = int(prompt.preset[0])
        if preset < 0:
            voice = self.embed_codes(torch.from_numpy(prompt.codec_codes.astype(np.int64)))
        else:
            voice = as_tensor(checkpoint.voices()[checkpoint.config.presets[preset]]).float()
        before, behind = (self.embed(ids.tolist()) for ids in (prompt.before_voice, prompt.text_ids))
        return torch.cat([before, voice, behind])

    @torch.inference_mode()
    def frames(self, prompts: Sequence[Tensor], noise: Sequence[Tensor], guidance: Sequence[float]) -> list[Tensor]:
        """Frames of streams side by side: ids int64 [n, K] of each; a stream that has ended stays in the batch.

        Args:
            prompts: embeddings [positions, C] of each stream.
            noise: of each stream's frames, [n, A].
        """
        caches, hidden = [], []
        for prompt in prompts:
            out = self.backbone(inputs_embeds=prompt[None], use_cache=True)
            caches.append(out.past_key_values)
            hidden.append(out.last_hidden_state[0, -1])
        made: list[list[Tensor]] = [[] for _ in prompts]
        for number in range(len(noise[0])):
            given = torch.stack([each[number] for each in noise])
            with mock.patch.object(torch, "randn", lambda *args, given=given, **kwargs: given):
                ids = self.head(llm_hidden=torch.stack(hidden), cfg_alpha=torch.tensor(guidance))
            for stream, row in enumerate(ids):
                made[stream].append(row)
                embedded = self.codec.encode_tokens([row.view(1, -1, 1)])[0]
                out = self.backbone(inputs_embeds=embedded[None], past_key_values=caches[stream], use_cache=True)
                hidden[stream] = out.last_hidden_state[0, -1]
        return [torch.stack(rows) for rows in made]

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Tokens as the backbone reads them, [n, C]."""
        embedded: Tensor = self.backbone.embed_tokens(torch.tensor(ids))
        return embedded

    @torch.inference_mode()
    def embed_codes(self, ids: Tensor) -> Tensor:
        """Ids of codes int64 [n, K] as the backbone reads them, [n, C]."""
        embedded: Tensor = self.codec.encode_tokens([ids.T[None]])[0]
        return embedded


def _huggingface(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The backbone's weights under transformers' names; its rotary dimensions i and i + D/2 turn together."""
    names = {
        "attention.wq": "self_attn.q_proj",
        "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    size, made = checkpoint.config.head_dim, {}
    for name, each in _tensors(checkpoint, "layers.").items():
        layer, part = name.removesuffix(".weight").split(".", 1)
        if part in ("attention.wq", "attention.wk"):
            each = each.view(-1, size // 2, 2, each.shape[1]).transpose(1, 2).reshape(each.shape)
        made[f"layers.{layer}.{names[part]}.weight"] = each
    norm = _tensors(checkpoint, "norm.")["weight"]
    tokens = _tensors(checkpoint, f"{TABLES}tok_embeddings.")["weight"]
    return {**made, "norm.weight": norm, "embed_tokens.weight": tokens}


def noise(seed: int, frames: int, dims: int) -> Tensor:
    """What the head of ours draws for the frames of a seed, fp32 [frames, dims]."""
    draws = NormalDraws(seed, dims)
    return torch.stack([torch.from_numpy(draws.of(frame).copy()).float() for frame in range(frames)])
