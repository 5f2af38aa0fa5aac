"""When the words of a speech are spoken: in events, and by ElevenLabs' client; with an aligner, a late one and none."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from elevenlabs.client import ElevenLabs
from voice_clone_gateway.vendors.elevenlabs.alignment import CharacterTimes
from voice_clone_words.words import Word

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import FAMILY, RATE, AlignerDouble, Server, chunk, speech, without_aligner

SPEECH = "/v1/audio/speech"
TEXT = "One, two three. “Four” five six."
WORDS = ["One,", "two", "three.", "“Four”", "five", "six."]
STEP = 480  # samples of a word
SECONDS = STEP / RATE
TIMED: dict[str, Any] = {"voice": "ada", "response_format": "pcm", "stream_format": "sse"}


def events(http: httpx2.Client, **values: Any) -> Iterator[dict[str, Any]]:
    body = {**TIMED, "timestamp_granularities": ["word"], **values}
    with http.stream("POST", SPEECH, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for text in answer.iter_lines():
            if text.startswith("data: "):
                yield json.loads(text.removeprefix("data: "))


def words_of(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [word for event in told for word in event["words"]]


def audio_of(told: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(event["audio"]) for event in told if "audio" in event)


def until(enough: threading.Event) -> Any:
    """A speech that goes on until the client has heard enough."""

    def play(context: Any) -> Iterator[Any]:
        for index in itertools.count():
            final = enough.is_set()
            yield chunk(index, final=final)
            if final:
                return
            time.sleep(0.01)

    return play


def test_words_come_with_the_events(shared: Shared) -> None:
    triton, http = shared
    triton.align, enough = AlignerDouble(STEP), threading.Event()
    triton.play = until(enough)
    told = list[dict[str, Any]]()
    for event in events(http, input="One, two three four five six."):
        told.append(event)
        if len(words_of(told)) >= 3:
            enough.set()
    assert told[-1]["type"] == "speech.audio.done"
    assert len(words_of(told[:-1])) >= 3, "they did not wait for the end"
    assert [(word["word"], word["estimated"]) for word in words_of(told)] == [
        (word, False) for word in ("One,", "two", "three", "four", "five", "six.")
    ]
    for at, word in enumerate(words_of(told)):
        assert (word["start"], word["end"]) == (pytest.approx(at * SECONDS), pytest.approx((at + 1) * SECONDS))


def test_sentences_count_on(shared: Shared) -> None:
    triton, http = shared
    triton.align = AlignerDouble(STEP)
    told = [*events(http, input=TEXT)]
    assert [word["word"] for word in words_of(told)] == WORDS
    assert all(TEXT[slice(*word["span"])] == word["word"] for word in words_of(told))
    assert words_of(told)[0]["start"] == 0


def test_audio_waits_for_no_word(shared: Shared) -> None:
    triton, http = shared
    go_on, aligner = threading.Event(), AlignerDouble(STEP)

    def late(inputs: dict[str, Any]) -> Any:
        assert go_on.wait(60)
        return aligner(inputs)

    triton.align = late
    told = list[dict[str, Any]]()
    for event in events(http, input="One two three."):
        told.append(event)
        if len(audio_of(told)) == 3 * 1920 * 2:
            go_on.set()
    assert words_of(told[:-1]) == [], "all audio was there before the aligner answered"
    assert [word["word"] for word in words_of(told)] == ["One", "two", "three."]


@pytest.mark.parametrize("room", [True, False])
def test_audio_that_waits_for_an_aligner_is_in_the_account(triton: Server, serve: Serve, room: bool) -> None:
    go_on, aligner, chunks = threading.Event(), AlignerDouble(STEP), 100

    def hung(inputs: dict[str, Any]) -> Any:
        assert go_on.wait(60)
        return aligner(inputs)

    triton.align, triton.play = hung, lambda context: iter(speech(chunks))
    http, told = serve(triton.url, **({} if room else {"memory_bytes": chunks * 1920 * 2})), list[dict[str, Any]]()
    for event in events(http, input="One two three."):
        told.append(event)
        if len(audio_of(told)) == chunks * 1920 * 2:
            go_on.set()
    assert told[-1]["type"] == "speech.audio.done" and [word["word"] for word in words_of(told)] == [
        "One",
        "two",
        "three.",
    ]
    assert [word["estimated"] for word in words_of(told)] == [not room] * 3, "half of it had no room"


def test_without_an_aligner_words_are_an_estimate(shared: Shared) -> None:
    _, http = shared
    plain = [*events(http, input=TEXT, timestamp_granularities=None)]
    told = [*events(http, input=TEXT)]
    assert audio_of(told) == audio_of(plain) and not any("words" in event for event in plain)
    assert [word["word"] for word in words_of(told)] == WORDS
    assert all(word["estimated"] and word["start"] <= word["end"] for word in words_of(told))
    assert words_of(told)[-1]["end"] <= len(audio_of(told)) / 2 / RATE


def test_an_aligner_that_fails_fails_no_speech(shared: Shared) -> None:
    triton, http = shared

    def broken(inputs: dict[str, Any]) -> Any:
        raise OSError("it is broken")

    triton.align = broken
    told = [*events(http, input=TEXT)]
    assert told[-1]["type"] == "speech.audio.done" and [word["word"] for word in words_of(told)] == WORDS


def test_times_are_those_of_the_audio_that_is_sent(shared: Shared) -> None:
    triton, http = shared
    triton.align = AlignerDouble(STEP)
    for speed, rate in ((2.0, RATE), (0.5, 8000)):
        told = words_of([*events(http, input="One two three.", speed=speed, sample_rate=rate)])
        assert [word["start"] for word in told] == pytest.approx([at * SECONDS / speed for at in range(3)], abs=1e-4)


def test_words_are_the_callers(shared: Shared) -> None:
    triton, http = shared
    triton.align = AlignerDouble(STEP)
    text = "The NASA [pause:500ms] ends."
    rules = [{"string_to_replace": "NASA", "alias": "space people"}]
    told = words_of([*events(http, input=text, inline_pauses=True, pronunciations=rules)])
    assert [inputs["text"].strip() for _, inputs in triton.speeches] == [b"The space people", b"ends."]
    assert [word["word"] for word in told] == ["The", "NASA", "ends."]
    assert [word["end"] - word["start"] for word in told] == pytest.approx([SECONDS, 2 * SECONDS, SECONDS])
    assert all(text[slice(*word["span"])] == word["word"] for word in told)
    assert told[-1]["start"] == pytest.approx(3 * 1920 / RATE), "where the audio of its part begins, which is silent"
    triton.align = without_aligner
    guessed = words_of([*events(http, input=text, inline_pauses=True, pronunciations=rules)])
    assert [(word["word"], word["span"]) for word in guessed] == [(word["word"], word["span"]) for word in told]
    assert guessed[-1]["start"] > 0.5, "behind the pause"


def test_words_of_several_voices(shared: Shared) -> None:
    triton, http = shared
    triton.align = AlignerDouble(STEP)
    turns: list[dict[str, Any]] = [{"text": "Is it?", "speed": 2.0}, {"voice": "bob", "text": "Yes, it is."}]
    told = words_of([*events(http, segments=turns)])
    joined = "Is it? Yes, it is."
    assert [word["word"] for word in told] == joined.split()
    assert all(joined[slice(*word["span"])] == word["word"] for word in told)
    assert told[2]["start"] == pytest.approx(1.5 * 1920 / RATE), "where the second voice begins"


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"stream_format": "audio"}, "timestamp_granularities", "stream_format to sse"),
        ({"stream_format": None}, "timestamp_granularities", "stream_format to sse"),
        ({"stream_format": None, "stream": False}, "timestamp_granularities", "stream_format to sse"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities.0", "'word'"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities", "list"),
        ({"word_timestamps": True}, "word_timestamps", "timestamp_granularities"),
    ],
)
def test_what_is_refused(shared: Shared, values: dict[str, Any], param: str, words: str) -> None:
    triton, http = shared
    body = {**TIMED, "input": TEXT, "timestamp_granularities": ["word"], **values}
    answer = http.post(SPEECH, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"]
    assert triton.speeches == []


class TestElevenLabs:
    """Its official client."""

    @pytest.fixture
    def client(self, shared: Shared) -> Iterator[ElevenLabs]:
        with httpx.Client(trust_env=False) as http:
            yield ElevenLabs(base_url=str(shared[1].base_url).rstrip("/"), api_key="any", httpx_client=http)

    def check(self, text: str, alignment: Any, seconds: float) -> None:
        starts, ends = alignment.character_start_times_seconds, alignment.character_end_times_seconds
        assert "".join(alignment.characters) == text
        assert len(text) == len(starts) == len(ends) and starts[1:] == ends[:-1]
        assert starts == sorted(starts) and ends == sorted(ends) and starts[0] >= 0 and ends[-1] <= seconds

    @pytest.mark.parametrize("aligned", [True, False])
    def test_whole(self, client: ElevenLabs, shared: Shared, aligned: bool) -> None:
        if aligned:
            shared[0].align = AlignerDouble(STEP)
        said = client.text_to_speech.convert_with_timestamps("ada", text=TEXT, output_format="pcm_24000")
        self.check(TEXT, said.alignment, len(base64.b64decode(said.audio_base_64)) / 2 / RATE)
        assert said.normalized_alignment == said.alignment and said.alignment is not None
        if aligned:
            starts = said.alignment.character_start_times_seconds
            assert starts[:4] == pytest.approx([at * SECONDS / 4 for at in range(4)], abs=1e-3)

    def test_stream(self, client: ElevenLabs, shared: Shared) -> None:
        shared[0].align = AlignerDouble(STEP)
        calls = client.text_to_speech
        lines = [*calls.stream_with_timestamps("ada", text=TEXT, output_format="pcm_24000")]
        whole = calls.convert_with_timestamps("ada", text=TEXT, output_format="pcm_24000")
        assert b"".join(base64.b64decode(each.audio_base_64) for each in lines) == base64.b64decode(whole.audio_base_64)
        parts = [each.alignment for each in lines if each.alignment is not None]
        names = ("characters", "character_start_times_seconds", "character_end_times_seconds")
        for name in names:
            assert [one for part in parts for one in getattr(part, name)] == getattr(whole.alignment, name)

    def test_dialogue(self, client: ElevenLabs, shared: Shared) -> None:
        shared[0].align = AlignerDouble(STEP)
        inputs: Any = [{"text": "Is it?", "voice_id": "ada"}, {"text": "Yes, it is.", "voice_id": "bob"}]
        said = client.text_to_dialogue.convert_with_timestamps(inputs=inputs, output_format="pcm_24000")
        self.check("Is it? Yes, it is.", said.alignment, 2 * 3 * 1920 / RATE)
        assert said.alignment is not None
        for turn, found in zip(inputs, said.voice_segments, strict=True):
            characters = slice(found.character_start_index, found.character_end_index)
            assert "".join(said.alignment.characters[characters]) == turn["text"]
            starts = said.alignment.character_start_times_seconds[characters]
            assert starts[0] == pytest.approx(found.start_time_seconds, abs=1e-3)


def test_captioned_speech_as_kokoro_has_it(shared: Shared) -> None:
    triton, http = shared
    triton.align = AlignerDouble(STEP)
    plain = http.post(SPEECH, json={"voice": "ada", "response_format": "pcm", "input": TEXT}).content
    body: dict[str, Any] = {"model": FAMILY, "voice": "ada", "response_format": "pcm", "input": TEXT}
    for more, count in (({}, None), ({"stream": True}, None), ({"stream": False, "return_timestamps": True}, 1)):
        answer = http.post("/dev/captioned_speech", json=body | more)
        assert answer.headers["content-type"] == "application/json", answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert len(lines) == count if count else len(lines) > 1
        assert b"".join(base64.b64decode(line["audio"]) for line in lines) == plain
        assert {line["audio_format"] for line in lines} == {"audio/pcm;rate=24000"}
        told = [word for line in lines for word in line["timestamps"]]
        assert [word["word"] for word in told] == WORDS
        assert told[1] == {"word": "two", "start_time": pytest.approx(SECONDS), "end_time": pytest.approx(2 * SECONDS)}
    untold = http.post("/dev/captioned_speech", json=body | {"return_timestamps": False, "stream": False}).json()
    assert untold["timestamps"] == [] and base64.b64decode(untold["audio"]) == plain
    refused = http.post("/dev/captioned_speech", json=body | {"return_timestamps": "no"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_timestamps")


def test_characters_have_the_time_of_their_words() -> None:
    text = "Ab <break/> cd世界 "
    times = CharacterTimes(text)
    first = times.take([Word("Ab", 0.2, 0.4, (0, 2))])
    assert (first.characters, first.starts, first.ends) == (["A", "b"], [0.2, 0.3], [0.3, 0.4])
    assert times.take([]).characters == []
    words = [Word("cd", 1.4, 1.6, (12, 14)), Word("世", 1.7, 1.8, (14, 15)), Word("界", 1.8, 1.9, (15, 16))]
    rest = times.take(words, last=True)
    assert "".join(rest.characters) == text[2:] and rest.starts[0] == 0.4 and rest.starts[1:] == rest.ends[:-1]
    assert rest.starts[10] == pytest.approx(1.4) and rest.ends[9] == pytest.approx(1.4), "a tag lasts to the next word"
    assert rest.starts[12:14] == [1.6, 1.8], "no hole between two that nothing parts"
    assert rest.ends[-2:] == [1.9, 1.9]


def test_characters_of_times_that_go_back() -> None:
    times = CharacterTimes("ab cd")
    found = [times.take([word]) for word in (Word("ab", 0.0, 1.0, (0, 2)), Word("cd", 0.5, 0.8, (3, 5)))]
    assert found[1].starts == [1.0, 1.0, 1.0] == found[1].ends, "an estimate that came later is not before"


def test_no_request_of_words_asks_no_aligner(shared: Shared) -> None:
    triton, http = shared
    asked: list[Any] = []
    triton.align = asked.append
    assert http.post(SPEECH, json={"voice": "ada", "input": TEXT}).status_code == 200
    assert [*events(http, input=TEXT, timestamp_granularities=[])][-1]["type"] == "speech.audio.done"
    assert asked == []
