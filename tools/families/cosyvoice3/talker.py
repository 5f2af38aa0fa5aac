"""The talker of random checkpoints in the official format: llm.pt, and the Qwen2 folder beside it without weights."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from tools.families.byte_level_bpe import train_merges, vocabulary_of, write_vocabulary
from tools.families.gains import VECTOR, Gains, Sizes, around, spread
from tools.families.weight_files import write_json
from voice_clone.families.cosyvoice3.config import BLANK, CODES, CONFIG_FILE, LLM, SPEECH_IDS, TalkerConfig
from voice_clone.families.cosyvoice3.prompt import added_tokens
from voice_clone_server.families.cosyvoice3.released_shapes import LM_HEAD, llm_shapes

RELEASED_WORDS = 151643  # tokens of Qwen2's vocabulary, without the added ones
HEAD = "llm_decoder.weight"
LOGITS = 3.0  # spread of the logits of speech tokens

_RELEASED = TalkerConfig(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    vocab_size=151936,
)
TALKERS = {
    "tiny": replace(
        _RELEASED,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=1280,
    ),
    "0.5b-2": replace(_RELEASED, num_hidden_layers=2),
    "0.5b": _RELEASED,
}


def make_talker(shape: str, seed: int, folder: Path) -> None:
    """Write llm.pt, fp32, and in the folder of the Qwen2 its configuration and its tokenizer.

    Args:
        shape: a key of `TALKERS`.
        seed: of all weights.
        folder: it exists.
    """
    config = TALKERS[shape]
    (folder / BLANK).mkdir()
    write_json(folder / CONFIG_FILE, {**_QWEN2, **asdict(config)})
    _write_tokenizer(folder, RELEASED_WORDS if config.vocab_size == _RELEASED.vocab_size else None)
    tensors = {name: _tensor(name, size, seed) for name, size in llm_shapes(config).items() if name != LM_HEAD}
    tensors[LM_HEAD] = tensors["llm.model.model.embed_tokens.weight"]
    torch.save(tensors, folder / f"{LLM}.pt")


# What the released config.json says besides the sizes.
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}


def _write_tokenizer(folder: Path, words: int | None) -> None:
    """vocab.json, merges.txt and tokenizer_config.json.

    Args:
        words: tokens of the vocabulary; those that the merges leave over are tokens that no text makes. None: no
            filling.
    """
    merges = train_merges()
    tokens = vocabulary_of(merges, words)
    write_vocabulary(folder / BLANK, tokens, merges)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    own = enumerate(added_tokens()[:3], start=len(tokens))
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(index): {"content": token, **flags} for index, token in own},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    write_json(folder / BLANK / "tokenizer_config.json", settings)


_TABLE = Gains(
    kinds=((r"embed", spread(0.5)), (r"\.bias$", spread(0.3)), (VECTOR, around(1, 0.1))),
    gains=((rf"^{HEAD}$", LOGITS), (r"(o_proj|down_proj)\.weight$", 0.3)),
    fan_in=lambda name, sizes: sizes[1],
)


def _tensor(name: str, shape: Sizes, seed: int) -> Tensor:
    """Speech ends about once in some thousand frames."""
    made = _TABLE(name, shape, seed)
    if name == HEAD:
        made[CODES:SPEECH_IDS] *= 0.6  # as many ids end speech
    return made
