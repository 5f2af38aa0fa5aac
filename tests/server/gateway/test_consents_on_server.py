"""OpenAI's recordings of consents, by its client as it comes, on the real server: kept, owned, erased."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import OpenAI
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789"
KEYS = f"""
{ALICE} speak,manage name=alice owner voices=4
{BOB} speak,manage name=bob owner
{BOB}-speaks speak name=bob owner
"""
PATH = "/v1/audio/voice_consents"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consents")


@pytest.fixture(scope="module")
def keyed(server: TritonServer, folder: Path) -> Iterator[Gateway]:
    (folder / "keys").write_text(KEYS)
    audit = folder / "audit"
    with Gateway(
        server.url, folder / "log", "--api-keys-file", str(folder / "keys"), "--audit-log", str(audit)
    ) as gateway:
        yield gateway
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def alice(keyed: Gateway, client: Client) -> Iterator[OpenAI]:
    with closing(OpenAI(base_url=f"{keyed.url}/v1", api_key=ALICE, max_retries=0)) as openai:
        yield openai
    for consent in client.consents():
        client.delete_consent(consent.id)


@pytest.fixture
def bob(keyed: Gateway) -> Iterator[OpenAI]:
    with closing(OpenAI(base_url=f"{keyed.url}/v1", api_key=BOB, max_retries=0)) as openai:
        yield openai


def record(openai: OpenAI, clip: bytes, name: str = "Ada (studio): yes!", language: str = "en-US") -> Any:
    return openai.audio.voice_consents.create(name=name, language=language, recording=("yes.wav", clip, "audio/wav"))


def test_all_calls(alice: OpenAI, reference_clip: bytes, client: Client) -> None:
    consents = alice.audio.voice_consents
    made = record(alice, reference_clip)
    assert (made.object, made.name, made.language) == ("audio.voice_consent", "Ada (studio): yes!", "en-US")
    assert consents.retrieve(made.id) == made and [*consents.list()] == [made]
    renamed = consents.update(made.id, name="Ada")
    assert renamed == made.model_copy(update={"name": "Ada"}) == consents.retrieve(made.id)
    voice = alice.audio.voices.create(name="Adelheid", audio_sample=("a.wav", reference_clip), consent=made.id)
    try:
        assert client.get("Adelheid").consent == made.id
        assert made.id not in {each.name for each in client.list()}
        gone = consents.delete(made.id)
        assert (gone.id, gone.deleted, gone.object) == (made.id, True, "audio.voice_consent")
        for call in (consents.retrieve, consents.delete):
            with pytest.raises(sdk.NotFoundError, match=made.id):
                call(made.id)
        with pytest.raises(sdk.NotFoundError):
            consents.update(made.id, name="Ada")
        assert client.get("Adelheid").consent == made.id, "the voice stays"
    finally:
        alice.audio.voices.delete(voice.id)


def test_pages(alice: OpenAI, reference_clip: bytes) -> None:
    made = [record(alice, reference_clip, str(number)).id for number in range(4)]
    assert [each.id for each in alice.audio.voice_consents.list(limit=1)] == made, "page by page, to an end"
    page = alice.audio.voice_consents.list(limit=3)
    assert page.has_more and [each.id for each in page.data] == made[:3]
    alice.audio.voice_consents.delete(made[2])
    assert [each.id for each in alice.audio.voice_consents.list(after=made[2])] == made[3:], "behind one that is gone"
    record(alice, reference_clip, "another")
    with pytest.raises(sdk.RateLimitError, match="4 consents"):
        record(alice, reference_clip, "too many")


def test_another_owner_has_none_of_it(alice: OpenAI, bob: OpenAI, reference_clip: bytes) -> None:
    made = record(alice, reference_clip)
    consents = bob.audio.voice_consents
    assert [*consents.list()] == []
    for attempt in (consents.retrieve, consents.delete, lambda id: consents.update(id, name="mine")):
        with pytest.raises(sdk.NotFoundError) as refused:
            attempt(made.id)
        assert refused.value.code == "consent_not_found"
    for consent in (made.id, "cons_0", f"{made.id}0", "cons_/../"):
        with pytest.raises(sdk.BadRequestError) as unknown:
            bob.audio.voices.create(name="Bert", audio_sample=("a.wav", reference_clip), consent=consent)
        assert unknown.value.param == "consent"
    assert alice.audio.voice_consents.retrieve(made.id) == made


@pytest.mark.parametrize(
    ("method", "path", "sent", "status"),
    [
        ("POST", PATH, {"data": {"name": "a", "language": "en"}}, 400),
        ("POST", PATH, {"data": {"name": "a", "language": "en"}, "files": {"recording": b""}}, 400),
        ("POST", PATH, {"data": {"name": "a", "language": "en"}, "files": {"recording": b"RIFF no sound"}}, 400),
        ("POST", PATH, {"data": {"name": "a", "language": "no language"}, "files": {"recording": None}}, 400),
        ("POST", PATH, {"data": {"name": " ", "language": "en"}, "files": {"recording": None}}, 400),
        ("POST", PATH, {"data": {"name": "a" * 5000, "language": "en"}, "files": {"recording": None}}, 400),
        ("POST", PATH, {"data": {"name": "a\0", "language": "en"}, "files": {"recording": None}}, 400),
        ("POST", PATH, {"data": {"name": "a", "language": "en", "recording": "text"}}, 400),
        ("POST", PATH, {"json": {"name": "a", "language": "en", "recording": "text"}}, 400),
        ("POST", PATH, {"data": {"name": "a", "language": "en"}, "files": {"recording": bytes(80_000_000)}}, 413),
        ("POST", f"{PATH}/cons_0", {"json": {"name": "a"}}, 404),
        ("POST", f"{PATH}/{{id}}", {"json": {"name": 3}}, 400),
        ("POST", f"{PATH}/{{id}}", {"json": {"name": ""}}, 400),
        ("POST", f"{PATH}/{{id}}", {"json": {}}, 400),
        ("POST", f"{PATH}/{{id}}", {"json": ["a"]}, 400),
        ("GET", f"{PATH}?limit=0", {}, 400),
        ("GET", f"{PATH}?limit=101", {}, 400),
        ("GET", f"{PATH}?limit=x", {}, 400),
        ("GET", f"{PATH}?after={'x' * 300}", {}, 400),
        ("GET", f"{PATH}?after=%00", {}, 400),
        ("GET", f"{PATH}/Ada", {}, 404),
        ("GET", f"{PATH}/{'x' * 5000}", {}, 404),
        ("DELETE", f"{PATH}/%2e%2e", {}, 404),
        ("PUT", f"{PATH}/{{id}}", {}, 405),
    ],
)
def test_hostile_requests(
    keyed: Gateway, alice: OpenAI, reference_clip: bytes, method: str, path: str, sent: dict[str, Any], status: int
) -> None:
    made = record(alice, reference_clip)
    files = {name: ("a.wav", reference_clip if data is None else data) for name, data in sent.get("files", {}).items()}
    headers = {"authorization": f"Bearer {ALICE}"}
    url = keyed.url + path.format(id=made.id)
    given = {**sent, **({"files": files} if files else {})}
    answer = httpx.request(method, url, headers=headers, timeout=60.0, **given)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"] and error["code"] and error["type"]
    assert [*alice.audio.voice_consents.list()] == [made], "nothing is lost, and nothing is added"


def test_the_audit_log_has_it(alice: OpenAI, bob: OpenAI, reference_clip: bytes, folder: Path) -> None:
    made = record(alice, reference_clip).id
    alice.audio.voice_consents.update(made, name="Ada")
    with pytest.raises(sdk.NotFoundError):
        bob.audio.voice_consents.delete(made)
    alice.audio.voice_consents.delete(made)

    def acts() -> list[tuple[str, ...]]:
        lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
        return [(each["key"], each["action"], each["outcome"]) for each in lines if each["voice"] == made]

    mine = [("alice", action, "ok") for action in ("consent", "consent", "delete")]
    until(lambda: acts() == [*mine[:2], ("bob", "delete", "consent_not_found"), mine[2]])


def test_keys(keyed: Gateway) -> None:
    for key, status in (("wrong-key-0123456789", 401), (f"{BOB}-speaks", 403)):
        answer = httpx.get(keyed.url + PATH, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status and answer.json()["error"]["message"]
