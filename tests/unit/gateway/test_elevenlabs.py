"""ElevenLabs' WebSockets: with its official client as it comes, and message by message."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from websockets.exceptions import InvalidStatus

from tests.support.doubles.clock import LoopClock
from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.websocket_calls import Gateway, eventually, run
from tests.support.official.vendor_calls import VendorCaller, audio_of, by_tls, calling

pytestmark = pytest.mark.thorough

ONE = "/v1/text-to-speech/ada/stream-input?output_format=pcm_24000"
SEVERAL = "/v1/text-to-speech/ada/multi-stream-input?output_format=pcm_24000"
FINAL = {"audio": None, "isFinal": True, "alignment": None, "normalizedAlignment": None}


def final_of(context: str) -> dict[str, Any]:
    return {**FINAL, "contextId": context}


@pytest.mark.filterwarnings("ignore:ConnectionClosed.* is deprecated:DeprecationWarning")  # which it uses
class TestOfficialClient:
    """It can only speak TLS."""

    @staticmethod
    def words() -> Iterator[str]:
        yield from ("Good ", "morning", ", all.", " Again")

    def spoken(self, client: ElevenLabs, **options: Any) -> bytes:
        voice = options.pop("voice_id", "ada")
        return b"".join(client.text_to_speech.convert_realtime(voice, text=self.words(), **options))

    def run(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, check: Any, double: Double | None = None, **settings: Any
    ) -> None:
        (folder / "keys").write_text("s3cret speak\n")

        async def test(gateway: Gateway) -> None:
            async with by_tls(gateway.port, folder) as (port, authority):
                monkeypatch.setenv("SSL_CERT_FILE", str(authority))
                client = ElevenLabs(base_url=f"https://localhost:{port}", api_key="s3cret")
                await asyncio.to_thread(check, gateway, client)

        run(test, double, api_keys_file=str(folder / "keys"), **settings)

    def test_words(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def check(gateway: Gateway, client: ElevenLabs) -> None:
            settings = VoiceSettings(stability=0.5, similarity_boost=0.8, use_speaker_boost=True, speed=1.0)
            audio = self.spoken(
                client, model_id="eleven_flash_v2_5", output_format="pcm_24000", voice_settings=settings
            )
            assert gateway.double.texts == ["Good morning,  all.  Again "], "it cuts at punctuation, and adds spaces"
            assert len(audio) == 4 * 2 * FRAME
            assert gateway.double.speeches[0].options["voice"] == "ada"

        self.run(monkeypatch, tmp_path, check)

    def test_its_defaults_are_mp3(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def check(gateway: Gateway, client: ElevenLabs) -> None:
            samples, rate = soundfile.read(io.BytesIO(self.spoken(client)))
            assert rate == 44100 and abs(len(samples) / rate - 4 * FRAME / 24000) < 0.1

        self.run(monkeypatch, tmp_path, check)

    def test_it_gets_the_error(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def check(gateway: Gateway, client: ElevenLabs) -> None:
            with pytest.raises(ApiError) as error:
                self.spoken(client, output_format="pcm_24000")
            assert error.value.status_code == 1008
            assert "at most 10 characters" in str(error.value)

        self.run(monkeypatch, tmp_path, check, max_input_characters=10)


def test_one_text() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            await caller.send(
                text=" ", voice_settings={"speed": 2.0}, generation_config={"chunk_length_schedule": [50]}
            )
            await caller.send(text="The first ", try_trigger_generation=True)
            first = await caller.next()
            assert first["audio"] and first["isFinal"] is None and first["alignment"] is None
            await caller.send(text="word. ", flush=True)
            await caller.send(text="Another. ")
            await caller.send(text="")
            messages, code = await caller.rest()
        assert code == 1000 and messages[-1] == FINAL
        assert len(audio_of([first, *messages])) == 4 * FRAME * 2 // 2, "at twice the speed"
        assert gateway.double.texts == ["The first word. ", "Another. "]

    run(test)


def test_nothing_to_say() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            await caller.send(text=" ")
            await caller.send(text="")
            assert await caller.rest() == ([FINAL], 1000)
        assert gateway.double.texts == []

    run(test)


def test_contexts_are_spoken_at_once() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await caller.send(text="")  # a sign of life
            for context in ("a", "b"):
                await caller.send(text=" ", voice_settings={}, context_id=context)
                await caller.send(text=f"Text of {context} ", contextId=context)
                await caller.send(text="", context_id=context)  # another
            await caller.until(contextId="b")
            for context in ("b", "a"):
                await caller.send(flush=True, context_id=context)
                await caller.send(close_context=True, context_id=context)
            messages = await caller.until(**final_of("b"))
            if final_of("a") not in messages:
                messages += await caller.until(**final_of("a"))
            await caller.send(text="By default ")
            await caller.send(flush=True)
            await caller.send(close_socket=True)
            more, code = await caller.rest()
        assert sorted(gateway.double.texts) == ["By default ", "Text of a ", "Text of b "]
        assert len(audio_of(more, "default")) == 2 * FRAME * 2
        assert (more[-1], code) == (final_of("default"), 1000)

    run(test)


def test_a_context_may_come_again() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            for text in ("One two ", "Three "):
                await caller.send(text=" ", context_id="a")
                await caller.send(text=text, flush=True, context_id="a")
                await caller.send(close_context=True, context_id="a")
            first, second = await caller.until(**final_of("a")), await caller.until(**final_of("a"))
        assert [len(audio_of(part, "a")) for part in (first, second)] == [2 * FRAME * 2, FRAME * 2]
        assert gateway.double.texts == ["One two ", "Three "]

    run(test)


async def begin(caller: VendorCaller, context: str, text: str) -> None:
    await caller.send(text=" ", context_id=context)
    await caller.send(text=text, context_id=context)
    await caller.until(contextId=context, isFinal=None)


def test_an_interrupted_context_is_stopped_at_once() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await begin(caller, "a", "An answer that nobody ")
            await caller.send(close_context=True, context_id="a")
            await caller.until(**final_of("a"))
            assert gateway.double.speeches[0].closed.is_set()
            await begin(caller, "b", "Yes? ")

    run(test)


def test_a_second_close_stops_what_was_flushed() -> None:
    async def test(gateway: Gateway) -> None:
        gateway.double.gate = asyncio.Semaphore(1)
        async with calling(gateway, SEVERAL + "&streaming_mode=sentence") as caller:
            await caller.send(text="A long answer. ", context_id="a")
            await caller.send(flush=True, context_id="a")
            await caller.send(close_context=True, context_id="a")
            await caller.until(contextId="a", isFinal=None)
            assert not gateway.double.speeches[0].closed.is_set()
            await caller.send(close_context=True, context_id="a")
            assert await caller.until(**final_of("a")) == [final_of("a")]
            assert gateway.double.speeches[0].closed.is_set()
            await caller.send(close_context=True, context_id="a")
            await caller.send(close_socket=True)
            assert await caller.rest() == ([], 1000)

    run(test)


def test_a_client_that_leaves_stops_everything() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await begin(caller, "a", "One two ")
            await begin(caller, "b", "Three four ")
        await eventually(lambda: [speech.closed.is_set() for speech in gateway.double.speeches] == [True, True])

    run(test)


@pytest.mark.parametrize(
    ("query", "kind", "size"),
    [
        ("", "mp3", None),
        ("?output_format=mp3_22050_32", "mp3", None),
        ("?output_format=opus_48000_32", "opus", None),
        ("?output_format=pcm_16000", "pcm", 2 * FRAME * 2 // 3),
        ("?output_format=ulaw_8000", "mulaw", FRAME // 3),
        ("?output_format=alaw_8000", "alaw", FRAME // 3),
    ],
)
def test_formats(query: str, kind: str, size: int | None) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"/v1/text-to-speech/ada/stream-input{query}") as caller:
            await caller.send(text="Word")
            await caller.send(text="")
            messages, _ = await caller.rest()
        audio = audio_of(messages)
        if size is None:
            assert soundfile.info(io.BytesIO(audio)).duration > 0.05
        else:
            assert len(audio) == size

    run(test)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("output_format=aac_44100", "mp3, pcm, wav, opus, ulaw, alaw"),
        ("output_format=pcm_11025", "sample_rate: it should be"),
        ("output_format=pcm_fast", "mp3_44100_128"),
        ("enable_ssml_parsing=yes", "enable_ssml_parsing"),
        ("inactivity_timeout=0", "at least 1"),
    ],
)
def test_options_that_are_refused(query: str, words: str) -> None:
    async def test(gateway: Gateway) -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with calling(gateway, f"/v1/text-to-speech/ada/multi-stream-input?{query}"):
                pass
        assert refused.value.response.status_code == 400
        assert words in json.loads(refused.value.response.body)["detail"]["message"]

    run(test)


def test_options() -> None:
    query = "&model_id=eleven_turbo_v2_5&language_code=de-AT&enable_logging=true&inactivity_timeout=180"
    query += "&auto_mode=false&new_option=1"

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL + query + "&seed=7&x_vector_only=true") as caller:
            await begin(caller, "a", "Ein Wort ")
        asked = gateway.double.speeches[0].options
        assert {"language": "de", "seed": 7, "x_vector_only": True, "model": "qwen3_tts"}.items() <= asked.items()

    run(test)


@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]",
        '{"text": 3}',
        '{"text": " ", "voice_settings": {"speed": 9}}',
        '{"text": " ", "pronunciation_dictionary_locators": [{"version_id": "a"}]}',
        b"audio",
    ],
)
def test_messages_that_cannot_be_followed(message: str | bytes) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await caller.connection.send(message)
            [error], code = await caller.rest()
            assert error["code"] == code == 1008 and error["error"] in ("invalid_json", "invalid_argument")

    run(test)


def test_a_strict_gateway_refuses_settings_without_an_effect() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            await caller.send(text=" ", voice_settings={"stability": 0.5, "speed": 1.1})
            [error], _ = await caller.rest()
            assert "stability" in error["message"] and "strict" in error["message"]

    run(test, strict=True)


def test_an_error_names_its_context() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await caller.send(text="...", context_id="a")
            await caller.send(flush=True, context_id="a")
            await caller.send(close_context=True, context_id="a")
            messages, code = await caller.rest()
            assert (messages, code) == ([final_of("a")], 1000) or messages[-1]["contextId"] == "a"

    run(test)


def test_limits() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            for number in range(3):
                await caller.send(text=" ", context_id=str(number))
            [error], code = await caller.rest()
            assert (error["error"], code) == ("too_many_utterances", 1008)
        async with calling(gateway, "/v1/text%2Dto-speech/ada/stream-input") as caller:
            await caller.connection.send("x" * 70_000)
            assert (await caller.rest())[1] == 1009
        async with calling(gateway, SEVERAL + "&inactivity_timeout=1") as caller:
            [error], _ = await caller.rest()
            assert error["message"] == "the session was idle for 1 s, so it is closed"

    run(test, session_utterances=2)


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("s3cret speak\nother manage\n")
    clock = LoopClock(monkeypatch)

    async def test(gateway: Gateway) -> None:
        for header in ({"xi-api-key": "s3cret"}, {"Authorization": "Bearer s3cret"}):
            async with calling(gateway, ONE, additional_headers=header) as caller:
                await caller.send(text="")
                assert await caller.rest() == ([FINAL], 1000)
        for header, status in (({"xi-api-key": "wrong"}, 401), ({"xi-api-key": "other"}, 403)):
            with pytest.raises(InvalidStatus) as refused:
                async with calling(gateway, ONE, additional_headers=header):
                    pass
            assert refused.value.response.status_code == status
        for first in ({"xi_api_key": "s3cret"}, {"xi-api-key": "s3cret"}, {"authorization": "Bearer s3cret"}):
            async with calling(gateway, ONE) as caller:
                await caller.send(text="Word ", **first)
                await caller.send(text="")
                messages, code = await caller.rest()
                assert code == 1000 and len(audio_of(messages)) == FRAME * 2
        for wrong, reported in (
            ({}, "invalid_api_key"),
            ({"xi_api_key": "wrong"}, "invalid_api_key"),
            ({"xi_api_key": "other"}, "missing_scope"),
            ({"text": 3}, "invalid_argument"),
        ):
            async with calling(gateway, ONE) as caller:
                await caller.send(**{"text": "Word ", **wrong})
                [error], code = await caller.rest()
                assert (error["error"], code) == (reported, 1008)
        async with calling(gateway, ONE, ping_interval=None) as caller:
            await asyncio.sleep(0.1)
            clock.ahead += 20
            [error], code = await caller.rest()
            assert (error["error"], code) == ("idle_timeout", 1008)
        async with calling(gateway, ONE):
            pass
        with pytest.raises(InvalidStatus):
            async with calling(gateway, ONE, origin="https://evil.example"):
                pass

    run(test, api_keys_file=str(tmp_path / "keys"), head_seconds=10.0)
