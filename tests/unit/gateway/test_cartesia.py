"""Cartesia's API: with its official client as it comes, and its WebSocket message by message."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from cartesia import APIStatusError, AsyncCartesia, AuthenticationError, BadRequestError, Cartesia, NotFoundError
from voice_clone_gateway.http import tokens
from voice_clone_gateway.speech.dictionaries import Dictionaries
from websockets.exceptions import InvalidStatus

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.triton_double import AlignerDouble, Server, chunk, samples_of
from tests.support.doubles.voice_book import CLIP, VoiceBook
from tests.support.doubles.websocket_calls import Gateway, eventually, run
from tests.support.official.vendor_calls import VendorCaller, calling

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),  # its older methods, which are tried, too
]
ANN, BOB = "ann-has-a-key-of-some-length", "bob-has-a-key-of-some-length"
RAW: dict[str, Any] = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
SPEECH: dict[str, Any] = {"model_id": "sonic-3", "transcript": "Hello.", "voice": "ada", "output_format": RAW}
MISSING = "0" * 20


@pytest.fixture
def book(triton: Server) -> VoiceBook:
    return VoiceBook(triton, ("ada", "ann"), ("house", ""))


@pytest.fixture
def http(triton: Server, book: VoiceBook, serve: Serve, tmp_path: Path) -> Iterator[httpx2.Client]:
    keys = tmp_path / "keys"
    keys.write_text(f"{ANN} speak,manage name=ann owner\n{BOB} speak,manage name=bob owner\nshort speak\n")
    client = serve(triton.url, api_keys_file=str(keys), vendors_consent="by contract")
    client.headers["X-API-Key"] = ANN
    yield client


def client_of(http: httpx2.Client, key: str = ANN) -> Cartesia:
    return Cartesia(api_key=key, base_url=str(http.base_url), max_retries=0)


class TestOfficialClient:
    """Its calls over HTTP."""

    def test_speech(self, http: httpx2.Client, triton: Server) -> None:
        client = client_of(http)
        [ada] = client.voices.list(q="ADA")
        heard = client.tts.generate(
            **{**SPEECH, "voice": {"mode": "id", "id": ada.id}},
            generation_config={"speed": 0.5, "emotion": "proud/happy", "volume": 2.0},
            language="de",
            extra_body={"new_field": 1},
        )
        assert heard.headers["content-type"] == "audio/pcm;rate=24000"
        assert heard.headers["x-speech-warning"].startswith("volume:")
        assert len(heard.read()) == 2 * 2 * 3 * 1920
        asked = triton.speeches[-1][1]
        assert (asked["voice"], asked["language"], asked["style"]) == (b"ada", b"de", b"proud-happy,neutral")
        assert sum(map(len, client.tts.bytes(**SPEECH))) == 2 * 3 * 1920

    @pytest.mark.parametrize(
        ("form", "subtype"),
        [
            ({"container": "wav", "encoding": "pcm_s16le"}, "PCM_16"),
            ({"container": "wav", "encoding": "pcm_f32le"}, "FLOAT"),
            ({"container": "wav", "encoding": "pcm_mulaw"}, "ULAW"),
            ({"container": "wav", "encoding": "pcm_alaw"}, "ALAW"),
            ({"container": "mp3", "bit_rate": 64000}, "MPEG_LAYER_III"),
        ],
    )
    def test_files(self, http: httpx2.Client, form: dict[str, Any], subtype: str) -> None:
        speech = {**SPEECH, "output_format": {**form, "sample_rate": 44100}}
        with soundfile.SoundFile(io.BytesIO(client_of(http).tts.generate(**speech).read())) as file:
            assert (file.subtype, file.samplerate) == (subtype, 44100)

    def test_raw_floats(self, http: httpx2.Client) -> None:
        speech = {**SPEECH, "output_format": {**RAW, "encoding": "pcm_f32le"}}
        heard = np.frombuffer(client_of(http).tts.generate(**speech).read(), "<f4")
        assert np.allclose(heard[:1920], samples_of(0, 1920), atol=1e-4)

    def test_events(self, http: httpx2.Client, triton: Server) -> None:
        events = list(client_of(http).tts.generate_sse(**SPEECH, context_id="c1"))
        assert [event.type for event in events] == ["chunk"] * (len(events) - 1) + ["done"]
        assert {event.context_id for event in events} == {"c1"}
        assert sum(len(event.audio or b"") for event in events[:-1] if event.type == "chunk") == 2 * 3 * 1920
        triton.play = lambda context: iter([chunk(0), chunk(1, final=True, info={"finish_reason": "budget"})])
        *_, last = client_of(http).tts.generate_sse(**SPEECH)
        assert last.type == "error" and (last.error_code, last.status_code) == ("incomplete", 500)

    def test_times_of_words(self, http: httpx2.Client, triton: Server) -> None:
        triton.align = AlignerDouble(480)
        said = {**SPEECH, "transcript": 'Well, <break time="1s"/> hello there.'}
        events = list(client_of(http).tts.generate_sse(**said, add_timestamps=True, context_id="c1"))
        found = [event.word_timestamps for event in events if event.type == "timestamps"]
        assert [word for each in found for word in each.words] == ["Well,", "hello", "there."]
        starts, ends = ([time for each in found for time in getattr(each, name)] for name in ("start", "end"))
        assert starts == pytest.approx([0.0, 0.24, 0.26], abs=1e-3)
        assert ends == pytest.approx([start + 0.02 for start in starts])
        assert events[-1].type == "done" and {event.context_id for event in events} == {"c1"}
        heard = client_of(http).tts.generate(**said, extra_body={"add_timestamps": True})
        assert heard.headers["x-speech-warning"].startswith("add_timestamps:"), "a file has no events"

    def test_voices(self, http: httpx2.Client, book: VoiceBook) -> None:
        client = client_of(http)
        made = client.voices.clone(clip=("a.wav", CLIP), name="Zoë & Co/", language="en")
        again = client.voices.clone(clip=("a.wav", CLIP), name="Zoë & Co/", language="en")
        assert (made.name, again.name) == ("Zoë - Co-", "Zoë - Co- 2")
        assert book.records["ann", made.name]["consent"] == "by contract"
        for limit in (1, 2, 100):
            names = [voice.name for voice in client.voices.list(limit=limit)]
            assert sorted(names) == sorted(["ada", "house", made.name, again.name]), "each once, and an end"
        some = client.voices.list(limit=3).data
        assert [each.id for each in client.voices.list(ending_before=some[2].id, limit=1).data] == [some[1].id]
        assert [voice.name for voice in client.voices.list(is_owner=False)] == ["house"]
        voice = client.voices.get(made.id)
        assert (voice.id, voice.is_owner, voice.access, voice.created_at.timestamp()) == (made.id, True, "private", 1.5)
        assert client.voices.update(made.id, gender="feminine").name == made.name
        with pytest.raises(BadRequestError, match="clone the voice"):
            client.voices.update(made.id, name="Another")
        client.voices.delete(made.id)
        for gone in (made.id, MISSING, "nobody"):
            with pytest.raises(NotFoundError):
                client.voices.delete(gone)

    def test_another_owner_s_voice_is_none(self, http: httpx2.Client, book: VoiceBook) -> None:
        ada = next(iter(client_of(http).voices.list(q="ada"))).id
        bob = client_of(http, BOB)
        assert [voice.name for voice in bob.voices.list()] == ["house"]
        for call in (
            lambda: bob.voices.get(ada),
            lambda: bob.voices.update(ada, gender="feminine"),
            lambda: bob.voices.delete(ada),
        ):
            with pytest.raises(NotFoundError) as error:
                call()
            assert error.value.body["error_code"] == "voice_not_found"  # type: ignore[index]
        assert ("ann", "ada") in book.records

    def test_what_is_empty_or_refused(self, http: httpx2.Client) -> None:
        client = client_of(http)
        assert client.get_status().ok
        assert list(client.pronunciation_dicts.list()) == [] == client.voices.list_accents().accents
        for call in (
            lambda: client.pronunciation_dicts.create(name="x"),
            lambda: client.voices.localize(voice_id="ada", name="n", description="d", language="de", accent="x"),
            lambda: client.voices.add_accents("ada", accents=["x"]),
            lambda: client.tts.infill(left_audio=CLIP, transcript="x", voice_id="ada", model_id="sonic", language="en"),
            lambda: client.post("/voices", cast_to=object, body={"embedding": [0.5]}),
            lambda: client.tts.generate(**{**SPEECH, "voice": {"mode": "embedding", "embedding": [0.5]}}),  # type: ignore[dict-item]
        ):
            with pytest.raises(BadRequestError) as error:
                call()
            assert error.value.body["message"]  # type: ignore[index]

    def test_tokens(self, http: httpx2.Client, book: VoiceBook, monkeypatch: pytest.MonkeyPatch) -> None:
        token = client_of(http).access_token.create(grants={"tts": True}, expires_in=60).token
        client = client_of(http, token)
        assert client.tts.generate(**SPEECH).read(), "it is Ann's voice"
        by_query = httpx2.post(f"{http.base_url}/tts/bytes?access_token={token}", json=SPEECH)
        assert by_query.status_code == 200
        for call in (lambda: client.voices.delete("ada"), lambda: client.access_token.create()):
            with pytest.raises(APIStatusError) as error:
                call()
            assert error.value.status_code == 403
        with pytest.raises(BadRequestError, match="24 characters"):
            client_of(http, "short").access_token.create()
        name, end, code = tokens.token_of(token) or ("", 0, "")
        for forged in (f"vct_{name}_{end + 1}_{code}", f"vct_{'0' * 16}_{end}_{code}", f"vct_{name}_{end}_{'0' * 64}"):
            with pytest.raises(AuthenticationError):
                client_of(http, forged).voices.list()
        monkeypatch.setattr(tokens.time, "time", lambda: end)
        with pytest.raises(AuthenticationError):
            client.voices.list()


BAD = {
    "no object": [],
    "no text": {**SPEECH, "transcript": None},
    "blank": {**SPEECH, "transcript": "  "},
    "number": {**SPEECH, "transcript": 3},
    "voice": {**SPEECH, "voice": [1]},
    "long voice": {**SPEECH, "voice": "v" * 10_000},
    "no encoding": {**SPEECH, "output_format": {"container": "raw", "sample_rate": 8000}},
    "rate": {**SPEECH, "output_format": {**RAW, "sample_rate": 10**300}},
    "container": {**SPEECH, "output_format": {**RAW, "container": "ogg"}},
    "speed": {**SPEECH, "generation_config": {"speed": 99}},
    "long context": {**SPEECH, "context_id": "c" * 1000},
}


@pytest.mark.parametrize("path", ["/tts/bytes", "/tts/sse"])
@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_requests_that_are_refused(http: httpx2.Client, path: str, body: Any) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error_code"] == "invalid_argument"
    assert not answer.json()["message"].startswith("input"), "it is the transcript"
    old = http.post(path, json=body, headers={"cartesia-version": "2024-11-13"})
    assert old.text.startswith("Invalid argument: ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/voices?limit=0", 400),
        ("GET", f"/voices?starting_after={'z' * 5000}", 200),
        ("GET", "/voices/", 200),
        ("GET", f"/voices/{MISSING}", 404),
        ("GET", "/voices/%00", 400),
        ("PUT", "/voices/ada", 405),
        ("POST", "/voices/clone", 400),
        ("GET", "/", 200),
    ],
)
def test_paths(http: httpx2.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path, headers={"cartesia-version": "2026-08-14"})
    assert answer.status_code == status and (status == 200 or answer.json()["error_code"])


def test_the_page_is_still_at_the_root(http: httpx2.Client) -> None:
    assert http.get("/").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", ["n" * 10_000, "a\0b\r\nc", "../../d", "..", "\u0301x"])
def test_any_name_can_be_cloned(http: httpx2.Client, book: VoiceBook, name: str) -> None:
    made = http.post("/voices/clone", files={"clip": ("a.wav", CLIP)}, data={"name": name}).json()
    assert 1 <= len(made["name"]) <= 64 and not set(made["name"]) & set("/\0\r\n") and made["name"][0] != "."


def wanted(context: str, text: str, **more: Any) -> dict[str, Any]:
    return {**SPEECH, "transcript": text, "context_id": context, **more}


def audio_of(messages: list[dict[str, Any]], context: str) -> bytes:
    pieces = [message["data"] for message in messages if (message["type"], message["context_id"]) == ("chunk", context)]
    return b"".join(map(base64.b64decode, pieces))


class TestSocket:
    """Its WebSocket."""

    def test_the_official_client(self) -> None:
        async def speak(gateway: Gateway) -> list[Any]:
            client = AsyncCartesia(api_key="unused", websocket_base_url=f"ws://127.0.0.1:{gateway.port}")
            async with client.tts.websocket_connect() as connection:
                context = connection.context("one", model_id="sonic-3", voice="ada", output_format=RAW)  # type: ignore[arg-type]
                for text in ("Good ", "morning, ", "all. "):
                    await context.push(text)
                await context.no_more_inputs()
                heard = [event async for event in context.receive()]
                other = connection.context("two")
                await other.send(**wanted("two", "It stays open. "), continue_=False)
                return heard + [event async for event in other.receive()]

        async def test(gateway: Gateway) -> None:
            heard = [event.model_dump() for event in await speak(gateway)]
            assert gateway.double.texts == ["Good morning, all. ", "It stays open. "]
            assert [len(audio_of(heard, context)) for context in ("one", "two")] == [3 * FRAME * 2, 3 * FRAME * 2]
            assert [event["context_id"] for event in heard if event["type"] == "done"] == ["one", "two"]
            assert gateway.double.speeches[0].options["voice"] == "ada"

        run(test)

    def test_flushes(self) -> None:
        async def test(gateway: Gateway) -> None:
            async with calling(gateway, "/tts/websocket") as caller:
                for text, more in (("One ", True), ("two. ", True), ("", True), ("Three. ", False)):
                    flush = text == "two. " or not text
                    await caller.send(**wanted("a", text, flush=flush, **{"continue": more}))
                messages = await caller.until(type="done", context_id="a")
            assert [m["flush_id"] for m in messages if m["type"] == "flush_done"] == [1, 2]
            assert gateway.double.texts == ["One two. ", "Three. "]

        run(test)

    def test_times_of_words(self) -> None:
        async def test(gateway: Gateway) -> None:
            client = AsyncCartesia(api_key="unused", websocket_base_url=f"ws://127.0.0.1:{gateway.port}")
            async with client.tts.websocket_connect() as connection:
                for name, timed in (("a", True), ("b", None)):
                    context = connection.context(name)
                    more = {"add_timestamps": timed, "generation_config": {"speed": 2.0}}
                    await context.send(**wanted(name, "One two. ", flush=True, **more), continue_=True)
                    await context.send(**wanted(name, "Three ", **more), continue_=True)
                    await context.send(**wanted(name, "four."), continue_=False)
                    heard = [event async for event in context.receive()]
                    found = [event.word_timestamps for event in heard if event.type == "timestamps"]
                    words = [word for each in found if each for word in each.words]
                    assert words == (["One", "two.", "Three", "four."] if timed else [])
                    starts = [time for each in found if each for time in each.start]
                    assert starts == pytest.approx([at * FRAME / 2 / 24000 for at in range(len(words))], abs=1e-3)
                    assert heard[-1].type == "done"

        run(test, Double(align=AlignerDouble(FRAME // 2)))

    def test_nothing_comes_after_a_cancel(self) -> None:
        async def test(gateway: Gateway) -> None:
            async with calling(gateway, "/tts/websocket") as caller:
                await caller.send(**wanted("a", "An answer that nobody ", **{"continue": True}))
                await caller.send(**wanted("b", "Another one ", **{"continue": True}))
                await caller.until(type="chunk", context_id="a")
                await caller.send(cancel=True, context_id="a")
                await caller.send(**wanted("b", "to its end. "))
                messages = await caller.until(type="done", context_id="b")
                assert gateway.double.speeches[0].closed.is_set()
                await caller.send(**wanted("a", "Again. "))
                assert all(m["context_id"] == "a" for m in await caller.until(type="done"))
            ended = messages.index(next(m for m in messages if m["context_id"] == "b"))
            assert len([m for m in messages[ended:] if m["context_id"] == "a"]) <= 4, "those on the way"

        run(test)

    def test_an_error_ends_its_context_alone(self) -> None:
        async def test(gateway: Gateway) -> None:
            async with calling(gateway, "/tts/websocket?cartesia_version=2024-11-13") as caller:
                await caller.send(**wanted("a", "Fine ", **{"continue": True}))
                await caller.send(**wanted("b", "...", **{"continue": True}))
                await caller.send(**wanted("b", "", flush=True, **{"continue": True}))
                error = (await caller.until(type="error"))[-1]
                assert (error["context_id"], error["done"]) == ("b", True) and error["error"].startswith("Invalid")
                await caller.send(**wanted("a", "until its end. "))
                await caller.until(type="done", context_id="a")
                await eventually(lambda: gateway.live() == 0)

        run(test)

    def test_a_context_that_ends_while_a_message_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the server's dictionaries: nothing of the message is spoken in the context that follows."""
        failed, chosen, calls = asyncio.Event(), Dictionaries.chosen, list[int]()

        async def slow(*arguments: Any) -> Any:
            calls.append(len(calls))
            if calls[-1] == 1:
                await failed.wait()
            return await chosen(*arguments)

        monkeypatch.setattr(Dictionaries, "chosen", slow)

        async def test(gateway: Gateway) -> None:
            async with calling(gateway, "/tts/websocket") as caller:
                await caller.send(**wanted("a", "...", flush=True, **{"continue": True}))
                await caller.send(**wanted("a", "Too late. ", **{"continue": True}))
                await caller.until(type="error")
                failed.set()
                await caller.send(**wanted("a", "Again. "))
                await caller.until(type="done")
                assert [speech.text.strip() for speech in gateway.double.speeches] == ["Again."]

        run(test)

    @pytest.mark.parametrize(
        "message",
        [
            "no json",
            "[]",
            b"audio",
            "{}",
            '{"type": "Speak", "text": "Hello."}',
            '{"cancel": true}',
            json.dumps(wanted("a", "Hello.", voice={"mode": "embedding", "embedding": [0.5]})),
            json.dumps(wanted("a", "Hello.", output_format={**RAW, "sample_rate": 1})),
            json.dumps(wanted("a", "Hello.", **{"continue": "perhaps"})),
        ],
    )
    def test_messages_that_cannot_be_followed(self, message: str | bytes) -> None:
        async def test(gateway: Gateway) -> None:
            async with calling(gateway, "/tts/websocket") as caller:
                await caller.connection.send(message)
                error = await caller.next()
                assert (error["type"], error["status_code"]) == ("error", 400) and error["message"]
                await caller.send(**wanted("a", "It stays open. "))
                await caller.until(type="done", context_id="a")

        run(test)

    def test_limits(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("s3cret speak\n")

        async def open_ones(caller: VendorCaller) -> None:
            for number in range(3):
                await caller.send(**wanted(str(number), "", **{"continue": True}))
            assert (await caller.next())["error_code"] == "too_many_utterances"

        async def test(gateway: Gateway) -> None:
            with pytest.raises(InvalidStatus) as refused:
                async with calling(gateway, "/tts/websocket?api_key=wrong"):
                    pass
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body)["error_code"] == "invalid_api_key"
            async with calling(gateway, "/tts/websocket?api_key=s3cret") as caller:
                await open_ones(caller)

        run(test, api_keys_file=str(tmp_path / "keys"), session_utterances=2)

    def test_a_client_that_leaves_stops_everything(self) -> None:
        async def test(gateway: Gateway) -> None:
            gateway.double.gate = asyncio.Semaphore(1)
            async with calling(gateway, "/tts/websocket") as caller:
                await caller.send(**wanted("a", "One two three "))
                await caller.until(type="chunk")
            await eventually(lambda: gateway.double.speeches[0].closed.is_set())

        run(test, Double())
