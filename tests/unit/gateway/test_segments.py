"""Several voices, pauses and SSML in one request, and what is shown of them."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import av
import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_sound.edges import QuietEdges
from voice_clone_text.normalizers import normalizer_of

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import RATE, Server, chunk, samples_of, speech

SPEECH, TEXT = "/v1/audio/speech", "/v1/audio/text"
ONE = np.concatenate([samples_of(index, 1920) for index in range(3)])  # what the double says to any text
PCM = np.round(ONE * 32767).astype(np.int16)
Samples = NDArray[np.int16]


def pcm(http: httpx2.Client, **values: Any) -> tuple[Samples, httpx2.Response]:
    answer = http.post(SPEECH, json={"voice": "ada", "response_format": "pcm", **values})
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, np.int16), answer


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.int16)


def asked(triton: Server) -> list[tuple[str, str]]:
    """Who said what, in the order of the calls."""
    return [(inputs["voice"].decode(), inputs["text"].decode()) for _, inputs in triton.speeches]


SEGMENTS: list[dict[str, Any]] = [
    {"voice": "ada", "text": "Good morning.", "pause_ms": 500},
    {"text": "Is it?"},
    {"voice": {"id": "bob"}, "text": "Yes.", "pause_ms": 250},
]


def test_segments_are_one_speech(shared: Shared) -> None:
    triton, http = shared
    alone, _ = pcm(http, input="Good morning.")
    triton.calls.clear()
    audio, answer = pcm(http, voice="eve", segments=SEGMENTS)
    assert np.array_equal(audio, np.concatenate([alone, silence(0.5), alone, alone, silence(0.25)]))
    assert asked(triton) == [("ada", "Good morning."), ("eve", "Is it?"), ("bob", "Yes.")]
    status = http.get(f"{SPEECH}/{answer.headers['X-Request-ID']}").json()
    assert [(each["index"], each["start"], each["end"]) for each in status["segments"]] == [
        (0, 0.0, 0.24),
        (1, 0.74, 0.98),
        (2, 0.98, 1.22),
    ]


@pytest.mark.parametrize("form", ["wav", "mp3", "flac", "opus"])
def test_whole_files(shared: Shared, form: str) -> None:
    _, http = shared
    body = {"voice": "ada", "response_format": form, "segments": SEGMENTS, "stream": False}
    answer = http.post(SPEECH, json=body)
    info = json.loads(answer.headers["X-Speech-Info"])
    assert [each["start"] for each in info["segments"]] == [0.0, 0.74, 0.98] and info["frames"] == 9
    with av.open(io.BytesIO(answer.content)) as opened:
        seconds = sum(frame.samples / frame.sample_rate for frame in opened.decode(audio=0))  # type: ignore[attr-defined]
    assert seconds == pytest.approx(1.47, abs=0.08)


def test_events_say_where_segments_begin(shared: Shared) -> None:
    _, http = shared
    body = {"voice": "ada", "segments": SEGMENTS, "stream_format": "sse", "response_format": "pcm"}
    events = [json.loads(line[6:]) for line in http.post(SPEECH, json=body).text.splitlines() if line[:6] == "data: "]
    assert [each["start"] for each in events[-1]["info"]["segments"]] == [0.0, 0.74, 0.98]


def test_the_next_segment_is_asked_for_before_the_one_before_ends(triton: Server, serve: Serve) -> None:
    http, second = serve(triton.url), threading.Event()

    def play(context: Any) -> Iterator[Any]:
        if len(triton.speeches) == 2:
            second.set()
        first, *rest = speech(3)
        yield first
        assert second.wait(20)  # the first one goes on when the second was asked for
        yield from rest

    triton.play = play
    assert len(pcm(http, segments=SEGMENTS[:2])[0]) == 2 * len(PCM) + RATE // 2


def test_an_error_of_a_later_segment_breaks_the_speech_off(shared: Shared) -> None:
    triton, http = shared
    triton.play = lambda context: iter(speech(3) if len(triton.speeches) == 1 else [chunk(5)])
    with pytest.raises(httpx2.RemoteProtocolError):
        pcm(http, segments=SEGMENTS)


def test_ssml(shared: Shared) -> None:
    triton, http = shared
    body = "<mark name='a'/>One <break time='300ms'/> two <emphasis>and</emphasis> <voice name='bob'>three</voice>."
    audio, answer = pcm(http, input=f"<speak>{body}</speak>")
    assert np.array_equal(audio, np.concatenate([PCM, silence(0.3), PCM, PCM]))
    assert asked(triton) == [("ada", "One"), ("ada", "two and"), ("bob", "three")]
    assert "emphasis" in answer.headers["X-Speech-Warning"]
    info = json.loads(answer.headers["X-Speech-Info"])
    assert info["marks"] == [{"name": "a", "segment": 0, "character": 0}]


def test_gain_and_rate(shared: Shared) -> None:
    _, http = shared
    audio, _ = pcm(http, input="<speak>A <prosody volume='soft'>B</prosody> <prosody rate='2'>C</prosody></speak>")
    assert np.abs(audio[len(PCM) : 2 * len(PCM)] - PCM / 2).max() <= 1
    assert len(audio) == 2 * len(PCM) + len(PCM) // 2
    fast, _ = pcm(http, input="<speak>A</speak>", speed=2)
    usual, _ = pcm(http, input="A", speed=2)
    assert np.array_equal(fast, usual)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"input": "<speak>Hi.</speak>", "input_type": "text"}, "<speak>Hi.</speak>"),
        ({"input": "<speaker> 1 < 2 & 3  ok\n"}, "<speaker> 1 < 2 & 3  ok\n"),
        ({"input": "Wait [pause:1s] here"}, "Wait [pause:1s] here"),
    ],
)
def test_what_asks_for_nothing_is_spoken_as_it_is(shared: Shared, values: dict[str, Any], text: str) -> None:
    triton, http = shared
    audio, answer = pcm(http, **values)
    assert np.array_equal(audio, PCM) and asked(triton) == [("ada", text)]
    assert "segments" not in json.loads(answer.headers["X-Speech-Info"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/text-to-speech/ada?output_format=pcm_24000", {"text": "Wait <break time='1s' /> here"}),
        (
            "/v1/text-to-dialogue?output_format=pcm_24000",
            {"inputs": [{"voice_id": "ada", "text": "Wait <break time='1s' /> here"}]},
        ),
        (
            "/tts/bytes",
            {
                "transcript": "Wait <break time='1s' /> here",
                "voice": {"mode": "id", "id": "ada"},
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
            },
        ),
    ],
)
def test_pauses_in_texts_of_vendors_clients(shared: Shared, path: str, body: dict[str, Any]) -> None:
    triton, http = shared
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(np.frombuffer(answer.content, np.int16), np.concatenate([PCM, silence(1), PCM]))
    assert [text.strip() for _, text in asked(triton)] == ["Wait", "here"]


def test_pronunciations_and_numbers(shared: Shared) -> None:
    triton, http = shared
    rules = [{"string_to_replace": "SQL", "alias": "sequel"}, {"string_to_replace": "5", "alias": "V"}]
    pcm(http, input="SQL has 5 or 6 parts.", pronunciations=rules, normalize="on", language="English")
    pcm(http, input="SQL has 6 parts.", normalize="on", language="fr")
    assert [text for _, text in asked(triton)] == ["sequel has V or six parts.", "SQL has six parts."]
    plan = http.post(TEXT, json={"input": "5 or 1:2", "normalize": "on"}).json()
    assert plan["items"][0]["text"] == "5 or 1:2" and "language" in plan["warnings"][0]
    answer = http.post(
        SPEECH, json={"input": "A", "voice": "ada", "pronunciations": [{"string_to_replace": " ", "alias": ""}]}
    )
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "pronunciations"


def test_numbers_without_their_libraries(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    _, http = shared
    monkeypatch.setitem(sys.modules, "damga", None)
    normalizer_of.cache_clear()
    answer = http.post(SPEECH, json={"input": "5", "voice": "ada", "normalize": "on", "language": "en"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "unsupported")
    normalizer_of.cache_clear()


def test_inline_pauses(shared: Shared) -> None:
    triton, http = shared
    audio, _ = pcm(http, input="Wait [pause:1s] here", inline_pauses=True)
    assert np.array_equal(audio, np.concatenate([PCM, silence(1), PCM]))
    assert [text.strip() for _, text in asked(triton)] == ["Wait", "here"]


@pytest.mark.parametrize(
    ("values", "param", "word"),
    [
        ({"input": "<speak>a & b</speak>"}, "input", "column 11"),
        ({"input": "words", "input_type": "ssml"}, "input", "<speak>"),
        ({"input": "words", "segments": SEGMENTS}, None, "not both"),
        ({"segments": []}, "segments", "1"),
        ({"segments": [{"text": ""}]}, "segments.0.text", "1"),
        ({"segments": [{"text": "<speak>"}]}, "segments.0.text", "SSML"),
        ({"segments": [{"text": "A", "pause_ms": 10_001}]}, "segments.0.pause_ms", "10000"),
        ({"segments": [{"text": "A", "volume": 1}]}, "segments.0.volume", "volume"),
        ({"input": "<speak>...</speak>"}, "input", "nothing to speak"),
        ({"input": "<speak><prosody rate='3'>A</prosody></speak>", "speed": 2}, "speed", "0.25 to 4"),
        ({}, "input", ""),
    ],
)
def test_what_is_refused(shared: Shared, values: dict[str, Any], param: str | None, word: str) -> None:
    triton, http = shared
    answer = http.post(SPEECH, json={"voice": "ada", **values})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and word in error["message"], error
    assert triton.speeches == []


def test_a_strict_gateway_refuses_what_has_no_effect(triton: Server, serve: Serve) -> None:
    answer = serve(triton.url, strict=True).post(
        SPEECH, json={"voice": "ada", "input": "<speak><emphasis>A</emphasis></speak>"}
    )
    assert answer.status_code == 400 and "emphasis" in answer.json()["error"]["message"]


def test_batches_have_segments(shared: Shared) -> None:
    triton, http = shared
    body = {"voice": "ada", "response_format": "wav", "items": [{"segments": SEGMENTS}, {"input": "<speak>A</speak>"}]}
    answer = http.post(f"{SPEECH}/batch", json=body).json()
    assert (answer["succeeded"], len(answer["results"][0]["info"]["segments"])) == (2, 3)
    assert ("ada", "A") in asked(triton)


def test_the_plan_is_shown(shared: Shared) -> None:
    triton, http = shared
    text = "<speak>A <sub alias='B C'>BC</sub><break/><mark name='m'/><voice name='bob'>D</voice><blink/></speak>"
    plan = http.post(TEXT, json={"input": text}).json()
    assert triton.speeches == [] and len(plan["warnings"]) == 1
    speak, pause, last = plan["items"]
    assert (speak["text"], pause["seconds"], last["voice"], last["rate"]) == ("A B C", 0.5, "bob", 1.0)
    assert [text[slice(*each["written"])] for each in speak["replaced"]] == ["<sub alias='B C'>"]
    assert plan["marks"] == [{"name": "m", "item": 2, "character": 0}]
    turns = http.post(TEXT, json={"segments": SEGMENTS}).json()["items"]
    assert [each["segment"] for each in turns] == [0, 0, 1, 2, 2]
    assert http.post(TEXT, json={"input": "<speak>"}).json()["error"]["code"] == "invalid_ssml"
    for body in (
        {"input": "a" * 100_001},
        {"input": " "},
        {"input": "a", "sample_rate": 8000, "response_format": "opus2"},
    ):
        assert http.post(TEXT, json=body).status_code == 400


def test_quiet_edges_are_cut_alike_in_any_chunks() -> None:
    draw = np.random.default_rng(1)
    quiet, loud = (lambda count: draw.uniform(-1, 1, count).astype(np.float32) for _ in range(2))
    signal = np.concatenate([quiet(3000) * 1e-3, loud(2000), quiet(4000) * 1e-3, loud(10), quiet(2500) * 1e-3])
    for begin, end, count in ((True, True, 2000 + 4000 + 10 + 2 * 1200), (True, False, len(signal) - 1800)):
        whole = QuietEdges(RATE, begin, end).push(signal, final=True)
        assert len(whole) == count and np.array_equal(whole[1200:7000], signal[3000:8800])
        for size in (1, 700, 1920):
            edges, parts = QuietEdges(RATE, begin, end), []
            for at in range(0, len(signal), size):
                parts.append(edges.push(signal[at : at + size], final=False))
            assert np.array_equal(np.concatenate([*parts, edges.push(signal[:0], final=True)]), whole)
    for untouched in (signal[2000:10_000], loud(100), quiet(1000) * 1e-3):
        assert np.array_equal(QuietEdges(RATE, True, True).push(untouched, final=True), untouched)


def test_a_script_is_a_dialogue(shared: Shared) -> None:
    triton, http = shared
    triton.calls.clear()
    pcm(http, input="ada: Good morning.\nbob: Is it?\nI wonder.\n\nada: Yes.", input_type="script")
    assert asked(triton) == [("ada", "Good morning."), ("bob", "Is it? I wonder."), ("ada", "Yes.")]
    shown = http.post(TEXT, json={"input": "ada: Good.\nbob: <speak>", "input_type": "script"}).json()
    assert [(item["voice"], item["text"], item["segment"]) for item in shown["items"]] == [
        ("ada", "Good.", 0),
        ("bob", "<speak>", 1),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Good morning.", "a name and a colon"),
        ("ada:", "Ada: Good morning."),
        ("a: b\n" * 1001, "at most 1000 turns"),
    ],
)
def test_scripts_that_are_none(shared: Shared, text: str, words: str) -> None:
    _, http = shared
    for path in (SPEECH, TEXT):
        answer = http.post(path, json={"voice": "ada", "input": text, "input_type": "script"})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
