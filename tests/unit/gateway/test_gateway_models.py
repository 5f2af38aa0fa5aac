"""The model families of the server: their list, its refresh and its cost, aliases, and several sample rates."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
import soundfile
from voice_clone_client import ConnectionFailed, Family, Unsupported, VoiceCloneError, pcm16
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.families import REFRESH_SECONDS, RETRY_SECONDS, Families
from voice_clone_gateway.http.errors import HTTPFailure

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.triton_double import FAMILY, Failure, Server, chunk, speech
from tests.support.doubles.triton_double import samples_of as chunk_samples
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, pcm_of, run

RATES = {FAMILY: 24000, "made_up": 44100}
SPEECH = {"input": "Hello there.", "voice": "ada"}


class Lister:
    """A server's list of families, and its clock."""

    def __init__(self, *families: str) -> None:
        self.listed = list(families)
        self.error: Exception | None = None
        self.calls = 0
        self.now = 100.0
        self.gate: asyncio.Event | None = None

    async def families(self) -> dict[str, Family]:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return dict.fromkeys(self.listed, Family())

    def clock(self) -> float:
        return self.now


def check(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 10)

    asyncio.run(bounded())


async def refused(families: Families, name: str) -> str:
    """The message of the refusal."""
    with pytest.raises(HTTPFailure) as failure:
        await families.choose(name)
    assert failure.value.status_code == 404
    error = failure.value.body()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    return str(error["message"])


def test_the_list_is_asked_for_once_and_kept() -> None:
    async def test() -> None:
        lister = Lister("a", "b")
        families = Families(lister, clock=lister.clock)
        assert lister.calls == 0
        assert set(await asyncio.gather(*(families.choose(None) for _ in range(20)))) == {"a"}
        assert [await families.choose(name) for name in ("a", "b", None)] == ["a", "b", "a"]
        assert await families.names() == {"a": "a", "b": "b"}
        assert lister.calls == 1

    check(test)


def test_unknown_models_do_not_cause_a_call_each() -> None:
    async def test() -> None:
        lister = Lister("a")
        families = Families(lister, clock=lister.clock)
        for index in range(50):
            assert f"no model 'x{index}'; this gateway has a;" in await refused(families, f"x{index}")
        await asyncio.gather(*(refused(families, "y") for _ in range(50)))
        assert lister.calls == 1
        lister.now += REFRESH_SECONDS
        lister.listed.append("y")
        assert await families.choose("y") == "y", "a new family is found"
        await asyncio.gather(*(refused(families, "z") for _ in range(50)))
        assert lister.calls == 2

    check(test)


def test_an_old_list_is_refreshed_without_delaying_a_speech() -> None:
    async def test() -> None:
        lister = Lister("a")
        families = Families(lister, clock=lister.clock)
        await families.choose(None)
        lister.now += REFRESH_SECONDS
        lister.listed, lister.gate = ["b"], asyncio.Event()
        assert [await families.choose(None) for _ in range(5)] == ["a"] * 5
        await asyncio.sleep(0.01)
        assert lister.calls == 2
        lister.gate.set()
        assert await families.names() == {"b": "b"}
        assert await families.choose(None) == "b" and lister.calls == 2

    check(test)


def test_a_server_that_is_away_is_not_asked_by_each_request() -> None:
    async def test() -> None:
        lister = Lister("a")
        lister.error = ConnectionFailed("away")
        families = Families(lister, clock=lister.clock)
        for name in (None, "a", "x"):
            with pytest.raises(ConnectionFailed):
                await families.choose(name)
        with pytest.raises(ConnectionFailed):
            await families.names()
        assert lister.calls == 1
        lister.error = None
        lister.now += RETRY_SECONDS
        assert await families.choose(None) == "a" and lister.calls == 2
        lister.error = ConnectionFailed("away")
        lister.now += REFRESH_SECONDS
        assert await families.names() == {"a": "a"}, "the list is kept"
        assert "has a" in await refused(families, "x")

    check(test)


def test_a_configured_default_needs_no_list() -> None:
    async def test() -> None:
        lister = Lister("a", "b")
        families = Families(lister, "b", ["tts-1", "tts-a=a"], clock=lister.clock)
        assert [await families.choose(name) for name in (None, "b", "tts-1")] == ["b"] * 3
        assert lister.calls == 0
        assert [await families.choose(name) for name in ("a", "tts-a")] == ["a", "a"]
        assert list(await families.names()) == ["b", "a", "tts-1", "tts-a"]

    check(test)


def test_a_configured_default_without_a_server() -> None:
    async def test() -> None:
        lister = Lister()
        lister.error = ConnectionFailed("away")
        families = Families(lister, "b", ["tts-1"], clock=lister.clock)
        assert await families.names() == {"b": "b", "tts-1": "b"}
        assert await families.choose(None) == "b"
        with pytest.raises(ConnectionFailed):
            await families.choose("a")

    check(test)


def test_aliases() -> None:
    async def test() -> None:
        lister = Lister("a", "b")
        aliases = ["one", "two=b", "gone=c", "b=a"]
        families = Families(lister, aliases=aliases, clock=lister.clock)
        assert await families.names() == {"a": "a", "b": "b", "one": "a", "two": "b"}, "no family hides behind an alias"
        assert [await families.choose(name) for name in ("one", "two", "b")] == ["a", "b", "b"]
        assert "has a, b, one, two" in await refused(families, "gone")

    check(test)


@pytest.mark.parametrize("alias", ["", "=a", "a=", "a=b=c", " = "])
def test_wrong_aliases(alias: str) -> None:
    with pytest.raises(ValueError, match="ALIAS=FAMILY"):
        Families(Lister(), aliases=[alias])
    with pytest.raises(ValueError, match="ALIAS=FAMILY"):
        create_app(Settings(model_aliases=(alias,)))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"model_aliases": ("a", "b", "a=made_up")}, "'a' two families"),
        ({"otlp_endpoint": "collector:4318"}, "no URL"),
    ],
)
def test_what_would_do_something_else_without_a_word(setting: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        create_app(Settings(**setting))


def test_a_server_without_families() -> None:
    async def test() -> None:
        families = Families(Lister())
        with pytest.raises(Unsupported, match="has no model family"):
            await families.choose(None)
        assert await families.names() == {}
        assert "has none" in await refused(families, "a")

    check(test)


def test_a_request_that_is_cancelled_leaves_the_call_to_the_others() -> None:
    async def test() -> None:
        lister = Lister("a")
        lister.gate = asyncio.Event()
        families = Families(lister, clock=lister.clock)
        first, second = asyncio.create_task(families.choose(None)), asyncio.create_task(families.choose(None))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        lister.gate.set()
        assert await second == "a" and lister.calls == 1

    check(test)


def test_a_list_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        lister = Lister("a")
        lister.error = TypeError("broken")
        families = Families(lister, clock=lister.clock)
        with pytest.raises(VoiceCloneError, match="cannot be read"):
            await families.choose(None)
        lister.error = None
        lister.now += RETRY_SECONDS
        assert await families.choose(None) == "a"

    check(test)
    assert "TypeError: broken" in caplog.text


@pytest.fixture
def two(triton: Server) -> Server:
    """A server with two families of different sample rates."""
    triton.model_types = list(RATES)

    def play(context: Any) -> Iterator[Any]:
        rate = RATES[triton.calls[-1][0]]
        return iter(speech(3, rate=rate))

    triton.play = play
    return triton


WHOLE = pcm16([sample for index in range(3) for sample in chunk_samples(index, 1920)])


def test_models_are_listed(two: Server, serve: Serve) -> None:
    http = serve(two.url, model_aliases=("tts-1", "tts-1-hd=made_up"))
    listed = http.get("/v1/models").json()
    assert [(model["id"], model["root"]) for model in listed["data"]] == [
        (FAMILY, FAMILY),
        ("made_up", "made_up"),
        ("tts-1", FAMILY),
        ("tts-1-hd", "made_up"),
    ]
    assert http.get("/v1/models/tts-1-hd").json() == listed["data"][3]
    for _ in range(20):
        answer = http.get("/v1/models/other")
        assert answer.status_code == 404
        said = f"there is no model 'other'; this gateway has {FAMILY}, made_up, tts-1, tts-1-hd; "
        assert answer.json()["error"]["message"].startswith(said)
    assert two.stats_calls == 1


def test_each_model_speaks_at_its_own_rate(two: Server, serve: Serve) -> None:
    http = serve(two.url, model_aliases=("tts-1", "tts-1-hd=made_up"))
    for name, family in ((None, FAMILY), ("made_up", "made_up"), ("tts-1-hd", "made_up"), ("tts-1", FAMILY)):
        rate = RATES[family]
        body = {**SPEECH, "model": name}
        wav = http.post("/v1/audio/speech", json={**body, "stream": False})
        assert soundfile.info(io.BytesIO(wav.content)).samplerate == rate
        pcm = http.post("/v1/audio/speech", json={**body, "response_format": "pcm"})
        assert pcm.headers["content-type"] == f"audio/pcm;rate={rate}" and pcm.content == WHOLE
        fixed = http.post("/v1/audio/speech", json={**body, "response_format": "pcm", "sample_rate": 8000})
        assert len(fixed.content) == 2 * round(3 * 1920 * 8000 / rate)
        sse = http.post("/v1/audio/speech", json={**body, "response_format": "pcm", "stream_format": "sse"})
        events = [json.loads(line[6:]) for line in sse.text.splitlines() if line.startswith("data: ")]
        assert {event["sample_rate"] for event in events[:-1]} == {rate}
        batch = {"items": [{"input": "One."}, {"input": "Two.", "response_format": "opus"}], **body}
        del batch["input"]
        results = http.post("/v1/audio/speech/batch", json={**batch, "response_format": "pcm"}).json()["results"]
        assert [result["media_type"] for result in results] == [f"audio/pcm;rate={rate}", "audio/ogg;codecs=opus"]
        assert base64.b64decode(results[0]["audio_data"]) == WHOLE
        assert [model for model, _ in two.speeches[-6:]] == [family] * 6
    assert two.stats_calls == 1, "one call for all requests"
    metrics = http.get("/metrics").text
    seconds = next(line for line in metrics.splitlines() if line.startswith("voice_clone_gateway_audio_seconds_total"))
    one = {rate: 3 * 1920 / rate for rate in RATES.values()}
    assert float(seconds.split()[1]) == pytest.approx(12 * sum(one.values()), abs=1e-3)


def test_a_batch_of_two_models(two: Server, serve: Serve) -> None:
    items = [{"input": "One.", "model": name} for name in (FAMILY, "made_up", "other")]
    batch = {"items": items, "voice": "ada", "response_format": "pcm"}
    answer = serve(two.url, batch_parallel=1).post("/v1/audio/speech/batch", json=batch).json()
    assert [result.get("media_type") for result in answer["results"]] == [
        "audio/pcm;rate=24000",
        "audio/pcm;rate=44100",
        None,
    ]
    assert answer["results"][2]["error"]["code"] == "model_not_found"


def test_the_model_of_the_settings_speaks_as_before(two: Server, serve: Serve) -> None:
    http = serve(two.url, model="made_up", model_aliases=("tts-1",))
    for name in (None, "made_up", "tts-1"):
        assert http.post("/v1/audio/speech", json={**SPEECH, "model": name}).status_code == 200
    assert {model for model, _ in two.speeches} == {"made_up"} and two.stats_calls == 0
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["made_up", FAMILY, "tts-1"]
    assert http.post("/v1/audio/speech", json={**SPEECH, "model": FAMILY}).status_code == 200
    assert two.speeches[-1][0] == FAMILY
    two.answer = lambda inputs: {"result": b'{"name": "ada"}'}
    http.post("/v1/audio/voices", data={"name": "ada", "consent": "yes"}, files={"audio_sample": b"x"})
    assert two.calls[-1][1]["model_type"] == b"made_up"


def test_an_upload_prepares_all_families(two: Server, serve: Serve) -> None:
    two.answer = lambda inputs: {"result": b'{"name": "ada"}'}
    http = serve(two.url)
    form = {"data": {"name": "ada", "consent": "yes"}, "files": {"audio_sample": b"x"}}
    assert http.post("/v1/audio/voices", **form).status_code == 200  # type: ignore[arg-type]
    assert "model_type" not in two.calls[-1][1]


def test_the_gateway_starts_before_the_server(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = serve("127.0.0.1:9")
    for path in ("/v1/models", "/v1/models/any", "/health"):
        answer = http.get(path)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "server_unavailable"
        assert "127.0.0.1" not in answer.text
    assert http.post("/v1/audio/speech", json=SPEECH).status_code == 503


def test_the_server_is_ready_later(two: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone_gateway.families.RETRY_SECONDS", 0.0)

    def fail(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.UNAVAILABLE, "Server not ready")

    answer, two.answer = two.answer, fail
    http = serve(two.url)
    assert http.get("/health").status_code == http.post("/v1/audio/speech", json=SPEECH).status_code == 503
    two.answer = answer
    assert http.get("/health").status_code == http.post("/v1/audio/speech", json=SPEECH).status_code == 200


def test_families_are_logged(two: Server, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    serve(two.url, model="typo").get("/v1/models")
    assert f"{FAMILY}, made_up" in caplog.text and "typo, the family of --model, is none of them" in caplog.text


def test_a_session_in_each_model() -> None:
    async def test(gateway: Gateway) -> None:
        text = "One thing was said. Another thing was heard."
        first, second = "One thing was said.", "Another thing was heard."
        async with gateway.call() as caller:
            for model in (None, "made_up", "tts-1-hd"):
                rate = RATES[model or FAMILY] if model != "tts-1-hd" else 44100
                await caller.configure(model=model, options={"warmth": 2})
                await caller.send("input.text", text=text)
                await caller.send("input.done")
                messages = await caller.until("session.done")
                starts = [message for message in events_of(messages) if message["type"] == "audio.start"]
                assert [start["sample_rate"] for start in starts] == [rate, rate]
                done = events_of(messages)[-1]
                assert done["milliseconds"] == round(8 * FRAME / rate * 1000)
                assert audio_of(messages) == pcm_of(first, 0) + pcm_of(second, 1)
            await caller.configure(model="other")
            await caller.send("input.text", text=text)
            await caller.send("input.done")
            [error] = [message for message in await caller.until("error") if message["type"] == "error"]
            assert error["error"]["code"] == "model_not_found"
        assert [speech.options["options"] for speech in gateway.double.speeches] == [{"warmth": 2}] * 6
        assert gateway.double.models_calls == 1

    run(test, Double(rates=RATES), model_aliases=("tts-1-hd=made_up",))


def test_a_pause_lasts_as_long_at_any_rate() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            for model, rate in RATES.items():
                await caller.configure(model=model, sentence_pause_ms=100)
                await caller.send("input.text", text="One thing was said. Another thing was heard.")
                await caller.send("input.done")
                assert len(audio_of(await caller.until("session.done"))) == 2 * (8 * FRAME + rate // 10)

    run(test, Double(rates=RATES))


def test_a_long_text_keeps_its_model(two: Server, serve: Serve) -> None:
    def play(context: Any) -> Iterator[Any]:
        yield chunk(0, final=True, info={"frames": 1}, rate=44100)

    two.play = play
    text = " ".join(f"Sentence number {index} of a long text is read." for index in range(10))
    body = {**SPEECH, "input": text, "model": "made_up", "response_format": "pcm", "options": {"warmth": 1}}
    answer = serve(two.url, sentence_characters=60).post("/v1/audio/speech", json=body)
    assert answer.headers["content-type"] == "audio/pcm;rate=44100"
    assert len(answer.content) == 2 * 1920 * 10
    assert [model for model, _ in two.speeches] == ["made_up"] * 10
    assert {inputs["options"] for _, inputs in two.speeches} == {b'{"warmth": 1}'}


def test_a_family_may_speak_less_at_once(two: Server, serve: Serve) -> None:
    def play(context: Any) -> Iterator[Any]:
        yield chunk(0, final=True, info={"frames": 1}, rate=44100)

    two.play, two.max_characters = play, {"made_up": 100}
    text = " ".join(f"Sentence number {index} of a long text is read." for index in range(6))
    gateway = serve(two.url)
    for model in (None, "made_up"):
        gateway.post("/v1/audio/speech", json={**SPEECH, "input": text, "model": model, "response_format": "pcm"})
    assert [model for model, _ in two.speeches] == [FAMILY, *["made_up"] * 6]
