"""A speech whose end the model missed looks whole in no form of the answer, unless the caller allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai as sdk
import pytest

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.speech_double import Double
from tests.support.doubles.triton_double import Server, chunk
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, run

SPEECH = {"input": "Some words.", "voice": "ada", "response_format": "pcm"}
AUDIO = 2 * 1920 * 2  # bytes


class Ends:
    """A play of the double: speeches with these finish reasons, one after another; the last repeats."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)

    def __call__(self, context: Any) -> Iterator[Any]:
        reason = self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]
        yield chunk(0, info={"mode": "icl"})
        yield chunk(1, final=True, info={"mode": "icl", "finish_reason": reason})


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def metric(http: httpx2.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(f"voice_clone_gateway_{name}")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("reason", ["budget", "runaway"])
def test_a_raw_stream_breaks_off(triton: Server, serve: Serve, reason: str) -> None:
    triton.play = Ends(reason)
    http, got = serve(triton.url), bytearray()
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer,
    ):
        for piece in answer.iter_raw():
            got += piece
    assert len(got) == AUDIO and len(triton.speeches) == 1, "a stream cannot be tried again"
    assert metric(http, 'aborted_speeches_total{reason="incomplete"}') == 1
    allowed = http.post("/v1/audio/speech", json={**SPEECH, "allow_partial": True})
    assert allowed.status_code == 200 and len(allowed.content) == AUDIO


def test_events_end_with_an_error(triton: Server, serve: Serve) -> None:
    triton.play = Ends("runaway")
    http = serve(triton.url)
    *deltas, last = events(http.post("/v1/audio/speech", json={**SPEECH, "stream_format": "sse"}))
    assert len(deltas) == 2 and last["type"] == "speech.audio.error"
    assert last["error"]["finish_reason"] == "runaway" and last["error"]["partial_audio"] is True
    request = {**SPEECH, "stream_format": "sse", "allow_partial": True}
    *deltas, last = events(http.post("/v1/audio/speech", json=request))
    assert len(deltas) == 2 and last["type"] == "speech.audio.done" and last["finish_reason"] == "runaway"


@pytest.mark.parametrize("given", [None, True, False])
def test_a_setting_says_what_is_allowed_by_default(triton: Server, serve: Serve, given: bool | None) -> None:
    triton.play = Ends("budget")
    http = serve(triton.url, allow_partial=True)
    answer = http.post("/v1/audio/speech", json={**SPEECH, "stream": False, "allow_partial": given})
    assert answer.status_code == (500 if given is False else 200)


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_what_the_caller_wanted_is_whole(triton: Server, serve: Serve, reason: str) -> None:
    triton.play = Ends(reason)
    http = serve(triton.url)
    assert len(http.post("/v1/audio/speech", json=SPEECH).content) == AUDIO
    whole = http.post("/v1/audio/speech", json={**SPEECH, "stream": False})
    assert json.loads(whole.headers["x-speech-info"])["finish_reason"] == reason
    last = events(http.post("/v1/audio/speech", json={**SPEECH, "stream_format": "sse"}))[-1]
    assert last["finish_reason"] == reason
    assert len(triton.speeches) == 3 and metric(http, "retried_speeches_total{") == 0


@pytest.mark.parametrize("form", ["file", "batch"])
@pytest.mark.parametrize("misses", [0, 1, 2, 3])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_file_is_tried_again(triton: Server, serve: Serve, form: str, misses: int, allowed: bool) -> None:
    triton.play = Ends(*["budget"] * misses, "stop")
    http, given = serve(triton.url, missed_end_retries=2), {**SPEECH, "allow_partial": allowed}
    if form == "file":
        answer = http.post("/v1/audio/speech", json={**given, "stream": False})
        good, size = answer.status_code == 200, len(answer.content)
        reason = json.loads(answer.headers["x-speech-info"])["finish_reason"] if good else None
    else:
        [item] = http.post("/v1/audio/speech/batch", json={"items": [given]}).json()["results"]
        good, size = item["status"] == "success", len(item.get("audio_data", "")) * 3 // 4
        reason = item["finish_reason"] if good else None
        assert good or item["finish_reason"] == "budget"
    assert good == (misses < 3 or allowed)
    if good:
        assert size == AUDIO and reason == ("stop" if misses < 3 else "budget")
    elif form == "file":
        detail = answer.json()["error"]
        assert answer.status_code == 500 and detail["code"] == "incomplete" and "allow_partial" in detail["hint"]
    assert len(triton.speeches) == min(misses, 2) + 1
    retried = metric(http, 'retried_speeches_total{family="qwen3_tts"}')
    assert retried == min(misses, 2)


def test_the_openai_client_does_not_repeat_what_was_repeated(triton: Server, serve: Serve) -> None:
    triton.play = Ends("budget", "budget", "budget", "stop")
    http = serve(triton.url, missed_end_retries=2)
    openai = sdk.OpenAI(base_url=str(http.base_url.join("/v1")), api_key="none")
    with openai, pytest.raises(sdk.InternalServerError) as raised:
        openai.audio.speech.create(model="tts-1", input="Hi.", voice="ada", extra_body={"stream": False})
    assert raised.value.code == "incomplete" and raised.value.response.headers["x-should-retry"] == "false"
    assert len(triton.speeches) == 3


@pytest.mark.parametrize("given", [{"seed": 7}, {"do_sample": False}])
def test_another_attempt_needs_another_seed(triton: Server, serve: Serve, given: dict[str, Any]) -> None:
    triton.play = Ends("budget", "stop")
    answer = serve(triton.url).post("/v1/audio/speech", json={**SPEECH, **given, "stream": False})
    assert answer.status_code == 500 and len(triton.speeches) == 1


def test_no_attempts_again_if_a_setting_says_so(triton: Server, serve: Serve) -> None:
    triton.play = Ends("budget", "stop")
    http = serve(triton.url, missed_end_retries=0)
    assert http.post("/v1/audio/speech", json={**SPEECH, "stream": False}).status_code == 500
    assert len(triton.speeches) == 1


def test_all_attempts_share_the_time_of_a_speech(triton: Server, serve: Serve) -> None:
    triton.play = Ends("budget")
    http = serve(triton.url, speech_seconds=0.0)
    assert http.post("/v1/audio/speech", json={**SPEECH, "stream": False}).status_code == 504


def test_a_sentence_of_a_long_file_is_tried_again_alone(triton: Server, serve: Serve) -> None:
    triton.play = Ends("stop", "budget", "stop")
    text = "The first sentence is here. The second one follows it. The third one ends the text."
    http = serve(triton.url, sentence_characters=30)
    answer = http.post("/v1/audio/speech", json={**SPEECH, "input": text, "stream": False})
    assert answer.status_code == 200 and len(answer.content) == 3 * AUDIO
    said = [inputs["text"].decode() for _, inputs in triton.speeches]
    assert len(said) == 4 and len(set(said)) == 3


def test_a_long_text_has_the_worst_of_its_ends(triton: Server, serve: Serve) -> None:
    triton.play = Ends("stop", "budget", "length", "stop")
    text = "The first sentence is here. The second one follows it. The third one goes on. The fourth one ends it."
    request = {**SPEECH, "input": text, "stream_format": "sse", "allow_partial": True}
    last = events(serve(triton.url, sentence_characters=30).post("/v1/audio/speech", json=request))[-1]
    assert len(triton.speeches) == 4 and last["finish_reason"] == last["info"]["finish_reason"] == "budget"


TEXT = "The first sentence here. The lost sentence here. And one more sentence."


@pytest.mark.parametrize("allowed", [False, True])
def test_a_websocket_reports_it_with_the_sentence_and_the_utterance(allowed: bool) -> None:
    double = Double(misses=lambda text: "lost" in text)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(allow_partial=allowed)
            await caller.send("input.text", text=TEXT)
            await caller.send("input.done")
            seen = await caller.until("session.done")
        ends = [event["finish_reason"] for event in events_of(seen) if event["type"] == "audio.done"]
        errors = [event for event in events_of(seen) if event["type"] == "error"]
        done = events_of(seen)[-1]
        assert done["finish_reason"] == "budget" and ("failed" in done) != allowed
        if allowed:
            assert ends == ["stop", "budget", "stop"] and not errors
        else:
            assert ends == ["stop", "budget"]
            [error] = errors
            assert error["error"]["code"] == "incomplete" and error["partial_audio"] is True

    run(test, double)


def test_a_websocket_that_sends_files_tries_a_sentence_again() -> None:
    missed: list[str] = []

    def once(text: str) -> bool:
        if "lost" in text and text not in missed:
            missed.append(text)
            return True
        return False

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(stream_audio=False, seed=None)
            await caller.send("input.text", text=TEXT)
            await caller.send("input.done")
            seen = await caller.until("session.done")
        ends = [event["finish_reason"] for event in events_of(seen) if event["type"] == "audio.done"]
        assert ends == ["stop"] * 3 and events_of(seen)[-1]["finish_reason"] == "stop"
        assert len(gateway.double.speeches) == 4 and len(audio_of(seen)) > 0

    run(test, Double(misses=once))
    assert missed
