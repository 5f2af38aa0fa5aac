"""OmniVoice's rules of texts against the official code: duration, chunks, instructions, languages, what is read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from tests.support.families.omnivoice_talkers import make_omnivoice_talker
from tests.support.oracles.omnivoice import OfficialTalker, official_module
from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.chunks import Pace, plan_chunks, split, with_end
from voice_clone.families.omnivoice.config import load_config
from voice_clone.families.omnivoice.duration import estimate, weight
from voice_clone.families.omnivoice.instruct import WORDS, instruction
from voice_clone.families.omnivoice.languages import IDS, IDS_BY_NAME, language_id
from voice_clone.families.omnivoice.prompt import SOUNDS, Tokenizer, joined

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

PARTS = (
    *(
        "Good morning",
        "and then",
        "Mr. Smith",
        "e.g. this",
        "No. 7",
        "...",
        "?!",
        ' "quoted" ',
        "(so)",
        "I ",
        "\n",
        "\r\n",
    ),
    *(
        "你好",
        "世界",
        "，",
        "。",
        "！",
        "」",
        "（好）",
        "朋友的声音",
        "こんにちは",
        "カタカナ",
        "안녕하세요",
        "สวัสดี",
        "नमस्ते",
    ),
    *("مرحبا", "שלום", "Привет", "Καλημέρα", "Ⅳ", "305", "1998", "5 %", "😀", "\u0640", "\u0301", "𠮷", "\u2003", "\t"),
    *(
        "[laughter]",
        "[sigh]",
        "[question-en]",
        "[B EY1 S]",
        "ZHE2",
        " ",
        ",",
        ";",
        ":",
        ".",
        "…",
        "é",
        "ǅ",
        "ꀀ",
        "\u1f00",
    ),
)


def texts(count: int, seed: int) -> list[str]:
    """Texts of some parts each, in no order, with a word in each."""
    chosen = random.Random(seed)
    return ["word" + "".join(chosen.choices(PARTS, k=chosen.randint(0, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_omnivoice_talker(tmp_path_factory.mktemp("omnivoice") / "checkpoint")


@pytest.fixture(scope="module")
def official(folder: Path) -> OfficialTalker:
    return OfficialTalker(folder)


def test_each_character_weighs_as_officially() -> None:
    estimator = official_module("omnivoice.utils.duration").RuleDurationEstimator()
    every = [chr(code) for code in range(0x20100) if not 0xD800 <= code < 0xE000]
    assert [each for each in every if weight(each) != estimator.calculate_total_weight(each)] == []


def test_duration(official: OfficialTalker) -> None:
    chosen = random.Random(1)
    for text, transcript in zip(texts(1000, 2), texts(1000, 3), strict=True):
        frames, speed = chosen.randint(1, 500), chosen.choice([1.0, 0.5, 1.7])
        for reference in ((transcript, frames), ("\u0301", frames), None):
            expected = official.model._estimate_target_tokens(text, *(reference or (None, None)), speed=speed)
            assert estimate(text, reference, speed) == expected


def test_chunks() -> None:
    utilities = official_module("omnivoice.utils.text")
    chosen = random.Random(4)
    for text in texts(1000, 5):
        most = chosen.choice([0, 1, 5, 20, 50, 100])
        assert split(text, most) == utilities.chunk_text_punctuation(text, most, min_chunk_len=3)
        assert with_end(text) == utilities.add_punctuation(text)


def test_plans_of_whole_requests(official: OfficialTalker) -> None:
    """Number and frames of all chunks; the official code is stopped where it would generate."""
    made: list[tuple[str, int]] = []

    def note(task: Any, config: Any) -> list[Tensor]:
        made.extend(zip(task.texts, task.target_lens, strict=True))
        return [official_codes(task.target_lens[0])]

    voice = official.clone_prompt(official_codes(80), "One, two, three.", 0.1)
    chosen = random.Random(6)
    paces: list[dict[str, float]] = [{}, {"speed": 1.5}, {"duration": 4.0}, {"duration": 60.0, "speed": 2.0}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(official.model, "_generate_iterative", note)
        for text in texts(300, 7):
            given, cloned = chosen.choice(paces), chosen.choice([True, False])
            made.clear()
            task = official.task(text=text, voice_clone_prompt=voice if cloned else None, **given)
            official.spoken(task, [0], audio_chunk_duration=3.0, audio_chunk_threshold=5.0)
            pace = Pace(chunk_seconds=3.0, threshold_seconds=5.0, **given)
            assert plan_chunks(text, ("One, two, three.", 80) if cloned else None, pace) == made


def official_codes(frames: int) -> Tensor:
    return torch.zeros(8, frames, dtype=torch.long)


def test_instructions(official: OfficialTalker) -> None:
    chosen = random.Random(8)
    words = [*sorted(WORDS), "mael", "", "VERY LOW PITCH", " female "]
    refused = 0
    for _ in range(2000):
        asked = chosen.choice([",", ", ", "，", " ， "]).join(chosen.choices(words, k=chosen.randint(0, 3)))
        text = chosen.choice(["Good morning", "你好", "Good 你好"])
        try:
            expected = official.module._resolve_instruct(asked, use_zh="你" in text)
        except ValueError:
            refused += 1
            with pytest.raises(InvalidArgument, match=r"options\.instruct"):
                instruction(asked, text)
        else:
            assert instruction(asked, text) == (expected or None)
    assert 200 < refused < 1800


def test_languages(official: OfficialTalker) -> None:
    names = official_module("omnivoice.utils.lang_map")
    assert IDS_BY_NAME == names.LANG_NAME_TO_ID and IDS == names.LANG_IDS
    for asked in [*names.LANG_NAME_TO_ID, *names.LANG_IDS, *map(str.title, names.LANG_NAME_TO_ID), "None", None]:
        assert language_id(asked) == official.module._resolve_language(asked)


def test_what_is_read(folder: Path, official: OfficialTalker) -> None:
    """The tokens of whole prompts."""
    ours = Tokenizer(folder, load_config(folder))
    chosen = random.Random(9)
    for text, before in zip(texts(500, 10), texts(500, 11), strict=True):
        transcript = with_end(before) if chosen.random() < 0.7 else None
        codes = None if transcript is None else official_codes(3)
        language, words = chosen.choice([None, "en", "zh"]), chosen.choice([None, "female, low pitch", "男，四川话"])
        denoise = chosen.choice([True, False])
        assert joined(transcript, text) == official.module._combine_text(text, transcript)
        made = official.model._prepare_inference_inputs(text, 2, transcript, codes, language, words, denoise)
        expected = made["input_ids"][0, 0, ~made["audio_mask"][0]].tolist()
        found = [*ours.style_ids(denoise and codes is not None, language, words), *ours.text_ids(transcript, text)]
        assert found == expected


def test_every_sound_is_known(official: OfficialTalker, folder: Path) -> None:
    """A tag is encoded by itself, whatever is beside it."""
    library = LibraryTokenizer.from_file(str(folder / "tokenizer.json"))
    ours = Tokenizer(folder, load_config(folder))
    for sound in SOUNDS:
        tag = f"[{sound}]"
        assert official.module._NONVERBAL_PATTERN.fullmatch(tag)
        inner = ours.text_ids(None, f"a{tag}b").tolist()
        alone = library.encode(tag, add_special_tokens=False).ids
        assert any(inner[each : each + len(alone)] == alone for each in range(len(inner)))
    assert len(SOUNDS) == official.module._NONVERBAL_PATTERN.pattern.count("|") + 1
