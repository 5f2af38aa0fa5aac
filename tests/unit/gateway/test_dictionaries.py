"""Dictionaries that are kept: by ElevenLabs' client as it comes, in speech that names them and that does not.

The voices and the dictionaries are those of a true speaker cache; the speech is a double's, which tells what was said.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import httpx2
import pytest
from elevenlabs import PronunciationDictionaryVersionLocator
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from voice_clone_client import ConnectionFailed, KeptDictionary
from voice_clone_gateway.schemas import SpeechRequest
from voice_clone_gateway.speech import dictionaries as kept
from voice_clone_text.pls import read

from tests.support.doubles.fakes import Voices
from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Failure, Server, listening
from tests.support.waiting import until
from voice_clone.errors import VoiceCloneError

pytestmark = pytest.mark.thorough

PATH, SPEECH, TEXT = "/v1/pronunciation-dictionaries", "/v1/audio/speech", "/v1/audio/text"
KEYS = """
alice-key-0123456789 speak,manage name=alice owner voices=4
bob-key-0123456789 speak,manage name=bob owner
bob-speaks-0123456789 speak name=bob owner
operator-key-0123456789 speak,manage name=operator
"""
SQL = {"type": "alias", "string_to_replace": "SQL", "alias": "sequel"}
IPA = {"type": "phoneme", "string_to_replace": "tea", "phoneme": "tiː", "alphabet": "ipa"}

Client = Callable[..., ElevenLabs]


def answers_of(voices: Voices) -> Callable[[dict[str, Any]], dict[str, bytes]]:
    """What a server answers that has a true speaker cache."""

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        options = json.loads(inputs.get("options", "{}"))
        texts = {name: inputs[name].decode() for name in ("name", "consent", "description") if name in inputs}
        try:
            reply = voices.call(inputs["operation"].decode(), options, **texts, audio=inputs.get("audio"))
        except VoiceCloneError as error:
            raise Failure(grpc.StatusCode.INVALID_ARGUMENT, error.message) from None
        return {"result": json.dumps(reply.result).encode(), "artifacts": reply.artifacts or b""}

    return answer


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Server]:
    voices = Voices(tmp_path / "voices")
    with listening() as server, closing(voices.cache):
        server.answer, server.keeps_dictionaries = answers_of(voices), True
        yield server


@pytest.fixture
def gateway(triton: Server, serve: Serve, tmp_path: Path) -> httpx2.Client:
    (tmp_path / "keys").write_text(KEYS)
    return serve(triton.url, api_keys_file=str(tmp_path / "keys"), audit_log=str(tmp_path / "audit"))


@pytest.fixture
def client(gateway: httpx2.Client) -> Iterator[Client]:
    with httpx.Client(timeout=30, trust_env=False) as http:
        yield lambda name="alice", of=gateway: ElevenLabs(
            base_url=str(of.base_url).rstrip("/"), api_key=f"{name}-key-0123456789", httpx_client=http
        )


def said(triton: Server, gateway: httpx2.Client, text: str = "SQL and tea", key: str = "alice", **values: Any) -> str:
    """What was spoken of a text."""
    triton.calls.clear()
    headers = {"authorization": f"Bearer {key}-key-0123456789"}
    body = {"input": text, "voice": "Ada", "response_format": "pcm", **values}
    answer = gateway.post(SPEECH, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return " ".join(inputs["text"].decode() for _, inputs in triton.speeches)


def by(*dictionaries: Any) -> list[dict[str, Any]]:
    return [{"dictionary": each} for each in dictionaries]


def test_all_calls_of_their_client(client: Client) -> None:
    calls = client().pronunciation_dictionaries
    rules = [SQL, {**IPA, "case_sensitive": False, "word_boundaries": False}]
    made = calls.create_from_rules(rules=rules, name="Ours", description="of work")  # type: ignore[arg-type]
    assert (made.name, made.description, made.created_by, made.version_rules_num) == ("Ours", "of work", "alice", 2)
    [listed] = calls.list().pronunciation_dictionaries
    shown = calls.get(made.id)
    for each in (listed, shown):
        assert (each.id, each.latest_version_id, each.latest_version_rules_num) == (made.id, made.version_id, 2)
    assert [rule.model_dump() for rule in shown.rules] == [
        {**SQL, "case_sensitive": True, "word_boundaries": True},
        {**rules[1]},
    ]
    first = read(b"".join(calls.download(made.id, made.version_id)))
    assert [(rule.term, rule.alias, rule.phoneme) for rule in first.rules] == [
        ("SQL", "sequel", None),
        ("tea", "", "tiː"),
    ]
    renamed = calls.update(made.id, name="Theirs")
    assert (renamed.name, renamed.latest_version_id) == ("Theirs", made.version_id), "no new version"
    added = calls.rules.add(
        made.id,
        rules=[{"type": "alias", "string_to_replace": "tea", "alias": "chai"}],  # type: ignore[list-item]
    )
    removed = calls.rules.remove(made.id, rule_strings=["SQL", "unknown"])
    assert (added.version_rules_num, removed.version_rules_num) == (2, 1), "the older one of tea is replaced"
    changed = calls.rules.set(made.id, rules=[SQL])  # type: ignore[list-item]
    assert len({made.version_id, added.version_id, removed.version_id, changed.version_id}) == 4
    assert read(b"".join(calls.download(made.id, made.version_id))) == first, "a version never changes"
    file = b"".join(calls.download(made.id, added.version_id))
    again = calls.create_from_file(name="Again", file=("a.pls", file, "application/pls+xml"))
    assert read(b"".join(calls.download(again.id, again.version_id))) == read(file)
    assert [each.name for each in calls.list().pronunciation_dictionaries] == ["Again", "Theirs"], "the newest first"
    calls.update(again.id, archived=True)
    assert [each.id for each in calls.list().pronunciation_dictionaries] == [made.id]
    archived, _ = calls.list(include_archived=True, sort="name").pronunciation_dictionaries[::-1]
    assert archived.id == again.id and archived.archived_time_unix


def test_pages_quota_and_versions(client: Client) -> None:
    calls = client().pronunciation_dictionaries
    made = [calls.create_from_rules(rules=[SQL], name=name).id for name in "dbca"]  # type: ignore[list-item]
    page = calls.list(page_size=3, sort="name", sort_direction="ascending")
    assert [each.name for each in page.pronunciation_dictionaries] == [*"abc"] and page.has_more
    rest = calls.list(page_size=3, sort="name", sort_direction="ascending", cursor=page.next_cursor)
    assert [each.id for each in rest.pronunciation_dictionaries] == [made[0]] and not rest.has_more
    with pytest.raises(ApiError, match="4 dictionaries"):
        calls.create_from_rules(rules=[SQL], name="e")  # type: ignore[list-item]
    versions = [calls.rules.add(made[0], rules=[SQL]).version_id for _ in range(21)]  # type: ignore[list-item]
    assert b"sequel" in b"".join(calls.download(made[0], versions[1]))
    with pytest.raises(ApiError) as gone:
        b"".join(calls.download(made[0], versions[0]))
    assert gone.value.status_code == 404


def test_a_speech_names_them(triton: Server, gateway: httpx2.Client, client: Client) -> None:
    calls = client().pronunciation_dictionaries
    one = calls.create_from_rules(rules=[SQL], name="one")  # type: ignore[list-item]
    two = calls.create_from_rules(
        rules=[{**SQL, "alias": "S Q L"}, {**SQL, "string_to_replace": "tea", "alias": "chai"}],  # type: ignore[list-item]
        name="two",
    )
    assert said(triton, gateway) == "SQL and tea", "none is named"
    assert said(triton, gateway, pronunciations=by(one.id, two.id)) == "sequel and chai"
    assert said(triton, gateway, pronunciations=by(two.id, one.id)) == "S Q L and chai"
    own = {"string_to_replace": "SQL", "alias": "mine"}
    assert said(triton, gateway, pronunciations=[*by(two.id), own]) == "mine and chai", "its own rules come first"
    segments = [{"text": "SQL"}, {"text": "<speak>my <sub alias='SQL'>x</sub> SQL</speak>"}]
    assert said(triton, gateway, "", segments=segments, pronunciations=by(one.id)) == "sequel my SQL sequel"
    plan = gateway.post(
        TEXT,
        json={"input": "SQL", "pronunciations": by(one.id)},
        headers={"authorization": "Bearer alice-key-0123456789"},
    ).json()
    assert plan["items"][0]["text"] == "sequel" and plan["items"][0]["replaced"]
    changed = calls.rules.set(one.id, rules=[{**SQL, "alias": "new"}])  # type: ignore[list-item]
    assert said(triton, gateway, pronunciations=by(one.id)) == "new and tea", "at once"
    old = [{"dictionary": one.id, "version": one.version_id}]
    assert said(triton, gateway, pronunciations=old) == "sequel and tea"

    def spoken(*locators: tuple[str, str | None]) -> str:
        triton.calls.clear()
        named = [
            PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=a, version_id=b) for a, b in locators
        ]
        heard = client().text_to_speech.convert("Ada", text="SQL and tea", pronunciation_dictionary_locators=named)
        assert b"".join(heard)
        return " ".join(inputs["text"].decode() for _, inputs in triton.speeches)

    assert spoken((one.id, None)) == "new and tea" == spoken((one.id, changed.version_id))
    assert spoken((one.id, one.version_id), (two.id, None)) == "sequel and chai"
    with pytest.raises(ApiError) as unknown:
        spoken((one.id, "0"))
    assert unknown.value.status_code == 404 and one.id in str(unknown.value.body)
    with pytest.raises(ApiError) as many:
        spoken(*[(one.id, None)] * 4)
    assert many.value.status_code == 400


def test_defaults_come_by_voice_owner_and_language(triton: Server, gateway: httpx2.Client, client: Client) -> None:
    http = httpx2.Client(base_url=gateway.base_url, headers={"xi-api-key": "alice-key-0123456789"}, trust_env=False)

    def make(alias: str, **details: Any) -> str:
        body = {"name": alias, "rules": [{**SQL, "alias": alias}], **details}
        return str(http.post(f"{PATH}/add-from-rules", json=body).json()["id"])

    with http:
        assert said(triton, gateway, "SQL") == "SQL"
        make("german", default=True, language="de")
        assert said(triton, gateway, "SQL") == "SQL" == said(triton, gateway, "SQL", language="English")
        assert said(triton, gateway, "SQL", language="de-AT") == "german"
        assert said(triton, gateway, "<speak>SQL <lang xml:lang='de'>SQL</lang></speak>") == "SQL german"
        owners = make("all", default=True)
        assert said(triton, gateway, "SQL") == "all" == said(triton, gateway, "SQL", language="de")
        make("Ada's", default=True, voice="Ada")
        assert said(triton, gateway, "SQL") == "Ada's" == said(triton, gateway, "SQL", voice=" ada")
        assert said(triton, gateway, "SQL", voice="Bob") == "all"
        segments = [{"text": "SQL", "voice": "Bob"}, {"text": "SQL"}]
        assert said(triton, gateway, "", segments=segments) == "all Ada's"
        for voice in ("Ada", "Bob", "Carl"):
            assert said(triton, gateway, "Bob: SQL\nAda: SQL", voice=voice, input_type="script") == "all Ada's"
        assert said(triton, gateway, "SQL", voice=None, speaker_embedding=[0.5] * 8) == "all"
        assert said(triton, gateway, "SQL", pronunciations=by(make("named"))) == "named"
        assert said(triton, gateway, "SQL", key="bob") == "SQL" == said(triton, gateway, "SQL", key="operator")
        assert http.patch(f"{PATH}/{owners}", json={"default": False}).json()["default"] is False
        assert said(triton, gateway, "SQL", voice="Bob") == "SQL", "at once"


def test_phonemes_are_told(triton: Server, gateway: httpx2.Client, client: Client) -> None:
    made = client().pronunciation_dictionaries.create_from_rules(rules=[IPA, SQL], name="é")  # type: ignore[list-item]
    answer = gateway.post(
        SPEECH,
        json={"input": "SQL tea", "voice": "Ada", "pronunciations": by(made.id)},
        headers={"authorization": "Bearer alice-key-0123456789"},
    )
    assert "1 phonemes" in answer.headers["x-speech-warning"]
    assert [inputs["text"] for _, inputs in triton.speeches] == [b"sequel tea"]


def test_owners(triton: Server, gateway: httpx2.Client, client: Client) -> None:
    made = client().pronunciation_dictionaries.create_from_rules(rules=[SQL], name="one")  # type: ignore[list-item]
    bob, operator = client("bob").pronunciation_dictionaries, client("operator").pronunciation_dictionaries
    assert bob.list().pronunciation_dictionaries == []
    attempts: list[Callable[[], Any]] = [
        lambda: bob.get(made.id),
        lambda: bob.update(made.id, name="mine"),
        lambda: bob.rules.set(made.id, rules=[]),
        lambda: b"".join(bob.download(made.id, made.version_id)),
    ]
    for attempt in attempts:
        with pytest.raises(ApiError) as refused:
            attempt()
        assert refused.value.status_code == 404
    for key in ("bob", "alice"):
        headers = {"authorization": f"Bearer {key}-key-0123456789"}
        for dictionary in (made.id if key == "bob" else "dict_0", "dict_/../", "x" * 64):
            body = {"input": "SQL", "voice": "Ada", "pronunciations": by(dictionary)}
            answer = gateway.post(SPEECH, json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "dictionary_not_found")
        assert gateway.delete(f"{PATH}/{made.id}", headers=headers).status_code == (404 if key == "bob" else 200)
    assert operator.list().pronunciation_dictionaries == []
    speaks = {"authorization": "Bearer bob-speaks-0123456789"}
    assert gateway.get(PATH, headers=speaks).status_code == 200
    assert gateway.post(f"{PATH}/add-from-rules", json={}, headers=speaks).status_code == 403


def test_what_is_deleted_is_gone(triton: Server, gateway: httpx2.Client, client: Client, tmp_path: Path) -> None:
    calls = client().pronunciation_dictionaries
    made = calls.create_from_rules(rules=[{**SQL, "alias": "a secret"}], name="one")  # type: ignore[list-item]
    assert said(triton, gateway, pronunciations=by(made.id)) == "a secret and tea"
    headers = {"authorization": "Bearer alice-key-0123456789"}
    assert gateway.delete(f"{PATH}/{made.id}", headers=headers).json() == {"status": "ok"}
    body = {"input": "SQL", "voice": "Ada", "pronunciations": by(made.id)}
    assert gateway.post(SPEECH, json=body, headers=headers).status_code == 404
    assert not [path for path in (tmp_path / "voices").rglob("*.safetensors") if b"secret" in path.read_bytes()]

    def acts() -> list[tuple[str, ...]]:
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        return [(each["key"], each["action"], each["outcome"]) for each in lines if each["voice"] == made.id]

    until(lambda: acts() == [("alice", "dictionary", "ok"), ("alice", "delete", "ok")])


def test_two_gateways(triton: Server, gateway: httpx2.Client, serve: Serve, client: Client, tmp_path: Path) -> None:
    """None of the changes of either is lost, and what is named is at most a second old."""
    other = serve(triton.url, api_keys_file=str(tmp_path / "keys"))
    ours, theirs = client().pronunciation_dictionaries, client(of=other).pronunciation_dictionaries
    made = ours.create_from_rules(rules=[SQL], name="one")  # type: ignore[list-item]
    assert said(triton, other, pronunciations=by(made.id)) == "sequel and tea", "one that is new is found at once"

    def add(number: int) -> Any:
        rule = {**SQL, "string_to_replace": f"word{number}"}
        return (ours, theirs)[number % 2].rules.add(made.id, rules=[rule])  # type: ignore[list-item]

    with ThreadPoolExecutor(4) as pool:
        versions = {each.version_id for each in pool.map(add, range(12))}
    assert len(versions) == 12
    assert {rule.string_to_replace for rule in ours.get(made.id).rules} == {"SQL", *(f"word{n}" for n in range(12))}
    ours.rules.set(made.id, rules=[{**SQL, "alias": "new"}])  # type: ignore[list-item]
    until(lambda: said(triton, other, pronunciations=by(made.id)) == "new and tea", 10 * kept.FRESH)
    headers = {"authorization": "Bearer alice-key-0123456789"}
    assert gateway.delete(f"{PATH}/{made.id}", headers=headers).status_code == 200
    body = {"input": "SQL", "voice": "Ada", "pronunciations": by(made.id)}
    until(lambda: other.post(SPEECH, json=body, headers=headers).status_code == 404, 10 * kept.FRESH)


@pytest.mark.parametrize(
    ("method", "path", "sent", "status"),
    [
        ("POST", "/add-from-rules", {"json": {"rules": [SQL]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [{**SQL, "type": "regex"}]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [{**SQL, "alias": None}]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [{**SQL, "string_to_replace": " "}]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [{**SQL, "string_to_replace": "a" * 201}]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [{**SQL, "alias": "\ud800"}]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "\ud800", "rules": [SQL]}}, 400),
        ("POST", "/add-from-rules", {"json": {"name": "a", "rules": [SQL] * 9000}}, 400),
        ("POST", "/add-from-file", {"data": {"name": "a"}}, 400),
        ("POST", "/add-from-file", {"data": {"name": "a"}, "files": {"file": b"<speak/>"}}, 400),
        ("POST", "/add-from-file", {"data": {"name": "a"}, "files": {"file": b"<!DOCTYPE lexicon><lexicon/>"}}, 400),
        ("POST", "/add-from-file", {"data": {"name": "a"}, "files": {"file": b"\xff\xfe\0"}}, 400),
        ("POST", "/add-from-file", {"data": {"name": "a"}, "files": {"file": bytes(5 << 20)}}, 400),
        ("POST", "/{id}/set-rules", {"json": {"rules": SQL}}, 400),
        ("POST", "/dict_0/set-rules", {"json": {"rules": []}}, 404),
        ("POST", "/{id}/remove-rules", {"json": {}}, 400),
        ("PATCH", "/{id}", {"json": {"name": 3}}, 400),
        ("PATCH", "/Ada", {"json": {"name": "a"}}, 404),
        ("GET", "/{id}/x/download", {}, 404),
        ("GET", "/%2e%2e", {}, 404),
        ("GET", "?page_size=0", {}, 400),
        ("GET", "?cursor=x", {}, 400),
    ],
)
def test_hostile_requests(
    gateway: httpx2.Client, client: Client, method: str, path: str, sent: dict[str, Any], status: int
) -> None:
    calls = client().pronunciation_dictionaries
    made = calls.create_from_rules(rules=[SQL], name="one")  # type: ignore[list-item]
    given = dict(sent)
    if "json" in given:
        given["content"] = json.dumps(given.pop("json")).encode()
        given["headers"] = {"content-type": "application/json"}
    if "files" in given:
        given["files"] = {name: ("a.pls", io.BytesIO(data)) for name, data in given["files"].items()}
    with httpx2.Client(base_url=gateway.base_url, headers={"xi-api-key": "alice-key-0123456789"}) as http:
        answer = http.request(method, PATH + path.format(id=made.id), **given)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]["message"]
    [left] = calls.list().pronunciation_dictionaries
    assert (left.id, left.latest_version_id) == (made.id, made.version_id), "nothing is lost, and nothing is added"


def test_what_no_gateway_has_written(triton: Server, gateway: httpx2.Client, client: Client) -> None:
    """Who reaches the server itself may keep anything there."""
    head = b'[["a", 1, 9]]\n'
    contents = [
        b"words",
        b"[]\n",
        b"{}\n",
        b'[["a"]]\n',
        b"[[1, 2, 3]]\n",
        head + b"[1,2,3,4]",
        head + b"[[], 5]\n",
        head,
    ]
    about = json.dumps({"name": "x", "version": "a"})
    for number, content in enumerate(contents):
        options = {"about": about if number else "no JSON", "owner": "alice"}
        call = {"operation": b"keep_dictionary", "name": b"dict_%d" % number, "audio": content}
        triton.answer({**call, "options": json.dumps(options).encode()})
    headers = {"authorization": "Bearer alice-key-0123456789"}
    assert said(triton, gateway) == "SQL and tea"
    for number in range(len(contents)):
        body = {"input": "SQL", "voice": "Ada", "pronunciations": by(f"dict_{number}")}
        for answer in (
            gateway.post(SPEECH, json=body, headers=headers),
            gateway.get(f"{PATH}/dict_{number}", headers=headers),
            gateway.post(f"{PATH}/dict_{number}/add-rules", json={"rules": [SQL]}, headers=headers),
        ):
            assert answer.status_code in (200, 400, 404), (number, answer.text)


def test_a_failure_is_not_kept() -> None:
    """Not even where the caller has left for whom the dictionary was read."""

    async def test() -> None:
        found = KeptDictionary("dict_1", 1, 0.0, None, json.dumps({"name": "x", "version": "a"}))
        reading, failing = asyncio.Event(), asyncio.Event()

        class Caller:
            owner = None

            async def dictionaries(self, **page: Any) -> list[KeptDictionary]:
                return [found]

            async def dictionary(self, id: str) -> KeptDictionary:
                if not reading.is_set():
                    reading.set()
                    await failing.wait()
                    raise ConnectionFailed("the server is away")
                return replace(found, content=b'[["a", 1, 30]]\n["SQL", "sequel", true, true]\n')

        caller: Any = Caller()
        request = SpeechRequest.model_validate({"input": "SQL", "voice": "Ada", "pronunciations": by("dict_1")})
        dictionaries, services = kept.Dictionaries(), cast(Any, None)
        leaves = asyncio.create_task(dictionaries.chosen(services, caller, request))
        await asyncio.wait_for(reading.wait(), 10)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        failing.set()
        for _ in range(5):
            await asyncio.sleep(0)
        [one] = (await dictionaries.chosen(services, caller, request)).dictionaries
        assert one.dictionary.size == 1

    asyncio.run(test())
