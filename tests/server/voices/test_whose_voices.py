"""Three owners and the operator change voices at random, beside speech: each has its own, and the audit log is true.

Each upload is a tone of its own, so the clip of a voice says whose it is.
"""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import psycopg
import pytest
import soundfile
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.official.postgres import Databases
from tests.support.same_audio import is_same_audio
from tests.support.servers.running import SETTINGS
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

VOICES, SPEECH, BUNDLE = "/v1/audio/voices", "/v1/audio/speech", "/v1/audio/bundle"
OWNERS = ("alice", "bob", "carol")
PLAIN = ("one", "two", "three", "four")
RESERVED = ("House", "alloy", "default", "aura-2-thalia", "Aura-x")
HELD = ("anna", "ANNA", "Ada")
"""The operator's voice, and its alias."""
GATEWAY = ("--default-voice", "House")
TAKEN = {"voice_exists", "name_reserved"}
# All that the table of voices has ever had, for a test of all states, and not of the last one alone.
WATCH = """
    CREATE TABLE voice_clone.seen (record jsonb);
    CREATE FUNCTION voice_clone.see() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO voice_clone.seen VALUES (NEW.record); RETURN NEW; END $$;
    CREATE TRIGGER see AFTER INSERT OR UPDATE ON voice_clone.voice FOR EACH ROW EXECUTE FUNCTION voice_clone.see();
"""
UNWATCH = "DROP TRIGGER see ON voice_clone.voice; DROP FUNCTION voice_clone.see; DROP TABLE voice_clone.seen"


def tone(number: int) -> bytes:
    """A clip of one second; another one for each number."""
    file = io.BytesIO()
    samples = 0.3 * np.sin(2 * np.pi * (100 + number) * np.arange(16000) / 16000)
    soundfile.write(file, samples, 16000, format="WAV", subtype="PCM_16")
    return file.getvalue()


class Place(NamedTuple):
    """Servers with one set of voices, and a gateway of each."""

    servers: list[TritonServer]
    gateways: list[Gateway]
    audits: list[Path]
    dsn: str | None


@pytest.fixture(params=["files", "postgresql"])
def place(request: pytest.FixtureRequest, checkpoint_folder: CheckpointFactory, tmp_path: Path) -> Iterator[Place]:
    checkpoint, environment, dsn = checkpoint_folder("tiny", 0), dict(SETTINGS), None
    if request.param == "postgresql":
        databases: Databases = request.getfixturevalue("databases")
        dsn = databases.take()
        environment |= {"VOICE_CLONE_VOICE_STORE": dsn, "VOICE_CLONE_VOICE_STORE_TIMEOUT": "20"}
    keys = [f"key-{name} speak,manage name={name} owner" for name in (*OWNERS, "dora")]
    (tmp_path / "keys").write_text("\n".join([*keys, "key-desk speak,manage name=desk"]))
    logs = [tmp_path / name for name in ("log-a", "log-b")[: 1 if dsn is None else 2]]
    voices = tmp_path / "voices" if dsn is None else None
    servers = [TritonServer(checkpoint, voices, log=log, environment=environment) for log in logs]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            stack.callback(server.kill)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda server: server.start(800), servers))
        audits, gateways = [tmp_path / "audit-a", tmp_path / "audit-b"], []
        for server, audit in zip((servers * 2)[:2], audits, strict=True):
            options = (*GATEWAY, "--api-keys-file", str(tmp_path / "keys"), "--audit-log", str(audit))
            gateways.append(stack.enter_context(Gateway(server.url, tmp_path / "gateway", *options)))
        yield Place(servers, gateways, audits, dsn)
    if dsn is not None:
        databases.give_back(dsn)


class Bundle(NamedTuple):
    """What is imported, and the clips in it by the names of their voices."""

    data: bytes
    clips: dict[str, bytes]


@dataclass
class Caller:
    """One key, its voices as the answers have told them, and what the audit log must have of it."""

    name: str
    place: Place
    random: random.Random
    voices: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    """By name: generation, digest, clip."""
    entries: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """By request."""

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer key-{self.name}"}
        self.https = [
            httpx2.Client(base_url=gateway.url, headers=headers, timeout=120.0, trust_env=False, verify=False)
            for gateway in self.place.gateways
        ]

    def ask(self, method: str, path: str, action: str | None, voice: str | None, **more: Any) -> httpx2.Response:
        """An answer of one of the gateways. The audit log must have it, if it is an action."""
        answer = self.random.choice(self.https).request(method, path, **more)
        if action:
            outcome = "ok" if answer.is_success else answer.json()["error"]["code"]
            self.entries[answer.headers["X-Request-ID"]] = (self.name, action, voice, outcome)
        return answer

    def upload(self, name: str, clip: bytes, **form: str) -> httpx2.Response:
        data, files = {"name": name, "consent": self.name, **form}, {"audio_sample": clip}
        return self.ask("POST", VOICES, "upload", name, data=data, files=files)

    def speak(self, voice: str) -> httpx2.Response:
        order = {"input": "Hello.", "voice": voice, "response_format": "pcm", "max_frames": 2, "seed": 1}
        answer = self.ask("POST", SPEECH, "speech", voice, json={**order, "allow_partial": True})
        assert answer.is_success or answer.json()["error"]["code"] == "voice_not_found", answer.text
        return answer

    def look(self, name: str) -> tuple[int, str, bytes]:
        """What the server has of a voice that this key has just made."""
        described = self.ask("GET", f"{VOICES}/{name}", None, None).raise_for_status().json()
        assert described["owner"] == self.name
        clip = self.ask("GET", f"{VOICES}/{name}/audio", "export", name).raise_for_status().content
        return described["generation"], described["digest"], clip

    def unchanged(self) -> bool:
        """Whether its voices are those that it knows of: after a refusal, those from before."""
        listed = self.ask("GET", VOICES, None, None).json()["uploaded_voices"]
        found = {voice["name"]: self.look(voice["name"]) for voice in listed if voice.get("owner") == self.name}
        return found == self.voices

    def step(self, number: int, bundles: list[Bundle]) -> None:
        """One random act. Only this caller changes its voices, so it knows what becomes of them."""
        kind = self.random.choice(("upload", "upload", "import", "delete", "speak"))
        name = self.random.choice((*PLAIN, self.random.choice((*RESERVED, *HELD))))
        replace = {"replace": self.random.choice(("true", "false"))}
        if kind == "speak":
            name = self.random.choice(PLAIN)
            answer = self.speak(name)
            assert answer.is_success == (name in self.voices)
            if answer.is_success:
                self.note(answer, generation=self.voices[name][0])
            return
        made: dict[str, bytes] = {}
        if kind == "upload":
            made = {name: tone(number)}
            answer = self.upload(name, made[name], **replace)
        elif kind == "import":
            bundle, made = self.random.choice(bundles)
            binary = {"Content-Type": "application/octet-stream"}
            answer = self.ask("POST", BUNDLE, "import", None, content=bundle, params=replace, headers=binary)
        else:
            answer = self.ask("DELETE", f"{VOICES}/{name}", "delete", name)
            assert answer.is_success == (name in self.voices), answer.text
            self.voices.pop(name, None)
        if kind != "delete" and answer.is_success:
            assert not made.keys() & {*RESERVED, *HELD}
            for each, clip in made.items():
                before, self.voices[each] = self.voices.get(each, (0, "", b"")), self.look(each)
                same = (replace["replace"] == "false" or kind == "import") and before[2] == clip
                assert self.voices[each][2] == clip and (self.voices[each][0] > before[0] or same)
            last = self.voices[name][0] if kind == "upload" else None
            self.note(answer, **({"voices": sorted(made)} if last is None else {"generation": last}))
        elif kind != "delete":
            code = answer.json()["error"]["code"]
            assert code == "name_reserved" if made.keys() & set(RESERVED) else code == "voice_exists", answer.text
        assert answer.is_success or self.unchanged()

    def note(self, answer: httpx2.Response, **more: Any) -> None:
        self.entries[answer.headers["X-Request-ID"]] += tuple(more.items())


def logged(entry: dict[str, Any]) -> tuple[Any, ...]:
    """An entry as a `Caller` notes it."""
    more = [(name, entry[name]) for name in ("voices", "generation") if name in entry]
    return (entry["key"], entry["action"], entry["voice"], entry["outcome"], *more)


def made_bundles(client: Client, first: int) -> list[Bundle]:
    """Some bundles. The server has no voices before and after."""
    found = []
    for names in (("one", "two"), ("three",), ("three", "alloy"), ("anna", "four"), ("aura-2-thalia",)):
        clips = {name: tone(first + number) for number, name in enumerate(names)}
        for name, clip in clips.items():
            client.upload(name, clip, consent="ours")
        found.append(Bundle(client.export(), clips))
        for name in names:
            client.delete(name)
        first += len(names)
    return found


@pytest.mark.parametrize("count", [90, pytest.param(1000, marks=pytest.mark.long)])
def test_each_has_its_own_voices(place: Place, count: int) -> None:
    with ExitStack() as stack:
        callers = [Caller(name, place, random.Random(f"{name} {count}")) for name in (*OWNERS, "desk", "dora")]
        for http in (http for caller in callers for http in caller.https):
            stack.enter_context(http)
        live(place, count, *callers)


def live(place: Place, count: int, *callers: Caller) -> None:
    """So many acts of the owners, beside the operator and a listener; then what is left of them."""
    *owners, desk, dora = callers
    with Client(place.servers[0].url) as client:
        bundles = {owner.name: made_bundles(client, 2000 + 20 * number) for number, owner in enumerate(owners)}
    if place.dsn is not None:
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            connection.execute(WATCH)
    fixed: dict[str, int] = {}
    for number, name in enumerate(("House", "Ada")):
        answer = desk.upload(name, tone(3000 + number), shared="true").raise_for_status()
        fixed[name] = desk.ask("GET", f"{VOICES}/{name}", None, None).json()["generation"]
        desk.note(answer, generation=fixed[name])
    with Client(place.servers[-1].url) as client:
        client.set_alias("anna", "Ada")
    answer = dora.upload("Dora", tone(3010)).raise_for_status()
    dora.voices["Dora"] = dora.look("Dora")
    dora.note(answer, generation=dora.voices["Dora"][0])
    over, came = threading.Event(), {"alloy": set[int](), "default": set[int]()}

    def work(owner: int) -> None:
        for number in range(owner, count, len(owners)):
            owners[owner].step(number, bundles[OWNERS[owner]])

    def change() -> None:
        """The operator makes and deletes two reserved names."""
        while not over.is_set():
            for name, generations in came.items():
                answer = desk.upload(name, tone(3020), shared="true").raise_for_status()
                found = desk.ask("GET", f"{VOICES}/{name}", None, None).json()
                assert "owner" not in found
                generations.add(found["generation"])
                desk.note(answer, generation=found["generation"])
                desk.ask("DELETE", f"{VOICES}/{name}", "delete", name).raise_for_status()

    def listen() -> None:
        """A voice of the listener's own sounds the same all the time; a reserved name is spoken by the operator's."""
        own = None
        while not over.is_set():
            heard = np.frombuffer(dora.speak("Dora").raise_for_status().content, "<i2").astype(np.float32)
            own = heard if own is None else own
            assert len(own) and is_same_audio(heard, own)
            assert dora.speak(dora.random.choice(PLAIN)).status_code == 404
            dora.speak("anna").raise_for_status()
            dora.speak(dora.random.choice(list(came)))  # or it is not found: it may go behind the gateway's look

    with ThreadPoolExecutor(5) as pool:
        beside = [pool.submit(listen), pool.submit(change)]
        try:
            for done in [pool.submit(work, number) for number in range(len(owners))]:
                done.result()
        finally:
            over.set()
        for done in beside:
            done.result()

    for owner in owners:
        assert owner.unchanged()
    expected = {request: entry for caller in (*owners, desk, dora) for request, entry in caller.entries.items()}

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for audit in place.audits for line in audit.read_text().splitlines()]

    until(lambda: len(lines()) >= len(expected))
    found = {entry["request"]: entry for entry in lines()}
    assert len(lines()) == len(found) and found.keys() == expected.keys()
    for request_id, entry in found.items():
        if entry["key"] == "dora" and entry["action"] == "speech" and entry["outcome"] == "ok":
            own, ours = {dora.voices["Dora"][0]}, set(fixed.values()).union(*came.values())
            assert entry["generation"] in (own if entry["voice"] == "Dora" else ours), entry
        else:
            assert logged(entry) == expected[request_id]
    assert {entry["outcome"] for entry in found.values()} == {"ok", "voice_not_found", *TAKEN}
    if place.dsn is not None:
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            seen = [row for (row,) in connection.execute("SELECT record FROM voice_clone.seen") if row is not None]
            connection.execute(UNWATCH)
        reserved = {name.casefold() for name in (*RESERVED, *HELD)}
        assert len(seen) > count / 3
        assert all(row.get("owner") is None for row in seen if row["name"].casefold() in reserved)
