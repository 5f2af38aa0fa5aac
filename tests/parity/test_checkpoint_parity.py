"""The official package reads our random checkpoints whole, and its tokenizer makes the same ids as ours."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.oracles.packages import quiet
from tests.support.oracles.qwen_tts import qwen_tts
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from tools.families.qwen3_tts.checkpoint_weights import Shapes, codec_shapes, model_shapes
from voice_clone.families.qwen3_tts.prompt import Tokenizer

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

STRINGS = 3000


@pytest.fixture(scope="module")
def tiny(checkpoint_folder: Callable[[str, int], Path]) -> Path:
    return checkpoint_folder("tiny", 0)


@pytest.fixture(scope="module")
def official(tiny: Path) -> Any:
    with quiet():
        return qwen_tts().Qwen3TTSModel.from_pretrained(str(tiny), dtype=torch.float32, device_map="cpu")


def test_every_tensor_is_loaded_and_none_is_left(official: Any, tiny: Path) -> None:
    for module, file in (
        (official.model, "model.safetensors"),
        (official.model.speech_tokenizer.model, "speech_tokenizer/model.safetensors"),
    ):
        stored = load_file(tiny / file)
        loaded = module.state_dict()
        assert loaded.keys() == stored.keys()
        assert all(torch.equal(loaded[name], stored[name].float()) for name in loaded)


def test_generation_defaults_are_read(official: Any, tiny: Path) -> None:
    assert official.generate_defaults == json.loads((tiny / "generation_config.json").read_text())
    assert official.generate_defaults["max_new_tokens"] == 8192


@pytest.mark.parametrize("shape", ["tiny", "0.6b", "1.7b"])
def test_names_and_shapes_are_those_of_the_official_classes(shape: str, tmp_path: Path) -> None:
    config = write_configuration(SHAPES[shape], tmp_path)
    model = qwen_tts().Qwen3TTSModel.from_pretrained.__globals__
    tokenizer = qwen_tts().Qwen3TTSTokenizer.from_pretrained.__globals__
    model_config = model["Qwen3TTSConfig"].from_pretrained(str(tmp_path))
    codec_config = tokenizer["Qwen3TTSTokenizerV2Config"].from_pretrained(str(tmp_path / "speech_tokenizer"))
    with quiet(), torch.device("meta"):
        built = model["Qwen3TTSForConditionalGeneration"](model_config)
        codec = tokenizer["Qwen3TTSTokenizerV2Model"](codec_config)
    assert model_shapes(config) == shapes_of(built)
    assert codec_shapes(config) == shapes_of(codec)


def shapes_of(module: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def test_signals_of_the_official_model_are_alive(official: Any, reference_clip: bytes, tmp_path: Path) -> None:
    """Every comparison would pass on silence, or on one code that repeats."""
    clip = tmp_path / "clip.wav"
    clip.write_bytes(reference_clip)
    torch.manual_seed(0)
    with quiet():
        voice = official.create_voice_clone_prompt(ref_audio=str(clip), ref_text="A text.")
        (waveform,), rate = official.generate_voice_clone(
            text="Numbers such as 12 are spoken as words.",
            language="english",
            voice_clone_prompt=voice,
            max_new_tokens=41,
            do_sample=False,
            subtalker_dosample=False,
        )
    assert rate == 24000
    assert 0.03 < float(np.sqrt(np.mean(np.square(waveform)))) < 0.5
    assert float(np.std(waveform)) > 0.03  # and no constant
    assert len(torch.unique(voice[0].ref_code)) > 200
    assert 0.1 < float(voice[0].ref_spk_embedding.float().square().mean().sqrt()) < 4


def strings(seed: int, count: int) -> list[str]:
    """Texts of mixed scripts, marks, emoji, controls, digits and whitespace; some begin or end with line breaks."""
    rng = random.Random(seed)
    ranges = [
        (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
        (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
        (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF),
        (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0, 0x1F), (0x7F, 0x9F), (0xD, 0xD), (0xA, 0xA), (0x30, 0x39),
    ]  # fmt: skip
    pieces = [
        *("  ", "\n\n", "\r\n", "\t", " \n ", "\u3000", "\u00a0", "don't", "I'LL", "'s", "HelloWorld", "12,345.6"),
        *(
            "e\u0301",
            "\u1100\u1161\u11a8",
            "👩\u200d👩\u200d👧",
            "שלום",
            "مرحبا",
            "…",
            "——",
            "<|",
            "|>",
            "</",
            "ſ",
            "'ſ",
        ),
        *("assistant", "assistant\n", "The voice", "朋友", "声", "история", "\ufeff", "\u202e", "한국어", "<think>"),
    ]

    def piece() -> str:
        if rng.random() < 0.5:
            return rng.choice(pieces)
        low, high = rng.choice(ranges)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))

    return ["".join(piece() for _ in range(rng.randint(1, 12))) for _ in range(count)]


def assert_same_ids(processor: Any, ours: Tokenizer, texts: list[str]) -> None:
    """The cuts are those of qwen-tts 0.1.1: `input_id[:, 3:-5]` and `ref_id[:, 3:-2]`."""

    def ids(text: str) -> list[int]:
        tokens: list[int] = processor(text=text)["input_ids"][0]
        return tokens

    assert ids("<|im_start|>assistant\n") == ours.role_ids.tolist()
    for text in texts:
        reference = f"<|im_start|>assistant\n{text}<|im_end|>\n"
        assert ids(f"{reference}<|im_start|>assistant\n")[3:-5] == ours.text_ids(text).tolist(), ascii(text)
        assert ids(reference)[3:-2] == ours.reference_ids(text).tolist(), ascii(text)


def test_text_ids_are_the_official_ones(official: Any, tiny: Path) -> None:
    texts = strings(7, STRINGS)
    assert len({character for text in texts for character in text}) > 3000
    assert_same_ids(official.processor, Tokenizer(tiny), texts)


def test_the_templates_are_the_official_ones(official: Any, tiny: Path) -> None:
    ours = Tokenizer(tiny)
    (whole,) = official._tokenize_texts([official._build_assistant_text("Hello there.")])
    assert whole[0, 3:-5].tolist() == ours.text_ids("Hello there.").tolist()
    assert whole[0, :3].tolist() == ours.role_ids.tolist()
    (reference,) = official._tokenize_texts([official._build_ref_text("Hello there.")])
    assert reference[0, 3:-2].tolist() == ours.reference_ids("Hello there.").tolist()


def test_a_released_vocabulary_is_split_as_from_the_hub(tmp_path: Path) -> None:
    """A large tokenizer, without the Mistral pattern that transformers 4.57.3 forces on local folders."""
    from transformers import Qwen2TokenizerFast

    write_configuration(SHAPES["0.6b"], tmp_path)
    with quiet():
        tokenizer = Qwen2TokenizerFast.from_pretrained(str(tmp_path))

    def processor(text: str) -> dict[str, list[list[int]]]:
        return {"input_ids": [tokenizer(text)["input_ids"]]}

    assert_same_ids(processor, Tokenizer(tmp_path), strings(8, 300))
