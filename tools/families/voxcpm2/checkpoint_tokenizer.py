"""The tokenizer of a random checkpoint: a small BPE over characters in tokenizer.json, as released.

Blanks are "▁", there is one before the text, unknown characters become bytes, and some tokens have several Chinese
characters, which the official code splits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tools.families.byte_level_bpe import CORPUS
from tools.families.weight_files import write_json

CONTROL = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|ref_audio_start|>", 104: "<|ref_audio_end|>"}
RESERVED = 110  # ids before the bytes
_MERGES = 600
_WORDS = r"▁?[^▁]+|▁+"
_CHINESE = ["你好世界。今天天气很好,我们早上读一遍故事。", "早上好,朋友。故事很好,世界很大。"]


def write_tokenizer(folder: Path, vocabulary: int | None) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        folder: exists.
        vocabulary: number of tokens; those that the merges leave over are filled with tokens that no text makes. None:
            no filling.
    """
    trained = Tokenizer(models.BPE())
    trained.normalizer = _normalizer()
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    trainer = trainers.BpeTrainer(vocab_size=_MERGES + 500, show_progress=False, min_frequency=2)
    texts = [*CORPUS.split("\n"), *_CHINESE * 4] * 2
    trained.train_from_iterator(texts, trainer)
    model = _model_of(trained)
    named = {0: "<unk>", 1: "<s>", 2: "</s>", **CONTROL}
    tokens = [named.get(index, f"<|reserved_{index}|>") for index in range(RESERVED)]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += sorted(model["vocab"], key=model["vocab"].__getitem__)
    if vocabulary is not None:
        if len(tokens) > vocabulary:
            raise ValueError(f"the tokenizer has {len(tokens)} tokens, more than {vocabulary}")
        tokens += [f"<|unused_{index}|>" for index in range(len(tokens), vocabulary)]
    made = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.normalizer = _normalizer()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(list(named.values()))
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "legacy": True,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "LlamaTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", settings)


def _normalizer() -> Any:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def _model_of(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model
