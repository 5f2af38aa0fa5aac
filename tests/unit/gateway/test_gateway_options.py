"""What is passed on as it is: the options of a family, bounded, and ready prompts."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.doubles.gateway_thread import Shared
from tests.support.doubles.triton_double import Failure

SPEECH = {"input": "Hello there.", "voice": "ada"}
JSON = {"Content-Type": "application/json"}


def nested(depth: int) -> Any:
    """An object of so many levels."""
    return {"a": nested(depth - 1)} if depth > 1 else {"a": 1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"warmth": 0.5, "layers": [1, None, True], "style": "très calme", "nested": {"on": False}},
        nested(8),
        {"a": "x" * (4096 - len('{"a": ""}'))},
        {"a": "世" * 1300},
        {f"name{index}": index for index in range(64)},
    ],
    ids=["none", "all-types", "deep", "large", "wide", "many"],
)
def test_options_are_passed_on(shared: Shared, options: dict[str, Any]) -> None:
    triton, http = shared
    assert http.post("/v1/audio/speech", json={**SPEECH, "options": options}).status_code == 200
    assert json.loads(triton.speeches[-1][1]["options"]) == options
    batch = {"items": [{"input": "One."}, {"input": "Two.", "options": {"own": 1}}], "voice": "ada", "options": options}
    answer = http.post("/v1/audio/speech/batch", json=batch).json()
    assert answer["succeeded"] == 2
    sent = {inputs["text"]: json.loads(inputs["options"]) for _, inputs in triton.speeches[-2:]}
    assert sent == {b"One.": options, b"Two.": {"own": 1}}, "those of an item replace those of the batch"


def test_no_options_are_not_sent(shared: Shared) -> None:
    triton, http = shared
    for body in (SPEECH, {**SPEECH, "options": None}):
        assert http.post("/v1/audio/speech", json=body).status_code == 200
        assert "options" not in triton.speeches[-1][1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ('"warmth"', "valid dictionary"),
        ("[1]", "valid dictionary"),
        (json.dumps(nested(9)), "at most 8 levels"),
        ('{"a": ' + "[" * 20 + "]" * 20 + "}", "at most 8 levels"),
        (json.dumps({"a": "x" * 4096}), "at most 4096 bytes"),
        (json.dumps({"a": "世" * 1400}), "at most 4096 bytes"),
        (json.dumps({"a": list(range(2000))}), "at most 4096 bytes"),
        (json.dumps({f"{index:250}": 1 for index in range(17)}), "at most 4096 bytes"),
        (json.dumps({f"name{index}": index for index in range(65)}), "at most 64 items"),
        ('{"a": NaN}', "every number must be finite"),
        ('{"a": [1, {"b": -Infinity}]}', "every number must be finite"),
        ('{"a": 1e999}', "every number must be finite"),
        ('{"a": "\\ud800"}', "without lone surrogates"),
        ('{"\\udfff": 1}', "without lone surrogates"),
    ],
)
def test_options_that_are_refused(shared: Shared, options: str, text: str) -> None:
    triton, http = shared
    body = json.dumps(SPEECH)[:-1] + f', "options": {options}}}'
    answer = http.post("/v1/audio/speech", content=body, headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_argument", "options")
    assert text in error["message"]
    item = json.dumps({"items": [], "voice": "ada"}).replace("[]", f'[{{"input": "x", "options": {options}}}]')
    batch = http.post("/v1/audio/speech/batch", content=item, headers=JSON).json()
    assert text in batch["results"][0]["error"]["message"]
    assert triton.speeches == []


def test_large_options_cost_little(shared: Shared) -> None:
    body = json.dumps(SPEECH)[:-1] + ', "options": {"a": [' + "0," * 2_000_000 + "0]}}"
    _, http = shared
    began = time.process_time()
    assert http.post("/v1/audio/speech", content=body, headers=JSON).status_code == 400
    assert time.process_time() - began < 5


def test_the_family_checks_them(shared: Shared) -> None:
    triton, http = shared
    message = "options has no 'warmht'; this family knows warmth, layers"

    def refuse(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, f"invalid_argument: {message}")
        yield

    triton.play = refuse
    answer = http.post("/v1/audio/speech", json={**SPEECH, "options": {"warmht": 1}})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == message


def test_the_description_knows_no_family(shared: Shared) -> None:
    _, http = shared
    description = http.get("/openapi.json")
    fields = description.json()["components"]["schemas"]["SpeechRequest"]["properties"]
    assert {"options", "model"} <= fields.keys()
    for word in ("qwen", "subtalker", "80 ms", "Base checkpoint"):
        assert word not in description.text


BUNDLE = bytes(range(256)) * 400
PROMPT = base64.b64encode(BUNDLE).decode()


def test_a_ready_prompt_and_cache_false(shared: Shared) -> None:
    triton, http = shared
    asked = {"input": "Hello there.", "voice_prompt": PROMPT, "cache": False}
    assert http.post("/v1/audio/speech", json=asked).status_code == 200
    sent = triton.speeches[-1][1]
    assert sent["voice_prompt"] == BUNDLE and sent["cache"].item() is False and "voice" not in sent
    batch = {"items": [{"input": "One."}, {"input": "Two.", "voice": "ada", "cache": True}], **asked}
    batch.pop("input")
    assert http.post("/v1/audio/speech/batch", json=batch).json()["succeeded"] == 2
    by_text = {inputs["text"]: inputs for _, inputs in triton.speeches[-2:]}
    assert by_text[b"One."]["voice_prompt"] == BUNDLE and by_text[b"One."]["cache"].item() is False
    assert by_text[b"Two."]["voice"] == b"ada" and "voice_prompt" not in by_text[b"Two."]
    assert by_text[b"Two."]["cache"].item() is True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"voice_prompt": "no base64"}, "no base64 of an exported voice"),
        ({"voice_prompt": "YWJj\u00e9"}, "no base64 of an exported voice"),
        ({"voice_prompt": 5}, "voice_prompt"),
        ({"voice": "ada", "cache": "no"}, "cache"),
    ],
)
def test_prompts_that_are_refused(shared: Shared, given: dict[str, Any], words: str) -> None:
    triton, http = shared
    answer = http.post("/v1/audio/speech", json={"input": "Hello there.", **given})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    assert triton.speeches == []
