"""The official fish-speech 0.1.0 and the DAC of vllm-omni 0.30.0, importable, for comparison.

Both are in `.venv/official`; of their modules only the networks are imported.

S2 Pro differs from fish-speech 0.1.0 in three places, which `s2_transformer` sets right: its fast transformer reads the
normed hidden state, embeddings at codes are scaled, and only codes and the end may win.

    from tests.support.oracles.fish_speech import dac_of, generate, omni_dac_of, s2_transformer
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.oracles.packages import bare_packages, check_there, importable, quiet
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.config import CODEC, MODEL
from voice_clone.families.fish_speech.encoder import CodecEncoder
from voice_clone.families.fish_speech.prompt import Prompt, Tokenizer

STUBS: dict[str, dict[str, Any]] = {
    "audiotools": {"AudioSignal": object},
    "audiotools.ml": {"BaseModel": nn.Module},
    "dac.model.base": {"CodecMixin": type("CodecMixin", (), {"get_delay": lambda self: 0})},
    "hydra": {},
    "loguru": {"logger": types.SimpleNamespace(info=print, warning=print)},
    "loralib": {},
    "omegaconf": {"OmegaConf": object},
    "tiktoken": {},
    "fish_speech.models.text2semantic.lora": {"LoraConfig": object, "setup_lora": None},
}
BARE = ("dac", "dac.nn", "dac.model", "vllm_omni", "vllm_omni.model_executor", "vllm_omni.model_executor.models")


def _import(*names: str) -> list[Any]:
    check_there()
    with quiet():  # first, so that it looks for tiktoken while it is still truly absent
        importlib.import_module("transformers")
    for name, module in bare_packages(BARE).items():
        sys.modules.setdefault(name, module)
    for name, content in STUBS.items():
        stub = types.ModuleType(name)
        stub.__dict__.update(content)
        sys.modules.setdefault(name, stub)
    with quiet(), importable():
        return [importlib.import_module(name) for name in names]


@cache
def _package() -> types.SimpleNamespace:
    """Their modules. Imported when first asked for: it takes seconds, which only one process of a run shall spend."""
    omni = "vllm_omni.model_executor.models.fish_speech"
    names = {
        "llama": "fish_speech.models.text2semantic.llama",
        "inference": "fish_speech.models.text2semantic.inference",
        "dac": "fish_speech.models.dac.modded_dac",
        "rvq": "fish_speech.models.dac.rvq",
        "omni_dac": f"{omni}.dac_modules",
    }
    return types.SimpleNamespace(**dict(zip(names, _import(*names.values()), strict=True)))


@cache
def _transformer() -> Any:
    class S2Transformer(_package().llama.DualARTransformer):  # type: ignore[misc]
        def __init__(self, begin: int, end_id: int, **sizes: Any) -> None:
            config = _package().llama.DualARModelArgs(
                scale_codebook_embeddings=True, use_gradient_checkpointing=False, **sizes
            )
            last = begin + config.codebook_size - 1
            tokenizer = types.SimpleNamespace(
                semantic_id_to_token_id={},
                semantic_begin_id=begin,
                semantic_end_id=last,
                get_token_id=lambda _: end_id,
            )
            super().__init__(config, tokenizer)
            self.may_win = torch.full((config.vocab_size,), -torch.inf)
            self.may_win[begin : last + 1] = 0
            self.may_win[end_id] = 0
            self.seen: list[torch.Tensor] = []

        def forward_generate(self, *args: Any, **kwargs: Any) -> Any:
            result = super().forward_generate(*args, **kwargs)
            result.hidden_states = self.norm(result.hidden_states)
            result.logits = result.logits + self.may_win
            self.seen.append(result.logits[0, -1].clone())
            return result

    return S2Transformer


def s2_transformer(begin: int, end_id: int, **sizes: Any) -> Any:
    """The two transformers of S2 Pro, with `seen`: the logits of each step.

    Args:
        sizes: keyword arguments of `DualARModelArgs`.
        begin: id of the first semantic token.
        end_id: of the token that ends speech.
    """
    return _transformer()(begin, end_id, **sizes)


def generate(model: Any, prompt: torch.Tensor, frames: int) -> torch.Tensor:
    """The likeliest frames after `prompt` int [11, T]: int64 [frames, 10], and their first row's logits in `seen`."""
    model.seen.clear()
    with quiet(), torch.inference_mode():
        whole = _package().inference.generate(
            model=model,
            prompt=prompt,
            max_new_tokens=frames,
            audio_masks=None,
            audio_parts=None,
            temperature=1.0,
            top_p=1e-6,
            repetition_penalty=1.0,
        )
    made: torch.Tensor = whole[1:, prompt.shape[1] :].T.long()
    return made


def dac_of(sizes: Any) -> nn.Module:
    """The codec of fish-speech 0.1.0; `sizes` is a `voice_clone.families.fish_speech.config.CodecConfig`."""
    return _codec(_package().dac, _package().rvq.DownsampleResidualVectorQuantize, sizes)


def omni_dac_of(sizes: Any) -> nn.Module:
    """The same of vllm-omni 0.30.0."""
    return _codec(_package().omni_dac, _package().omni_dac.DownsampleResidualVectorQuantize, sizes)


def _codec(modules: Any, quantizer: Any, sizes: Any) -> nn.Module:
    latent = sizes.latent_dim

    def arguments(**more: Any) -> Any:
        fixed = {"head_dim": 64, "rope_base": 10000, "norm_eps": 1e-5, "block_size": 4096}
        return modules.ModelArgs(**{**fixed, **more})

    def window() -> nn.Module:
        config = arguments(
            n_layer=sizes.quantizer_layers,
            n_head=latent // 64,
            dim=latent,
            intermediate_size=sizes.quantizer_intermediate,
        )
        made: nn.Module = modules.WindowLimitedTransformer(config, input_dim=latent, window_size=128)
        return made

    with quiet():
        return modules.DAC(  # type: ignore[no-any-return]
            encoder_dim=sizes.encoder_dim,
            decoder_dim=sizes.decoder_dim,
            quantizer=quantizer(
                input_dim=latent,
                codebook_dim=sizes.codebook_dim,
                codebook_size=sizes.residual_codes,
                semantic_codebook_size=sizes.semantic_codes,
                pre_module=window(),
                post_module=window(),
            ),
            encoder_transformer_layers=[0, 0, 0, sizes.encoder_layers],
            transformer_general_config=arguments,
        ).eval()


def load_codec(checkpoint: Checkpoint) -> tuple[CodecEncoder, CodecDecoder]:
    """Our codec in fp32, on the CPU, in torch."""
    with torch.device("meta"):
        encoder, decoder = CodecEncoder(checkpoint.codec), CodecDecoder(checkpoint.codec)
    for module in (encoder, decoder):
        checkpoint.load(module, CODEC, "", torch.float32, "cpu")
        module.eval().requires_grad_(False)
    return encoder, decoder


def fill_official_codec(codec: nn.Module, checkpoint: Checkpoint) -> None:
    """Give an official codec the weights of a checkpoint, from its codec.pth."""
    tensors = torch.load(checkpoint.folder / f"{CODEC}.pth", weights_only=True)
    tables = {name for name in tensors if name.endswith(("freqs_cis", "causal_mask"))}
    result = codec.load_state_dict({n: t for n, t in tensors.items() if n not in tables}, strict=False)
    assert not result.unexpected_keys and set(result.missing_keys) == tables


def official_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments of `DualARModelArgs` for a checkpoint."""
    config = checkpoint.config
    slow, fast = config.text_config, config.audio_decoder_config
    return {
        "vocab_size": slow.vocab_size,
        "n_layer": slow.n_layer,
        "n_head": slow.n_head,
        "dim": slow.dim,
        "intermediate_size": slow.intermediate_size,
        "n_local_heads": slow.kv_heads,
        "head_dim": slow.head_size,
        "rope_base": slow.rope_base,
        "norm_eps": slow.norm_eps,
        "attention_qk_norm": slow.attention_qk_norm,
        "max_seq_len": 512,
        "codebook_size": config.semantic_codes,
        "num_codebooks": config.codebooks,
        "n_fast_layer": fast.n_layer,
        "fast_attention_qk_norm": fast.attention_qk_norm,
    }


def fill_official_transformer(model: nn.Module, folder: Path) -> None:
    """Give the official transformers the weights of a checkpoint, under the names that the official code reads."""
    tensors = {}
    for name, tensor in load_file(folder / f"{MODEL}.safetensors").items():
        ours = name.removeprefix(SLOW)
        if name.startswith(FAST):
            tail = name.removeprefix(FAST)
            ours = tail if tail.startswith("codebook_embeddings") else f"fast_{tail}"
        tensors[ours] = tensor
    model.load_state_dict(tensors)


def random_prompt(checkpoint: Checkpoint, seed: int) -> Prompt:
    """A prompt with some transcript, frames and text."""
    random = np.random.default_rng(seed)
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.config)
    limits = checkpoint.config.code_limits
    codes = random.integers(0, limits, (int(random.integers(4, 30)), len(limits))).astype(np.uint16)
    words = ["morning", "Stimme", "voix", "story", "night", "声音"]
    transcript, text = (" ".join(random.choice(words, 6)) for _ in range(2))
    return Prompt(tokenizer.reference_ids(transcript), codes, tokenizer.text_ids(text))


def official_prompt(checkpoint: Checkpoint, prompt: Prompt) -> torch.Tensor:
    """The same as the official code takes it: int [11, T]."""
    start = checkpoint.config.semantic_start_token_id
    tokens = np.concatenate([prompt.reference_ids, start + prompt.reference_codes[:, 0].astype(int), prompt.text_ids])
    values = np.zeros((1 + prompt.reference_codes.shape[1], len(tokens)), np.int64)
    values[0] = tokens
    first = len(prompt.reference_ids)
    values[1:, first : first + len(prompt.reference_codes)] = prompt.reference_codes.T
    return torch.from_numpy(values)
