"""Texts with pauses, several voices, SSML and numbers on the real server: as the gateway speaks them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
import tritonclient.grpc
from numpy.typing import NDArray
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.server.speech.test_speech_whole import asked, cancelled, inputs, limited
from tests.support.same_audio import is_same_audio
from tests.support.servers.server_metrics import metric
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import ROOT, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

MODEL, RATE = "text_front_end", 24000
KNOBS = {"seed": np.array([7], np.uint64), "max_frames": np.array([30], np.int32)}
SSML = (
    "<speak>Good morning.<break time='300ms'/> It is <sub alias='World Wide Web'>WWW</sub>.<mark name='here'/>"
    "<voice name='Other'>I am another.</voice><break time='1s'/></speak>"
)
__all__ = ["limited"]  # a fixture


@pytest.fixture(scope="module")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Gateway(server.url, tmp_path_factory.mktemp("gateway") / "log") as gateway:
        yield gateway.url


Answers = list[tuple[NDArray[np.float32], dict[str, Any], bool]]


def answers(server: TritonServer, given: dict[str, Any], **more: Any) -> Answers:
    """The responses of a stream: samples, info, whether it is the last."""
    found: Answers = []
    over = threading.Event()
    errors: list[Exception] = []

    def hear(result: Any, error: Exception | None) -> None:
        if error is not None:
            errors.append(error)
            over.set()
            return
        if result.get_response().parameters["triton_final_response"].bool_param:
            over.set()
        if (audio := result.as_numpy("audio")) is not None:
            assert result.as_numpy("chunk_index").tolist() == [len(found)]
            info = json.loads(result.as_numpy("info")[0] or b"{}")
            found.append((audio, info, bool(result.as_numpy("final")[0])))

    with tritonclient.grpc.InferenceServerClient(server.url) as client:
        client.start_stream(hear)
        client.async_stream_infer(MODEL, inputs(tritonclient.grpc, given), enable_empty_final_response=True, **more)
        assert over.wait(WAIT)
        client.stop_stream()
    if errors:
        raise errors[0]
    assert [final for _, _, final in found] == [False] * (len(found) - 1) + [True]
    return found


def heard(server: TritonServer, given: dict[str, Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
    found = answers(server, given)
    return np.concatenate([audio for audio, _, _ in found]), found[-1][1]


def of_gateway(gateway: str, **body: Any) -> NDArray[np.float32]:
    answer = httpx2.post(
        f"{gateway}/v1/audio/speech",
        json={"response_format": "pcm_f32", "seed": 7, "max_frames": 30, **body},
        timeout=WAIT,
    )
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, np.float32)


@pytest.fixture
def two(server: TritonServer, voice: str, reference_clip: bytes) -> str:
    """A second voice."""
    with Client(server.url) as client:
        if "Other" not in {each.name for each in client.list()}:
            client.upload("Other", reference_clip, wait=True)
    return "Other"


def test_ssml_is_that_of_the_gateway(server: TritonServer, gateway: str, voice: str, two: str) -> None:
    wanted = of_gateway(gateway, input=SSML, voice=voice)
    samples, info = heard(server, {"text": SSML, "voice": voice, **KNOBS})
    assert is_same_audio(samples, wanted)
    shown = httpx2.post(f"{gateway}/v1/audio/text", json={"input": SSML}, timeout=WAIT).json()
    spans = [[item["start"], item["end"]] for item in shown["items"] if item["type"] == "speech"]
    assert [entry["characters"] for entry in info["segments"]] == spans
    assert info["marks"] == [{"name": "here", "segment": 1, "character": shown["marks"][0]["character"]}]
    assert not np.any(samples[-RATE:]), "the last pause"


def test_segments_are_those_of_the_gateway(server: TritonServer, gateway: str, voice: str, two: str) -> None:
    segments = [
        {"text": "Good morning.", "voice": voice},
        {"text": "Is it? I am not sure.", "voice": two},
        {"text": "It is. " * 60, "pause_ms": 250},
    ]
    wanted = of_gateway(gateway, segments=segments, voice=voice)
    given = {"settings": json.dumps({"segments": segments}), "voice": voice, **KNOBS}
    samples, info = heard(server, given)
    assert is_same_audio(samples, wanted)
    alone, _ = heard(server, {"text": "Good morning.", "voice": voice, **KNOBS})
    with Client(server.url) as client, client.speak("Good morning.", voice=voice, seed=7, max_frames=30) as speech:
        assert is_same_audio(speech.read()[0], alone), "where nothing is asked, it is the family's own"
    assert is_same_audio(samples[: len(alone)], alone)
    assert info["frames"] > 0 and [entry["index"] for entry in info["segments"]] == [0, 1, 2]


def test_rates_are_those_of_the_gateway(server: TritonServer, gateway: str, voice: str) -> None:
    segments = [
        {"text": "<speak>Good <prosody rate='80%'>morning</prosody>.</speak>", "speed": 1.5},
        {"text": "Is it?", "pause_ms": 100},
    ]
    wanted = of_gateway(gateway, segments=segments, voice=voice, speed=1.25)
    given = {"settings": json.dumps({"segments": segments, "speed": 1.25}), "voice": voice, **KNOBS}
    samples, _ = heard(server, given)
    assert is_same_audio(samples, wanted)
    slow, _ = heard(server, {"text": "Good morning.", "settings": '{"speed": 0.5}', "voice": voice, **KNOBS})
    usual, _ = heard(server, {"text": "Good morning.", "voice": voice, **KNOBS})
    assert len(slow) == 2 * len(usual)


def test_an_unknown_language_of_markup_is_a_warning(server: TritonServer, gateway: str, voice: str) -> None:
    text = "<speak>One. <lang xml:lang='tlh'>Two.</lang> <lang xml:lang='de-AT'>Three.</lang></speak>"
    wanted = of_gateway(gateway, input=text, voice=voice, language="English")
    samples, info = heard(server, {"text": text, "voice": voice, "language": "English", **KNOBS})
    assert is_same_audio(samples, wanted)
    assert len(info["warnings"]) == 1 and "xml:lang" in info["warnings"][0]


def test_numbers_pauses_and_pronunciations(server: TritonServer, voice: str) -> None:
    settings = {
        "normalize": "on",
        "inline_pauses": True,
        "pronunciations": [{"string_to_replace": "SQL", "alias": "sequel"}],
    }
    text = "SQL costs $5.[pause:200ms] Good."
    given = {"text": text, "settings": json.dumps(settings), "language": "English", "voice": voice, **KNOBS}
    [(audio, plan, _)] = answers(server, {**given, "plan_only": np.array([True])})
    assert not len(audio)
    assert [item.get("text", item.get("seconds")) for item in plan["items"]] == [
        "sequel costs five dollars.",
        0.2,
        " Good.",
    ]
    samples, _ = heard(server, given)
    with Client(server.url) as client:
        one, two = (
            client.speak(words, voice=voice, language="English", seed=7, max_frames=30).read()[0]
            for words in ("sequel costs five dollars.", " Good.")
        )
    assert len(samples) <= len(one) + RATE // 5 + len(two)
    assert is_same_audio(samples[:480], one[:480])


def test_the_plan_is_that_of_the_gateway(server: TritonServer, gateway: str) -> None:
    body = {"input": SSML, "language": "English"}
    shown = httpx2.post(f"{gateway}/v1/audio/text", json=body, timeout=WAIT).json()
    [(_, plan, _)] = answers(server, {"text": SSML, "language": "English", "plan_only": np.array([True])})
    assert plan == shown


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"text": "<speak>Good <b>morning</speak>"}, "invalid_argument: text is no SSML: line 1"),
        ({"text": "<speak><break/></speak>"}, "invalid_argument: text has nothing to speak"),
        ({"text": "  "}, "invalid_argument: text"),
        ({"text": None}, "invalid_argument: give text or, in settings, segments"),
        ({"input_type": "html"}, "invalid_argument: input_type must be auto, text or ssml"),
        ({"settings": "[]"}, "invalid_argument: settings"),
        ({"settings": '{"pitch": 1}'}, "segments, inline_pauses, speed, pronunciations, normalize"),
        ({"settings": '{"speed": true}'}, "speed of the object must be a JSON float"),
        ({"settings": '{"speed": 9}'}, "speed and the rates of the text are 9 together; 0.25 to 4"),
        ({"text": "<speak><prosody rate='3'>A</prosody></speak>", "settings": '{"speed": 2}'}, "are 6 together"),
        ({"settings": '{"normalize": "yes"}'}, "off, on, numbers"),
        ({"settings": '{"inline_pauses": 1}'}, "inline_pauses of the object must be"),
        ({"settings": '{"pronunciations": [{"string_to_replace": " ", "alias": ""}]}'}, "1 to 200 characters"),
        ({"text": None, "settings": '{"segments": [{"text": "A", "pause_ms": -1}]}'}, "from 0 to 10000"),
        (
            {"text": None, "settings": json.dumps({"segments": [{"pause_ms": 10_000}] * 31 + [{"text": "A"}]})},
            "more than 300 s of silence",
        ),
        ({"text": None, "settings": json.dumps({"segments": [{}] * 1001})}, "at most 1000"),
        ({"voice": "somebody"}, "speaker_not_found"),
        ({"text": "<speak>One.<voice name='somebody'>Two.</voice></speak>"}, "speaker_not_found"),
        ({"model": MODEL}, "must be a family of this server"),
        ({"text": "word " * 20_001}, "more than 100000 characters"),
    ],
)
def test_errors(server: TritonServer, voice: str, given: dict[str, Any], text: str) -> None:
    asked = {"text": "Good morning.", "voice": voice, **KNOBS, **given}
    with pytest.raises(tritonclient.grpc.InferenceServerException) as refused:
        answers(server, {name: value for name, value in asked.items() if value is not None})
    message = refused.value.message()
    assert text in message.replace("`", ""), message
    assert str(ROOT) not in message


def test_owners_and_deadlines(server: TritonServer, client: Client, reference_clip: bytes) -> None:
    tenant = client.acting_for("alice")
    tenant.upload("Of Alice", reference_clip, wait=True)
    given = {"text": "Good morning.", "voice": "Of Alice", **KNOBS}
    assert len(answers(server, given, parameters={"owner": "alice"})) > 0
    for parameters, text in (({"owner": "bob"}, "speaker_not_found"), ({"deadline_ms": 1}, "deadline_exceeded")):
        with pytest.raises(tritonclient.grpc.InferenceServerException, match=text):
            answers(server, {**given, "text": "word " * 40}, parameters={"owner": "alice", **parameters})
    tenant.delete("Of Alice")


def test_many_at_once(server: TritonServer, voice: str) -> None:
    text = "<speak>Good morning.<break time='100ms'/>Is it?</speak>"
    alone, _ = heard(server, {"text": text, "voice": voice, **KNOBS})
    with ThreadPoolExecutor(6) as pool:
        for samples, _ in pool.map(lambda _: heard(server, {"text": text, "voice": voice, **KNOBS}), range(12)):
            assert is_same_audio(samples, alone)


def test_a_client_that_leaves(limited: TritonServer) -> None:
    before, frames = cancelled(limited), metric(limited, "talker_frames_total")
    text = "<speak>" + "word " * 50 + "<break/>" + "word " * 50 + "</speak>"
    heard_any, client = threading.Event(), tritonclient.grpc.InferenceServerClient(limited.url)
    client.start_stream(lambda result, error: heard_any.set())
    client.async_stream_infer(MODEL, inputs(tritonclient.grpc, asked(text)))
    assert heard_any.wait(WAIT)
    client.stop_stream(cancel_requests=True)
    client.close()
    until(lambda: cancelled(limited) > before)
    until(lambda: metric(limited, "talker_live_streams") == 0)
    assert metric(limited, "talker_frames_total") - frames < 2000
