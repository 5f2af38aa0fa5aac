"""Kept dictionaries on the real server, by ElevenLabs' client as it comes: spoken, the same at two gateways, and still
there after kill -9."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from elevenlabs import PronunciationDictionaryVersionLocator as Locator
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from voice_clone_client import Client, VoiceCloneError
from websockets.sync.client import connect

from perf.bench.gateway_process import Gateway
from tests.support.servers.family_models import make_repository
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

ID = "dict_1"
SQL: Any = {"type": "alias", "string_to_replace": "SQL", "alias": "sequel"}


@pytest.fixture(scope="module")
def gateways(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    folder = tmp_path_factory.mktemp("dictionaries")
    options = ("--allow-partial", "true")
    with (
        Gateway(server.url, folder / "one", *options) as one,
        Gateway(server.url, folder / "other", *options) as other,
    ):
        yield [one, other]
    assert "Traceback" not in (folder / "one").read_text() + (folder / "other").read_text()


@pytest.fixture
def clients(gateways: list[Gateway], client: Client) -> Iterator[list[ElevenLabs]]:
    with httpx.Client(timeout=60) as http:
        yield [ElevenLabs(base_url=gateway.url, api_key="unused", httpx_client=http) for gateway in gateways]
    for dictionary in client.dictionaries():
        client.delete_dictionary(dictionary.id)


def spoken(elevenlabs: ElevenLabs, voice: str, text: str, *locators: Locator) -> bytes:
    return b"".join(
        elevenlabs.text_to_speech.convert(
            voice, text=text, seed=3, output_format="pcm_24000", pronunciation_dictionary_locators=locators
        )
    )


def test_what_is_replaced_sounds_as_what_is_written(clients: list[ElevenLabs], voice: str, client: Client) -> None:
    one, other = clients
    made = one.pronunciation_dictionaries.create_from_rules(name="ours", rules=[SQL])
    named = Locator(pronunciation_dictionary_id=made.id)
    as_written = spoken(one, voice, "The SQL is short.")
    replaced = spoken(one, voice, "The sequel is short.")
    assert as_written != replaced == spoken(one, voice, "The SQL is short.", named)
    assert spoken(other, voice, "The SQL is short.", named) == replaced, "the other gateway has it at once"
    changed = other.pronunciation_dictionaries.rules.set(made.id, rules=[])
    assert spoken(other, voice, "The SQL is short.", named) == as_written
    until(lambda: spoken(one, voice, "The SQL is short.", named) == as_written)
    first = Locator(pronunciation_dictionary_id=made.id, version_id=made.version_id)
    assert spoken(one, voice, "The SQL is short.", first) == replaced, "a version never changes"
    assert changed.version_rules_num == 0
    with pytest.raises(ApiError) as unknown:
        spoken(one, voice, "SQL", Locator(pronunciation_dictionary_id="dict_0"))
    assert unknown.value.status_code == 404
    assert made.id not in {each.name for each in client.list()}


def test_a_socket_says_what_is_written(gateways: list[Gateway], clients: list[ElevenLabs], voice: str) -> None:
    made = clients[0].pronunciation_dictionaries.create_from_rules(name="ours", rules=[SQL])
    url = gateways[0].url.replace("http", "ws") + "/v1/audio/speech/stream"

    def heard(pieces: Iterable[str], **more: Any) -> bytes:
        with connect(url, proxy=None) as socket:
            config = {"type": "session.config", "voice": voice, "seed": 3, "max_frames": 30, **more}
            socket.send(json.dumps(config))
            for piece in pieces:
                socket.send(json.dumps({"type": "input.text", "text": piece}))
            socket.send(json.dumps({"type": "input.done"}))
            audio = b""
            while True:
                message = socket.recv(WAIT)
                if isinstance(message, bytes):
                    audio += message
                elif (event := json.loads(message))["type"] in ("session.done", "error"):
                    assert event["type"] == "session.done" and not event.get("failed"), event
                    return audio

    named = [{"dictionary": made.id}]
    wanted = heard(["The sequel is short."], pronunciations=named)
    for pieces in (["The SQL is short."], [*"The SQL is short."]):
        assert (heard(pieces, pronunciations=named) == wanted) is True
    assert len(wanted) > 0 and heard(["The SQL is short."]) != wanted


class Writer(threading.Thread):
    """Lets a dictionary grow by a line with each change, until the server dies.

    Args:
        known: of how many lines it is; 0: there is none.
    """

    def __init__(self, client: Client, known: int) -> None:
        super().__init__()
        self._client = client
        self.acknowledged = self.begun = known

    def run(self) -> None:
        with suppress(VoiceCloneError):
            kept = self._client.dictionary(ID) if self.acknowledged else None
            while True:
                self.begun = self.acknowledged + 1
                generation = None if kept is None else kept.generation
                kept = self._client.keep_dictionary(ID, lines(self.begun), about="x", generation=generation)
                self.acknowledged = self.begun


def lines(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What was acknowledged is there after kill -9, and of what was under way nothing is there in part."""
    models, draw = make_repository(tmp_path / "models", ("qwen3_tts",)), random.Random(7)

    def cycle(before: Writer | None) -> Writer:
        server = TritonServer(None, tmp_path / "voices", models=models, log=tmp_path / "log").start()
        with closing(Client(server.url)) as client:
            known = 0
            if before is not None:
                content = client.dictionary(ID).content or b""
                known = content.count(b"\n")
                assert content == lines(known) and before.acknowledged <= known <= before.begun
            writer = Writer(client, known)
            writer.start()
            until(lambda: writer.acknowledged > known or not writer.is_alive())
            time.sleep(draw.uniform(0.0, 0.2))
            server.kill()
            writer.join(WAIT)
            assert not writer.is_alive() and writer.acknowledged > known
        server.stop()
        return writer

    writer: Writer | None = None
    for _ in range(5):
        writer = cycle(writer)
