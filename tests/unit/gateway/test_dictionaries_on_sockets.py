"""Kept dictionaries on WebSockets: ours and those of vendors, in pieces of one character as at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI
from voice_clone_client import KeptDictionary, VoiceNotFound
from voice_clone_gateway.speech.kept_dictionaries import About, Version, packed
from voice_clone_text.dictionary import Rule

from tests.support.doubles.speech_double import Double
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, run
from tests.support.official.vendor_calls import calling

pytestmark = pytest.mark.thorough

TEXT = "SQL is not MySQL, New York is no New York City, and tea. SQL"
WORDS = [Rule("SQL", "sequel"), Rule("New York", "NY"), Rule("New York City", "the city")]
SPOKEN = "sequel is not MySQL, NY is no the city, and tea. sequel"


class Keeper(Double):
    """A double that keeps dictionaries."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.kept: dict[str, KeptDictionary] = {}

    def keep(self, id: str, rules: Sequence[Rule], **about: Any) -> str:
        """Keep one; returns the id of its version."""
        version = Version.of(rules)
        said = About(name=id, version=version.id, rules=len(rules), **about).model_dump_json()
        self.kept[id] = KeptDictionary(id, 1, 0.0, None, said, packed([version]))
        return version.id

    async def dictionaries(self, **page: Any) -> list[Any]:
        return [] if page.get("after") else [replace(each, content=None) for each in self.kept.values()]

    async def dictionary(self, id: str) -> KeptDictionary:
        if id not in self.kept:
            raise VoiceNotFound(id)
        return self.kept[id]


@pytest.fixture
def keeper() -> Keeper:
    keeper = Keeper()
    keeper.keep("dict_1", WORDS)
    return keeper


async def ours(gateway: Gateway, texts: Sequence[str], **config: Any) -> list[Any]:
    async with gateway.call() as caller:
        await caller.configure(**config)
        for text in texts:
            await caller.send("input.text", text=text)
        await caller.send("input.done")
        return await caller.until("session.done")


BY_ID = [{"dictionary": "dict_1"}]
LOCATOR = [{"pronunciation_dictionary_id": "dict_1"}]
FORM = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


async def own_sentences(gateway: Gateway, texts: Sequence[str]) -> None:
    await ours(gateway, texts, pronunciations=BY_ID)


async def own_tokens(gateway: Gateway, texts: Sequence[str]) -> None:
    await ours(gateway, texts, pronunciations=BY_ID, streaming_mode="token_level")


async def elevenlabs(gateway: Gateway, texts: Sequence[str]) -> None:
    path = "/v1/text-to-speech/ada/stream-input?output_format=pcm_24000"
    async with calling(gateway, path) as caller:
        await caller.send(text=" ", pronunciation_dictionary_locators=LOCATOR)
        for text in texts:
            await caller.send(text=text)
        await caller.send(text="")
        await caller.until(isFinal=True)


async def elevenlabs_contexts(gateway: Gateway, texts: Sequence[str]) -> None:
    path = "/v1/text-to-speech/ada/multi-stream-input?output_format=pcm_24000"
    async with calling(gateway, path) as caller:
        for number, text in enumerate(texts):
            first = {"pronunciation_dictionary_locators": LOCATOR} if not number else {}
            await caller.send(text=text, context_id="a", flush=number == len(texts) - 1, **first)
        await caller.send(context_id="a", close_context=True)
        await caller.until(isFinal=True)


async def elevenlabs_dialogue(gateway: Gateway, texts: Sequence[str]) -> None:
    path = "/v1/text-to-dialogue/stream-input?output_format=pcm_24000"
    async with calling(gateway, path) as caller:
        await caller.send(voices=["ada"], pronunciation_dictionary_locators=LOCATOR)
        for text in texts:
            await caller.send(inputs=[{"text": text, "voice_id": "ada"}])
        await caller.send(close_socket=True)
        await caller.until(is_final=True)


async def deepgram(gateway: Gateway, texts: Sequence[str]) -> None:
    rules = json.dumps(BY_ID).replace(" ", "")
    async with calling(gateway, f"/v1/speak?model=ada&encoding=linear16&pronunciations={rules}") as caller:
        for text in texts:
            await caller.send(type="Speak", text=text)
        await caller.send(type="Flush")
        await caller.until(type="Flushed")


async def cartesia(gateway: Gateway, texts: Sequence[str]) -> None:
    message = {"model_id": "sonic-3", "voice": "ada", "output_format": FORM, "pronunciation_dict_id": "dict_1"}
    async with calling(gateway, "/tts/websocket") as caller:
        for text in texts:
            await caller.send(**message, context_id="a", transcript=text, **{"continue": True})
        await caller.send(**message, context_id="a", transcript="")
        await caller.until(type="done")


async def realtime(gateway: Gateway, texts: Sequence[str]) -> None:
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="unused")
    async with client, client.realtime.connect(model="gpt-realtime") as connection:
        output: Any = {"voice": "ada", "pronunciations": BY_ID}
        await connection.session.update(session={"type": "realtime", "audio": {"output": output}})
        said: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "".join(texts)}]}
        await connection.conversation.item.create(item=said)
        await connection.response.create()
        async for event in connection:
            if event.type == "response.done":
                break


SOCKETS = [
    own_sentences,
    own_tokens,
    elevenlabs,
    elevenlabs_contexts,
    elevenlabs_dialogue,
    deepgram,
    cartesia,
    realtime,
]


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.__name__)
@pytest.mark.parametrize("texts", [[TEXT], [*TEXT]], ids=["at once", "one by one"])
def test_all_sockets_speak_by_it(keeper: Keeper, socket: Callable[..., Any], texts: list[str]) -> None:
    run(lambda gateway: socket(gateway, texts), keeper)
    assert " ".join(text.strip() for text in keeper.texts) == SPOKEN


def test_pieces_of_one_character_have_the_same_samples(keeper: Keeper) -> None:
    heard = list[tuple[bytes, Any]]()

    async def test(gateway: Gateway) -> None:
        for texts in ([TEXT], [*TEXT], [TEXT[:17], TEXT[17:]]):
            messages = await ours(gateway, texts, pronunciations=BY_ID)
            starts = [each for each in events_of(messages) if each["type"] == "audio.start"]
            heard.append((audio_of(messages), [(each["sentence_text"], each["start"], each["end"]) for each in starts]))

    run(test, keeper)
    assert heard[0] == heard[1] == heard[2] and len(heard[0][0]) > 0


def test_versions_and_changes(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone_gateway.speech.dictionaries.FRESH", 0.0)
    version = About.model_validate_json(keeper.kept["dict_1"].about).version

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(pronunciations=BY_ID)
            for rules in (WORDS, [Rule("SQL", "squirrel")]):
                keeper.keep("dict_1", rules)
                await caller.send("input.text", text="SQL")
                await caller.send("input.done")
                await caller.until("session.done")
            await caller.configure(pronunciations=[{"dictionary": "dict_1", "version": version}])
            error = (await caller.until("error"))[-1]["error"]
            assert error["code"] == "dictionary_not_found" and version in error["message"]

    run(test, keeper)
    assert keeper.texts == ["sequel", "squirrel"], "an utterance has the rules of its beginning"


def test_defaults_by_voice_and_language(keeper: Keeper) -> None:
    keeper.keep("dict_2", [Rule("tea", "chai")], default=True)
    keeper.keep("dict_3", [Rule("SQL", "Ess Ku Ell")], default=True, language="de")
    keeper.keep("dict_4", [Rule("SQL", "Bob's")], default=True, voice="bob")

    async def test(gateway: Gateway) -> None:
        await ours(gateway, ["SQL ", "and tea"])
        await ours(gateway, ["SQL and tea"], language="German", input_type="text")
        await ours(gateway, ["SQL and tea"], voice="bob")
        await ours(gateway, ["<speak>SQL<voice name='bob'>SQL</voice></speak>"])
        await ours(gateway, ["SQL and tea"], pronunciations=BY_ID)

    run(test, keeper)
    assert keeper.texts == ["SQL and chai", "Ess Ku Ell and chai", "Bob's and chai", "SQL", "Bob's", "sequel and chai"]


def test_without_a_default_the_text_goes_as_it_is(keeper: Keeper) -> None:
    run(lambda gateway: ours(gateway, [TEXT]), keeper)
    assert keeper.texts == ["SQL is not MySQL, New York is no New York City, and tea.", "SQL"]


@pytest.mark.parametrize("strict", [False, True])
def test_phonemes_are_told(keeper: Keeper, strict: bool) -> None:
    keeper.keep("dict_1", [Rule("tea", "", phoneme="tiː")])
    found: dict[str, Any] = {}

    async def test(gateway: Gateway) -> None:
        found.update((each["type"], each) for each in events_of(await ours(gateway, ["tea"], pronunciations=BY_ID)))

    run(test, keeper, strict=strict)
    told = found["error"]["error"]["message"] if strict else found["warning"]["message"]
    assert "1 phonemes" in told and ("warning" in found) != strict


Refused = Callable[[Gateway], Any]


@asynccontextmanager
async def refusing(gateway: Gateway, path: str, message: Mapping[str, Any]) -> AsyncIterator[str]:
    async with calling(gateway, path) as caller:
        await caller.send(**message)
        told, _ = await caller.rest()
        yield json.dumps(told)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/v1/text-to-speech/ada/stream-input",
            {"text": "SQL ", "pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "dict_0"}]},
        ),
        ("/v1/speak?pronunciations=[{%22dictionary%22:%22dict_0%22}]", {"type": "Speak", "text": "SQL "}),
    ],
)
def test_an_unknown_dictionary_ends_a_vendors_session(keeper: Keeper, path: str, message: dict[str, Any]) -> None:
    async def test(gateway: Gateway) -> None:
        async with refusing(gateway, path, message) as told:
            assert "dict_0" in told and "dictionary_not_found" in told

    run(test, keeper)
    assert not keeper.speeches


def test_our_session_goes_on_behind_an_unknown_dictionary(keeper: Keeper) -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(pronunciations=BY_ID)
            await caller.configure(pronunciations=[{"dictionary": "dict_0"}])
            assert (await caller.until("error"))[-1]["error"]["code"] == "dictionary_not_found"
            await caller.send("input.text", text="SQL")
            await caller.send("input.done")
            await caller.until("session.done")

    run(test, keeper)
    assert keeper.texts == ["sequel"], "the refused configuration has no effect"


def test_a_dictionary_that_is_slow_to_come_holds_no_other_session(keeper: Keeper) -> None:
    reading = asyncio.Event()

    async def slow(id: str) -> KeptDictionary:
        await reading.wait()
        return keeper.kept[id]

    async def test(gateway: Gateway) -> None:
        keeper.dictionary = slow  # type: ignore[method-assign]
        waits = asyncio.create_task(ours(gateway, ["SQL"], pronunciations=BY_ID))
        await ours(gateway, ["It is not SQL."])
        assert keeper.texts == ["It is not SQL."]
        reading.set()
        await waits

    run(test, keeper)
    assert keeper.texts[1:] == ["sequel"]
