"""Keys, their scopes, and what comes before them."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from voice_clone_client import InvalidArgument
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.http.auth import Keys
from voice_clone_gateway.settings import parse

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
SPEAK, MANAGE, BOTH = "key-that-speaks", "key-that-manages", "key-that-does-both"
RECORD = b'{"speakers": [{"name": "ada", "consent": "by mail", "reference_text": "hello", "created_at": 1.5}]}'
MANAGED = [
    ("POST", "/v1/audio/voices"),
    ("POST", "/v1/audio/bundle"),
    ("GET", "/v1/audio/bundle"),
    ("GET", "/v1/audio/voices/ada"),
    ("DELETE", "/v1/audio/voices/ada"),
    ("DELETE", "/v1/audio/voices/ada/styles/happy"),
    ("POST", "/v1/audio/voices/ada/cache"),
    ("GET", "/v1/audio/voices/ada/audio"),
    ("GET", "/v1/audio/voices/ada/export"),
]
SPOKEN = [
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/speech/batch"),
    ("POST", "/v1/audio/jobs"),
    ("GET", "/v1/audio/jobs"),
    ("GET", "/v1/audio/jobs/job_0"),
    ("DELETE", "/v1/audio/jobs/job_0"),
    ("GET", "/v1/audio/jobs/job_0/content"),
    ("POST", "/v1/audio/jobs/job_0/cancel"),
    ("POST", "/v1/audio/text"),
    ("GET", "/v1/audio/speech/0123"),
    ("POST", "/v1/audio/voices/design"),
    ("POST", "/v1/audio/detect"),
    ("POST", "/v1/audio/transcriptions"),
    ("GET", "/v1/audio/voices"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/qwen3_tts"),
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(f"# who may do what\n\n{SPEAK} speak\n{MANAGE}  manage\n{BOTH} speak, manage\n")
    return str(path)


PLACES = {  # of a key in a request
    "bearer": {"headers": {"Authorization": "Bearer s3cret/+%="}},
    "token": {"headers": {"Authorization": "Token s3cret/+%="}},
    "xi-api-key": {"headers": {"xi-api-key": "s3cret/+%="}},
    "x-api-key": {"headers": {"X-API-Key": "s3cret/+%="}},
    "azure": {"headers": {"Ocp-Apim-Subscription-Key": "s3cret/+%="}},
    "vapi": {"headers": {"X-Vapi-Secret": "s3cret/+%="}},
    "api_key": {"params": {"api_key": "s3cret/+%="}},
    "access_token": {"params": {"access_token": "s3cret/+%="}},
    "another scheme": {"headers": {"Authorization": "Basic eDp5", "xi-api-key": "s3cret/+%="}},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_key_may_stand_in_each_place(
    triton: Server, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: dict[str, dict[str, str]]
) -> None:
    path = tmp_path / "keys"
    path.write_text("s3cret/+%= speak\n")
    triton.answer = lambda inputs: {"result": b'{"speakers": []}'}
    http = serve(triton.url, api_keys_file=str(path))
    with caplog.at_level(logging.DEBUG):
        assert http.get("/v1/models", **place).status_code == 200
        wrong = {kind: dict.fromkeys(values, "wr0ng") for kind, values in place.items()}
        assert http.get("/v1/models", **wrong).status_code == 401
    server = [record for record in caplog.records if not record.name.startswith("http")]  # those are the client's
    assert not re.search("s3cret|wr0ng", "".join(record.getMessage() for record in server))


def test_every_route_of_the_api_needs_a_key(triton: Server, serve: Serve, keys_file: str) -> None:
    http = serve(triton.url, api_keys_file=keys_file)
    paths = http.get("/openapi.json").json()["paths"]
    guarded = {
        (method.upper(), path.format(name="ada", model="qwen3_tts", speech_id="0123", job_id="job_0", style="happy"))
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/v1/")
    }
    assert guarded == set(MANAGED + SPOKEN)
    for method, path in guarded:
        scope = SPEAK if (method, path) in SPOKEN else MANAGE
        other = MANAGE if (method, path) in SPOKEN else SPEAK
        for header, status in (({}, 401), (bearer(scope[:-1]), 401), (bearer(other), 403)):
            answer = http.request(method, path, headers=header, content=b"{no json")
            assert answer.status_code == status, (method, path, header)
            assert answer.json()["error"]["type"] == ("permission_error" if status == 403 else "authentication_error")
            assert ("www-authenticate" in answer.headers) == (status == 401)
        assert http.request(method, path, headers=bearer(scope)).status_code not in (401, 403)
    for header in ("Bearer", f"Basic {BOTH}", BOTH, f"Bearer {BOTH} {BOTH}"):
        assert http.get("/v1/models", headers={"Authorization": header}).status_code == 401
    assert http.get("/v1/models", headers={"Authorization": f"bearer  {BOTH}"}).status_code == 200
    for path in ("/health", "/metrics", "/openapi.json"):
        assert http.get(path).status_code == 200


def test_the_document_names_what_is_always_open(triton: Server, serve: Serve, keys_file: str) -> None:
    """Of all routes those that answer without a key; WebSockets have tests of their own."""
    http = serve(triton.url, api_keys_file=keys_file)
    routes = iter_route_contexts(create_app(Settings(triton=triton.url, api_keys_file=keys_file)).routes)
    opened = {
        re.sub("^/page/.*", "/page/", route.path or "")
        for route in routes
        for method in route.methods or ()
        if http.request(method, re.sub("[{}]", "", route.path or "")).status_code != 401
    }
    section = DOCUMENT.read_text(encoding="utf-8").partition("## What is always open")[2]
    assert opened == set(re.findall(r"`(/[^`]*)`", section.partition("need no key")[0]))


def test_only_managers_see_consent_and_transcript(triton: Server, serve: Serve, keys_file: str) -> None:
    triton.answer = lambda inputs: {"result": RECORD}
    http = serve(triton.url, api_keys_file=keys_file)

    def listed(key: str) -> set[str]:
        [voice] = http.get("/v1/audio/voices", headers=bearer(key)).json()["uploaded_voices"]
        return set(voice)

    assert listed(BOTH) - listed(SPEAK) == {"consent", "reference_text", "ref_text"}


def test_keys_are_nowhere_but_in_the_request(
    triton: Server, serve: Serve, keys_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    http = serve(triton.url, api_keys_file=keys_file)
    for key in (BOTH, "a-wrong-key"):
        answer = http.get("/v1/models", headers=bearer(key))
        assert key not in answer.text
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpcore", "httpx"))]
    assert ours and not any(BOTH in text or "a-wrong-key" in text for text in ours)
    assert BOTH not in repr(vars(Keys([f"{BOTH} speak"])))


def test_keys_of_the_environment(tmp_path: Path) -> None:
    assert not Keys.load("", {}) and not Keys.load("", {"VOICE_CLONE_GATEWAY_API_KEYS": ""})
    assert Keys.load("", {"VOICE_CLONE_GATEWAY_API_KEYS": "one speak; two speak,manage"})


@pytest.mark.parametrize(
    "data",
    ["", "# none", "\n\r\n", " \t\n", "\ufeff", "key speak".encode("utf-16"), "key speak".encode("utf-16-be"), b"\xff"],
)
def test_a_file_without_keys_opens_no_gateway(tmp_path: Path, data: str | bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    for environment in ({}, {"VOICE_CLONE_GATEWAY_API_KEYS": "one speak"}):
        with pytest.raises(ValueError, match=str(path)):
            Keys.load(str(path), environment)
    settings = parse([], {"VOICE_CLONE_GATEWAY_API_KEYS_FILE": str(path)})
    with pytest.raises(ValueError, match=str(path)):
        create_app(settings)


@pytest.mark.parametrize("value", [";", " ", "\n", " ; ;", "# none"])
def test_a_variable_without_keys_opens_no_gateway(tmp_path: Path, value: str) -> None:
    path = tmp_path / "keys"
    path.write_text("one speak\n")
    for file in ("", str(path)):
        with pytest.raises(ValueError, match="VOICE_CLONE_GATEWAY_API_KEYS has no key"):
            Keys.load(file, {"VOICE_CLONE_GATEWAY_API_KEYS": value})


def test_what_editors_add_to_a_file_of_keys(triton: Server, serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(f"{SPEAK} speak  \r\n\r\n{BOTH}\tspeak,manage\r\n".encode("utf-8-sig"))
    http = serve(triton.url, api_keys_file=str(path))
    assert [http.get("/v1/models", headers=bearer(key)).status_code for key in (SPEAK, BOTH)] == [200, 200]


@pytest.mark.parametrize(
    "line",
    [
        "schlüssel speak",
        "k\u200bey speak",
        "k\x01 speak",
        "lonely",
        "key read",
        "key speak manage",
        "key speak,",
        "key speak,admin",
    ],
)
def test_wrong_keys(line: str) -> None:
    with pytest.raises(ValueError, match="key 2") as failure:
        Keys(["# comment", line])
    assert "lonely" not in str(failure.value)


def test_a_key_on_two_lines() -> None:
    with pytest.raises(ValueError, match="key 2 is that of an earlier line") as failure:
        Keys(["lonely speak name=alice", "lonely speak,manage"])
    assert "lonely" not in str(failure.value)


def test_cors_is_off_unless_asked_for(triton: Server, serve: Serve) -> None:
    origin = {"Origin": "https://app.example"}
    closed = serve(triton.url).get("/v1/models", headers=origin)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    opened = serve(triton.url, cors_origins=("https://app.example",))
    answer = opened.get("/v1/models", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    other = opened.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_the_gateway_sends_the_write_token_of_the_server_and_never_shows_it(
    triton: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.answer = lambda inputs: {"result": b'{"name": "ada"}'}
    http = serve(triton.url, triton_token="s3cret")
    assert http.delete("/v1/audio/voices/ada").status_code == 200
    assert triton.metadata[-1]["x-voice-token"] == "s3cret"
    monkeypatch.setenv("VOICE_CLONE_GATEWAY_TRITON_TOKEN", "s3cret")
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "s3cret" not in capsys.readouterr().out
    assert parse([]).triton_token == "s3cret"


def test_settings_of_the_server_are_checked(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for wrong in ({"triton": "http://localhost"}, {"triton_token": "a b"}, {"triton_ca": str(tmp_path / "empty.pem")}):
        with pytest.raises(InvalidArgument):
            create_app(Settings(**wrong))
