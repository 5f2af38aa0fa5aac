"""The official fish-speech 0.1.0 and the DAC of vllm-omni 0.30.0, importable, for comparison.

tools/env.sh puts both into `.venv/official` without what they depend on, because that would replace half of the
environment. Of their modules only the networks are imported. What these import besides, but do not use for what is
compared, is replaced by empty modules; packages whose `__init__` imports more are entered without it.

S2 Pro differs from fish-speech 0.1.0 in three places, which `s2_transformer` sets right: its fast transformer reads the
normed hidden state, embeddings at codes are scaled, and only codes and the end may win.

    from tests.support.official_fish import dac_of, generate, omni_dac_of, s2_transformer
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.official import quiet

PACKAGES = Path(sys.prefix) / "official"
STUBS = {
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


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules.setdefault(name, module)


def _import(*names: str) -> list[Any]:
    if not PACKAGES.is_dir():
        raise ImportError(f"{PACKAGES} is missing; tools/test makes it")
    with quiet():  # first, so that it looks for tiktoken while it is still truly absent
        importlib.import_module("transformers")
    for name in BARE:
        _module(name, __path__=[str(PACKAGES / name.replace(".", "/"))])
    for name, content in STUBS.items():
        _module(name, **content)
    sys.path.append(str(PACKAGES))
    try:
        with quiet():
            return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(PACKAGES))


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
    class S2Transformer(_package().llama.DualARTransformer):  # type: ignore[misc, name-defined]
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
    return whole[1:, prompt.shape[1] :].T.long()


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
