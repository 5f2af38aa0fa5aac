"""Token ids as mistral-common makes them, and what is no tokenizer.

`mistral_common.json` holds texts with the ids that mistral-common 1.13.1 makes of them with `tekken_240911.json`, and
those tokens of that vocabulary that the texts can meet; here the others are tokens that no text makes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.families.voxtral import make_voxtral
from tools.families.voxtral.checkpoint_tokenizer import tekken
from tools.families.weight_files import write_json
from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.config import VoxtralConfig, load_config
from voice_clone.families.voxtral.prompt import Tokenizer

pytestmark = pytest.mark.thorough

KEPT = json.loads((Path(__file__).parent / "mistral_common.json").read_text())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint")


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> VoxtralConfig:
    return dataclasses.replace(load_config(checkpoint), vocab_size=KEPT["size"])


@pytest.fixture(scope="module")
def released(config: VoxtralConfig, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("released")
    tokens = [b"\xff\xfe%d" % rank for rank in range(KEPT["size"] - KEPT["special"])]
    for rank, token in KEPT["tokens"].items():
        tokens[int(rank)] = base64.b64decode(token)
    content = tekken(tokens, KEPT["size"], {})
    content["config"]["pattern"] = KEPT["pattern"]
    write_json(folder / "tekken.json", content)
    return Tokenizer(folder, config)


def test_texts_become_the_ids_of_mistral_common(released: Tokenizer) -> None:
    assert len(KEPT["texts"]) == 317
    for text, ids in KEPT["texts"]:
        assert released.text_ids(text)[1:-2].tolist() == ids, text


def test_the_prompt_of_mistral_common(released: Tokenizer) -> None:
    """`SpeechRequest(input=..., voice="casual_male")`, whose table has 147 positions: 158 ids."""
    ids = [*released.before_voice, *[released.audio] * 147, *released.text_ids("Paris is a beautiful city!")]
    assert ids == [1, 25, *[24] * 147, 36, 42572, 1395, 1261, 15568, 5970, 1033, 35, 25]
    assert released.around_text == 3


def test_special_tokens_in_a_text_are_text(released: Tokenizer) -> None:
    assert released.text_ids("[AUDIO]").tolist() == [36, 80125, 84310, 1093, 35, 25]


def remove(part: str, key: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content[part].pop(key)


def test_what_is_no_tokenizer(checkpoint: Path, config: VoxtralConfig, tmp_path: Path) -> None:
    content = json.loads((checkpoint / "tekken.json").read_text())

    def refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
        changed = json.loads(json.dumps(content))
        change(changed)
        write_json(tmp_path / "tekken.json", changed)
        with pytest.raises(CheckpointError, match=message):
            Tokenizer(tmp_path, config)

    unreadable = "not a tokenizer that can be read"
    refused(remove("config", "pattern"), unreadable)
    refused(lambda c: c["config"].update(pattern="("), unreadable)
    refused(lambda c: c["vocab"].pop(300), unreadable)
    refused(lambda c: c["vocab"][300].update(token_bytes="?"), unreadable)
    refused(lambda c: c.update(vocab=[[]]), unreadable)
    refused(lambda c: c["special_tokens"].pop(36), r"lacks the token \[NEXT_AUDIO_TEXT\]")
    refused(lambda c: c["special_tokens"][36].update(rank=2000), r"lacks the token \[NEXT_AUDIO_TEXT\]")
    write_json(tmp_path / "tekken.json", content)
    with pytest.raises(CheckpointError, match="vocab_size is 1000"):
        Tokenizer(tmp_path, dataclasses.replace(config, vocab_size=1000))
    (tmp_path / "tekken.json").unlink()
    with pytest.raises(CheckpointError, match=r"tekken.json: .*missing"):
        Tokenizer(tmp_path, config)
