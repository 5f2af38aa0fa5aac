"""The official openai client, unmodified, against the gateway."""

from __future__ import annotations

import base64
import io
import json
from typing import Any, get_args

import numpy as np
import openai as sdk
import pytest
import soundfile
from openai import OpenAI
from openai.types.audio import SpeechModel
from voice_clone_client import Client, pcm16

pytestmark = pytest.mark.share("servers")

TEXT = "Good morning."
MORE: dict[str, Any] = {"extra_body": {"seed": 3, "max_new_tokens": 20}}


class Spoken(bytes):
    """PCM that equals other PCM if no sample is off by more than 2: speeches in one batch differ in rounding."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, bytes)
        if len(self) != len(other):
            return False
        mine, theirs = (np.frombuffer(pcm, "<i2").astype(int) for pcm in (self, other))
        return bool(np.abs(mine - theirs).max() <= 2)


@pytest.fixture
def spoken(client: Client, voice: str) -> Spoken:
    """The PCM of that speech, straight from Triton."""
    samples, _ = client.speak(TEXT, voice=voice, seed=3, max_frames=20).read()
    return Spoken(pcm16(samples))


def test_create(openai: OpenAI, voice: str, spoken: Spoken) -> None:
    answer = openai.audio.speech.create(model="tts-1", input=TEXT, voice=voice, response_format="pcm", **MORE)
    assert spoken == answer.content
    assert answer.response.headers["content-type"] == "audio/pcm;rate=24000"
    by_id = openai.audio.speech.create(
        model="qwen3_tts", input=TEXT, voice={"id": voice}, response_format="wav", **MORE
    )
    assert by_id.response.headers["content-type"] == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(by_id.content), dtype="int16")
    assert rate == 24000 and spoken == samples.tobytes()


def test_the_defaults(openai: OpenAI, voice: str, spoken: Spoken) -> None:
    for model in get_args(SpeechModel):
        answer = openai.audio.speech.create(
            model=model, input=TEXT, voice=voice, instructions="Speak like a pirate.", extra_body=MORE["extra_body"]
        )
        assert answer.response.headers["content-type"] == "audio/mpeg"
        assert answer.response.headers["x-speech-warning"].startswith("instructions are ignored")
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="int16")
        assert rate == 24000 and len(samples) >= len(spoken) // 2


def test_streaming_response(openai: OpenAI, voice: str, spoken: Spoken) -> None:
    with openai.audio.speech.with_streaming_response.create(
        model="tts-1", input=TEXT, voice=voice, response_format="pcm", **MORE
    ) as answer:
        info = json.loads(answer.headers["x-speech-info"])
        pieces = list(answer.iter_bytes())
    assert info["frames"] == 1, "the headers came with the first frame"
    assert len(pieces) > 1 and spoken == b"".join(pieces)


def test_events(openai: OpenAI, voice: str, spoken: Spoken) -> None:
    with openai.audio.speech.with_streaming_response.create(
        model="tts-1", input=TEXT, voice=voice, response_format="pcm", stream_format="sse", **MORE
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    *deltas, done = events
    assert [delta["type"] for delta in deltas] == ["speech.audio.delta"] * len(deltas) and len(deltas) > 1
    assert [delta["index"] for delta in deltas] == list(range(len(deltas)))
    assert spoken == b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert done["type"] == "speech.audio.done"
    frames = len(np.frombuffer(spoken, "<i2")) // 1920
    details = done["usage"]["input_token_details"]
    assert done["usage"]["output_tokens"] == frames and details["audio_tokens"] == 65 and details["text_tokens"] > 0
    assert done["info"]["mode"] == "icl"


def test_segments_and_ssml(openai: OpenAI, voice: str, spoken: Spoken) -> None:
    turns = [{"text": TEXT}, {"voice": voice, "text": TEXT}]
    both = openai.audio.speech.create(
        model="tts-1",
        input="",
        voice=voice,
        response_format="pcm",
        extra_body={**MORE["extra_body"], "segments": turns},
    )
    half = len(both.content) // 2
    assert spoken == both.content[:half] and spoken == both.content[half:]
    text = f"<speak>{TEXT}<break time='500ms'/>{TEXT}</speak>"
    paused = openai.audio.speech.create(model="tts-1", input=text, voice=voice, response_format="pcm", **MORE)
    first, second = json.loads(paused.response.headers["x-speech-info"])["segments"]
    begin, end = (round(seconds * 24000) * 2 for seconds in (first["end"], second["start"]))
    assert end - begin == 24000 and not any(paused.content[begin:end])


@pytest.mark.parametrize(
    ("given", "error", "code"),
    [
        ({"voice": "Nobody"}, sdk.NotFoundError, "voice_not_found"),
        ({"model": "tts-9"}, sdk.NotFoundError, "model_not_found"),
        ({"input": " "}, sdk.BadRequestError, "invalid_argument"),
        ({"speed": 5.0}, sdk.BadRequestError, "invalid_argument"),
        ({"response_format": "wma"}, sdk.BadRequestError, "invalid_argument"),
        ({"extra_body": {"ref_txt": "typo"}}, sdk.BadRequestError, "invalid_argument"),
    ],
)
def test_typed_errors(
    openai: OpenAI, voice: str, given: dict[str, Any], error: type[sdk.APIStatusError], code: str
) -> None:
    asked: dict[str, Any] = {"model": "tts-1", "input": TEXT, "voice": voice, **MORE, **given}
    with pytest.raises(error) as failure:
        openai.audio.speech.create(**asked)
    assert failure.value.code == code
    assert failure.value.request_id


def test_models(openai: OpenAI) -> None:
    assert [model.id for model in openai.models.list()] == ["qwen3_tts", *get_args(SpeechModel)]
    assert openai.models.retrieve("tts-1").object == "model"
    with pytest.raises(sdk.NotFoundError):
        openai.models.retrieve("gpt-9")
