"""Small random talkers and prompts, in the official configuration format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.families.random_weights import reader
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.samplers import Sampler
from voice_clone.autoregressive.sampling import Filters
from voice_clone.batching.source import Frame
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.networks.native_talker import TEXT_TABLE, NativeTalker
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.native.matrix.weights import as_array
from voice_clone.settings import Precision

TEXT_VOCAB = 300
ROLE_IDS = np.array([290, 291, 292], np.int32)
LANGUAGES = {"chinese": 2055, "english": 2050, "german": 2053}
EOS = 2150
# The sections of the multimodal RoPE differ: three different axes would give another result.
SHAPES: dict[str, dict[str, Any]] = {
    "projected": {  # as in 1.7B: the code predictor is narrower than the talker
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "mrope_section": [4, 2, 2],
        "code_predictor": {"hidden_size": 48, "head_dim": 16},
    },
    "equal": {  # as in 0.6B: no projection
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "mrope_section": [8, 4, 4],
        "code_predictor": {"hidden_size": 96, "head_dim": 32},
    },
}
CODEC = {"encoder_config": {}, "decoder_config": {"codebook_dim": 512}}


def config_json(shape: str) -> dict[str, Any]:
    """config.json of one of `SHAPES`, as the released checkpoints write it."""
    sizes = SHAPES[shape]
    attention = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    return {
        "model_type": "qwen3_tts",
        "tts_model_type": "base",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_pad_token_id": 281,
        "tts_bos_token_id": 282,
        "tts_eos_token_id": 283,
        "speaker_encoder_config": {"enc_dim": sizes["hidden_size"], "sample_rate": 24000},
        "talker_config": {
            **attention,
            "hidden_size": sizes["hidden_size"],
            "num_hidden_layers": sizes["num_hidden_layers"],
            "head_dim": sizes["head_dim"],
            "rope_theta": 1000000,
            "rope_scaling": {"interleaved": True, "mrope_section": sizes["mrope_section"], "rope_type": "default"},
            "vocab_size": 3072,
            "text_vocab_size": TEXT_VOCAB,
            "text_hidden_size": 80,
            "num_code_groups": 16,
            "codec_eos_token_id": EOS,
            "codec_think_id": 2154,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "codec_pad_id": 2148,
            "codec_bos_id": 2149,
            "codec_language_id": LANGUAGES,
            "spk_id": {},
            "spk_is_dialect": {},
            "code_predictor_config": {
                **attention,
                **sizes["code_predictor"],
                "num_hidden_layers": 2,
                "rope_theta": 1000000,
                "vocab_size": 2048,
                "num_code_groups": 16,
            },
        },
    }


def read_config(shape: str, folder: Path) -> Qwen3TTSConfig:
    """The same configuration, through our reader."""
    (folder / "speech_tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json(shape)))
    (folder / "speech_tokenizer" / "config.json").write_text(json.dumps(CODEC))
    (folder / "generation_config.json").write_text("{}")
    return load_config(folder)


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Fill all parameters so that signals keep their size and codes are diverse; end of speech is never likely."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            elif "embedding" in name:
                parameter.copy_(0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            if name.endswith("codec_head.weight"):
                parameter[EOS] = 0


def make_restless(codec_head: torch.nn.Linear, seed: int) -> None:
    """End of speech wins wherever the hidden state is on one side of a plane: on about half of all frames."""
    with torch.no_grad():
        codec_head.weight[EOS] = 100 * torch.randn(
            codec_head.in_features, generator=torch.Generator().manual_seed(seed)
        )


def make_talker(config: Qwen3TTSConfig, seed: int) -> Talker:
    talker = Talker(config).eval()
    randomise(talker, seed)
    return talker


def native_of(talker: Talker, precision: Precision) -> NativeTalker:
    """The native form of a talker in torch."""
    return NativeTalker(talker.config, precision, reader(talker), as_array(talker.state_dict()[TEXT_TABLE]))


def make_prompt(
    config: Qwen3TTSConfig, seed: int, *, icl: bool = False, non_streaming: bool = False, language: str | None = None
) -> Prompt:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 280, int(rng.integers(4, 24)), dtype=np.int32)
    embedding = (0.3 * rng.standard_normal(config.talker.hidden_size)).astype(np.float32)
    language_id = LANGUAGES[language] if language else None
    if not icl:
        return Prompt(ROLE_IDS, text, embedding, language_id=language_id, non_streaming_mode=non_streaming)
    reference = rng.integers(0, 280, int(rng.integers(3, 12)), dtype=np.int32)
    codes = rng.integers(0, 2048, (int(rng.integers(4, 30)), 16), dtype=np.int32)
    return Prompt(ROLE_IDS, text, embedding, reference, codes, language_id, non_streaming)


def frames_of(generator: Generator[Any], slot: int) -> Iterator[Frame]:
    """Step one started stream to its end, then free it."""
    while True:
        frame = generator.step([slot])[0]
        yield frame
        if frame.finish:
            generator.free(slot)
            return


def codes_of(generator: Generator[Any], slot: int) -> np.ndarray[Any, Any]:
    """All codes of one started stream, int32 [frames, 16]."""
    codes = [frame.payload for frame in frames_of(generator, slot) if frame.payload is not None]
    return np.stack(codes) if codes else np.zeros((0, 16), np.int32)


def make_sampler(rows: Sequence[tuple[bool, float, int, float]]) -> Sampler:
    """A sampler for rows of do_sample, temperature, top_k, top_p, that does no more than they need."""
    names = ("do_sample", "temperature", "top_k", "top_p")
    knobs = np.array([SamplingParameters(seed=0, **dict(zip(names, row, strict=True))).first for row in rows])  # type: ignore[arg-type]
    return Sampler(torch.from_numpy(knobs).float(), Filters.of(knobs))
