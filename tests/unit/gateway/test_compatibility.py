"""Fields, voices and paths of other servers with the OpenAI speech API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest
from pydantic import AliasChoices, ValidationError
from voice_clone_gateway.compatibility import translate
from voice_clone_gateway.fields import ALIASES
from voice_clone_gateway.live.config import StreamConfig
from voice_clone_gateway.schemas import Pronunciation, SpeechRequest, Strict
from voice_clone_gateway.voices.names import OPENAI_VOICES

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import FAMILY, Failure, Server

SPEECH = {"input": "Hello there.", "voice": "ada"}
NOTHING: list[tuple[str, Any]] = [
    ("word_timestamps", False),
    ("stream_options", {"include_usage": True}),
    ("return_download_link", False),
    ("volume_multiplier", 1.0),
    ("duration_seconds", None),
    ("ref_audio_2", None),
    ("ambient_sound", ""),
    ("instructions", ""),
    ("initial_codec_chunk_frames", 1),
    ("task_type", "Base"),
]


def sent(triton: Server) -> dict[str, Any]:
    """The inputs of the latest speech, as numbers and texts."""
    inputs = triton.speeches[-1][1]
    return {name: value.decode() if isinstance(value, bytes) else value.tolist() for name, value in inputs.items()}


@pytest.mark.parametrize(("name", "value"), NOTHING)
def test_a_field_that_asks_for_nothing_passes(triton: Server, serve: Serve, name: str, value: Any) -> None:
    http = serve(triton.url, strict=True)
    answer = http.post("/v1/audio/speech", json={**SPEECH, name: value})
    assert answer.status_code == 200 and "x-speech-warning" not in answer.headers
    assert sent(triton).keys() == {"text", "voice"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("word_timestamps", True),
        ("stream_options", "usage"),
        ("return_download_link", True),
        ("volume_multiplier", 2),
        ("duration_seconds", 5),
        ("ambient_sound", "rain"),
        ("references", []),
        ("references", [{"audio_path": "data:,"}, {"audio_path": "data:,"}]),
        ("references", [{"text": "no audio"}]),
        ("references", [{"audio_path": "data:,", "speaker": "x"}]),
        ("extra_params", [1]),
    ],
)
def test_a_field_that_asks_for_more_is_refused(shared: Shared, name: str, value: Any) -> None:
    triton, http = shared
    answer = http.post("/v1/audio/speech", json={**SPEECH, name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_argument", name)
    batch = http.post("/v1/audio/speech/batch", json={"items": [{**SPEECH, name: value}]})
    assert batch.json()["results"][0]["error"] == error
    assert triton.speeches == []


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"speaker": "Ada"}, {"voice": "Ada"}),
        ({"speaker": None, "voice": "Ada"}, {"voice": "Ada"}),
        ({"ref_audio": "data:,x", "ref_text": "y"}, {"reference_audio": "data:,x", "reference_text": "y"}),
        ({"ref_audio": ["data:,x"]}, {"reference_audio": "data:,x"}),
        ({"references": [{"audio_path": "u", "text": "t"}]}, {"reference_audio": "u", "reference_text": "t"}),
        ({"max_new_tokens": 7, "max_frames": 7}, {"max_frames": 7}),
        ({"x_vector_only_mode": True}, {"x_vector_only": True}),
        ({"speaker_embedding": [[1.0, 2.0]]}, {"speaker_embedding": [1.0, 2.0]}),
        (
            {"extra_params": {"top_k": 5, "max_new_tokens": 9, "warmth": 1}},
            {"top_k": 5, "max_frames": 9, "options": {"warmth": 1}},
        ),
        ({"voice": {"id": "Ada"}, "speaker": "Ada"}, {"voice": {"id": "Ada"}}),
        ({"unheard_of": 1}, {"unheard_of": 1}),
    ],
)
def test_other_names(given: dict[str, Any], own: dict[str, Any]) -> None:
    before = json.dumps(given)
    assert translate(given) == own
    assert json.dumps(given) == before, "the caller's object is unchanged"


@pytest.mark.parametrize("alias", ALIASES)
def test_two_names_that_contradict_each_other(shared: Shared, alias: str) -> None:
    values: dict[str, Any] = {"max_new_tokens": (3, 4), "x_vector_only_mode": (True, False)}
    one, other = values.get(alias, ("data:,a", "data:,b"))
    body = {"input": "Hello.", alias: one, ALIASES[alias]: other}
    answer = shared[1].post("/v1/audio/speech", json=body)
    assert answer.status_code == 400
    assert "give only one" in answer.json()["error"]["message"] and answer.json()["error"]["param"] == alias


def test_what_is_ignored_is_reported(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    body = {**SPEECH, "instructions": "Whisper.", "initial_codec_chunk_frames": 8}
    answer = http.post("/v1/audio/speech", json=body)
    warning = answer.headers["x-speech-warning"]
    assert (
        answer.status_code == 200
        and f"instructions are ignored: {FAMILY} follows none" in warning
        and "initial_codec" in warning
    )
    events = http.post("/v1/audio/speech", json={**body, "stream_format": "sse"}).text
    done = json.loads(events.rsplit("data: ", 1)[1])
    assert "; ".join(done["warnings"]) == warning
    batch = http.post("/v1/audio/speech/batch", json={"items": [body, SPEECH]}).json()["results"]
    assert "; ".join(batch[0]["warnings"]) == warning and "warnings" not in batch[1]


def test_a_strict_gateway_refuses_it(triton: Server, serve: Serve) -> None:
    answer = serve(triton.url, strict=True).post("/v1/audio/speech", json={**SPEECH, "instructions": "Whisper."})
    assert answer.status_code == 400 and "this gateway is strict" in answer.json()["error"]["message"]
    assert triton.speeches == []


@pytest.mark.parametrize("default", ["", FAMILY])
def test_instructions_become_the_option_of_a_model_that_follows_them(
    triton: Server, serve: Serve, default: str
) -> None:
    triton.instructions = {FAMILY: "style"}
    http = serve(triton.url, strict=True, model=default)
    body = {**SPEECH, "instructions": "Whisper.", "options": {"cfg": 2}}
    for more in ({}, {"stream_format": "sse"}, {"stream": False}):
        answer = http.post("/v1/audio/speech", json={**body, **more})
        assert answer.status_code == 200 and "x-speech-warning" not in answer.headers
        assert json.loads(sent(triton)["options"]) == {"cfg": 2, "style": "Whisper."}
    answer = http.post("/v1/audio/speech", json={**body, "options": {"style": "Shout."}})
    assert answer.status_code == 400 and "only one of instructions and the option style" in answer.text
    assert len(triton.speeches) == 3


@pytest.mark.parametrize("default", ["", "Ada"])
def test_a_model_that_needs_no_voice_speaks_without_one(triton: Server, serve: Serve, default: str) -> None:
    http, body = serve(triton.url, default_voice=default), {"input": "Hello."}
    assert http.post("/v1/audio/speech", json=body).status_code == (200 if default else 400)
    triton.voiceless, before = [FAMILY], len(triton.speeches)
    http = serve(triton.url, default_voice=default)
    assert http.post("/v1/audio/speech", json=body).status_code == 200
    assert http.get("/v1/models").json()["data"][0]["voiceless"] is True
    [(_, inputs)] = triton.speeches[before:]
    assert "voice" not in inputs
    assert http.post("/v1/audio/speech", json={**body, "voice": "Bob"}).status_code == 200
    assert sent(triton)["voice"] == "Bob"


def registered(triton: Server, *names: str, **aliases: str) -> None:
    """Let the double know these voices alone, and these aliases of voices that a model brings."""
    shown = [{"name": alias, "voice": voice} for alias, voice in aliases.items()]

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs.get("operation") == b"get" and inputs["name"].decode() not in names:
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice")
        speakers = shown if b"alias" in inputs.get("options", b"") else []
        return {"result": json.dumps({"name": "x", "speakers": speakers}).encode()}

    triton.answer = answer


def test_the_default_voice(triton: Server, serve: Serve) -> None:
    registered(triton, "Ada", "Bob", "sage", alloy="Bob")
    http = serve(triton.url, default_voice="Ada")
    for given, voice, warned in (
        ({}, "Ada", False),
        ({"voice": None}, "Ada", False),
        ({"voice": "default"}, "Ada", True),
        ({"voice": "nova"}, "Ada", True),
        ({"voice": {"id": "Nova"}}, "Ada", True),
        ({"voice": "sage"}, "sage", False),  # registered: its own
        ({"voice": "ALLOY"}, "ALLOY", False),  # the server knows what it stands for
        ({"voice": "Zoe"}, "Zoe", False),
    ):
        answer = http.post("/v1/audio/speech", json={"input": "Hello.", **given})
        assert answer.status_code == 200 and sent(triton)["voice"] == voice
        assert ("x-speech-warning" in answer.headers) == warned
    clip = {"input": "Hello.", "reference_audio": "data:audio/wav;base64,AAAA"}
    assert http.post("/v1/audio/speech", json=clip).status_code == 200
    assert "voice" not in sent(triton), "a clip is a voice"
    listed = http.get("/v1/audio/voices").json()
    assert listed["default_voice"] == "Ada" and listed["voice_aliases"] == {"alloy": "Bob"}


def owned(triton: Server, **owners: str | None) -> None:
    """Let the double know these voices, each of an owner and shared."""

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        name = inputs.get("name", b"").decode()
        if inputs.get("operation") == b"get" and name.casefold() not in owners:
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice")
        record = {"name": name or "x", "owner": owners.get(name.casefold()), "shared": True, "speakers": []}
        return {"result": json.dumps(record).encode()}

    triton.answer = answer


def test_a_tenant_s_voice_does_not_replace_what_is_configured(triton: Server, serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k1 speak,manage name=alice owner\nk2 speak,manage name=bob owner\nk3 speak,manage name=desk\n")
    owned(triton, alloy="alice", nova=None, default="alice", mine="alice", **{"aura-2-thalia-en": "alice"})
    http = serve(triton.url, default_voice="Ada", api_keys_file=str(keys))
    for key, given, voice in (
        ("k2", "alloy", "Ada"),
        ("k3", "alloy", "Ada"),
        ("k3", " Alloy ", "Ada"),
        ("k1", "alloy", "alloy"),  # her own, for herself
        ("k2", "default", "Ada"),
        ("k2", "aura-2-thalia-en", "Ada"),
        ("k2", "nova", "nova"),  # the operator's
        ("k2", "mine", "mine"),
    ):
        body = {"input": "Hello.", "voice": given}
        answer = http.post("/v1/audio/speech", json=body, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200 and sent(triton)["voice"] == voice, (key, given)
        assert ("x-speech-warning" in answer.headers) == (voice == "Ada")


def test_reserved_names(triton: Server, serve: Serve, tmp_path: Path) -> None:
    """The server refuses them, in one step with the registration; the gateway says which they are."""
    keys = tmp_path / "keys"
    keys.write_text("k1 speak,manage name=alice owner\nk3 speak,manage name=desk\n")
    owned(triton, bob="alice")
    http = serve(triton.url, default_voice="Ada", api_keys_file=str(keys))
    form: Any = {"files": {"audio_sample": ("a.wav", b"RIFF")}, "data": {"name": "Zoe", "consent": "yes"}}
    bundle: Any = {"content": b"x"}

    def asked(key: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        kind = {"Content-Type": "application/octet-stream"} if "content" in body else {}
        assert http.post(path, headers={"Authorization": f"Bearer {key}", **kind}, **body).status_code == 200
        inputs = next(inputs for _, inputs in reversed(triton.calls) if inputs["operation"] in (b"upload", b"import"))
        options: dict[str, Any] = json.loads(inputs.get("options", b"{}"))
        return options

    for path, body in (("/v1/audio/voices", form), ("/v1/audio/bundle", bundle)):
        reserved = asked("k1", path, body)["reserved"]
        assert {"Ada", "echo", "alloy", "default", "aura-*"} <= set(reserved)
        assert "reserved" not in asked("k3", path, body), "the operator gives any name"

    def refuse(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.ALREADY_EXISTS, "name_reserved: the `name` 'Ada' is reserved on this server")

    triton.answer = refuse
    answer = http.post("/v1/audio/voices", headers={"Authorization": "Bearer k1"}, **form)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (409, "name_reserved", "name")


def schemas(kind: type[Strict] = Strict) -> list[type[Strict]]:
    """All schemas of requests and messages."""
    return [each for child in kind.__subclasses__() for each in (child, *schemas(child))]


def test_null_is_as_absent_in_every_field_that_may_be_absent() -> None:
    tried = 0
    required = {"id": "a", "description": "x", "input": "x", "items": [{}], "type": None, "text": "x", "voice_id": "x"}
    required |= {"custom_id": "a", "method": "POST", "url": "/v1/audio/speech", "body": {}}
    for schema in schemas():
        fields = {name: field for name, field in schema.model_fields.items() if name != "type"}
        base = {name: required[name] for name, field in fields.items() if field.is_required()}
        base |= {"dictionary": "x"} if schema is Pronunciation else {}  # or a rule
        kinds = schema.model_fields["type"].annotation if "type" in schema.model_fields else None
        base |= {} if kinds is None else {"type": (get_args(kinds) or ("x",))[0]}
        absent = schema.model_validate(base)
        for name, field in fields.items():
            names = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else [name]
            for each in names if name not in base else []:
                given = schema.model_validate({**base, each: None})
                assert given == absent, (schema, each)
                assert each != name or given.model_fields_set == absent.model_fields_set, (schema, each)
                tried += 1
        if schema.model_config.get("extra") == "ignore":  # messages of vendors, to which they add some
            continue
        with pytest.raises(ValidationError):
            schema.model_validate({**base, "unheard_of": None})
    assert tried > 60


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
def test_null_speaks_as_absent(shared: Shared, path: str) -> None:
    triton, http = shared
    nulls = {name: None for name in (*SpeechRequest.model_fields, *ALIASES) if name not in ("input", "voice")}
    body = {**nulls, **SPEECH}
    answer = http.post(path, json=body if path.endswith("speech") else {"items": [body], "speed": 2.0})
    assert answer.status_code == 200 and (path.endswith("speech") or answer.json()["succeeded"] == 1)
    assert sent(triton).keys() == {"text", "voice"}


def test_nginx_does_not_hold_a_stream_back(shared: Shared) -> None:
    _, http = shared
    for more, header in (({}, "no"), ({"stream_format": "sse"}, "no"), ({"stream": False}, None)):
        answer = http.post("/v1/audio/speech", json={**SPEECH, **more})
        assert answer.status_code == 200 and answer.headers.get("x-accel-buffering") == header


def test_no_default_voice(shared: Shared) -> None:
    triton, http = shared
    answer = http.post("/v1/audio/speech", json={"input": "Hello."})
    assert answer.status_code == 400 and "--default-voice" in answer.json()["error"]["message"]
    assert http.post("/v1/audio/speech", json={"input": "Hello.", "voice": OPENAI_VOICES[0]}).status_code == 200
    assert sent(triton)["voice"] == OPENAI_VOICES[0]
    assert "get" not in [inputs.get("operation", b"").decode() for _, inputs in triton.calls], "no call for the name"

    def unknown(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, f"speaker_not_found: no voice is registered under the name {name!r}")

    triton.play = unknown
    for name, said in ((OPENAI_VOICES[0], "alloy"), ("No body", "'No body'")):
        answer = http.post("/v1/audio/speech", json={"input": "Hello.", "voice": name})
        assert answer.status_code == 404
        assert f"voice-clone aliases set {said}=VOICE" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/audio/speech", "/v1/audio/speech"),
        ("/v1/v1/audio/speech", "/v1/audio/speech"),
        ("/api/v1/audio/voices", "/v1/audio/voices"),
        ("/v1/audio/speach", "/v1/audio/speech"),
        ("/nothing", None),
    ],
)
def test_an_unknown_path_says_which_is_meant(shared: Shared, path: str, meant: str | None) -> None:
    answer = shared[1].post(path, json=SPEECH)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "not_found")
    assert (meant is None and "hint" not in error) or f"did you mean {meant}?" in error["hint"]


def test_a_missing_voice_or_model_says_what_helps(triton: Server, serve: Serve) -> None:
    def refuse(context: Any) -> Any:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice")
        yield

    triton.play = refuse
    http = serve(triton.url)
    assert "--default-voice" in http.post("/v1/audio/speech", json=SPEECH).json()["error"]["hint"]
    unknown = http.post("/v1/audio/speech", json={**SPEECH, "model": "tts-9"}).json()["error"]
    assert "--model-aliases tts-9" in unknown["message"]


def test_head_of_the_page(shared: Shared) -> None:
    answer = shared[1].head("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html") and not answer.content


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ({"task_type": "CustomVoice"}, "CustomVoice"),
        ({"task_type": "VoiceDesign"}, "VoiceDesign"),
        ({"task_type": "VoiceDesign", "model": "qwen3_tts_voice_design"}, "qwen3_tts_voice_design"),
        ({"task_type": "CustomVoice", "model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"}, None),
        ({"task_type": "Base", "model": "any"}, "any"),
        ({"task_type": None, "model": "any"}, "any"),
    ],
)
def test_the_kind_of_a_speech_names_its_model(given: dict[str, Any], model: str | None) -> None:
    translated = translate({**SPEECH, **given})
    assert "task_type" not in translated and translated["model"] == (model or given["model"])


def test_an_empty_voice_is_none(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    body = {**SPEECH, "voice": ""}
    answer = http.post("/v1/audio/speech", json=body)
    assert answer.status_code == 400 and "give one of voice" in answer.json()["error"]["message"]
    triton.voiceless.append(FAMILY)
    assert serve(triton.url).post("/v1/audio/speech", json=body).status_code == 200
    assert sent(triton).keys() == {"text"}


@pytest.mark.parametrize("voice", [None, "ada"])
def test_a_long_text_without_a_voice_has_one_voice(triton: Server, serve: Serve, voice: str | None) -> None:
    triton.voiceless.append(FAMILY)
    body = {"input": "A sentence of many. " * 20, "voice": voice}
    assert serve(triton.url).post("/v1/audio/speech", json=body).status_code == 200
    assert (len(triton.speeches) == 1) == (voice is None)


EMPTY = sorted(
    {*SpeechRequest.model_fields, *ALIASES, "task_type", "references", "extra_params", "lang_code"} - {"input"}
)


@pytest.mark.parametrize("field", EMPTY)
def test_an_empty_text_is_as_if_the_field_were_not_there(shared: Shared, field: str) -> None:
    triton, http = shared
    body = {"input": "Hello.", "speaker" if field == "voice" else "voice": "ada"}
    answer = http.post("/v1/audio/speech", json={**body, field: ""})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg"), answer.text
    assert sent(triton).keys() == {"text", "voice"}
    if field not in ("stream", "stream_format", "segments", "timestamp_granularities"):
        item = {name: value for name, value in body.items() if name == "input"}
        batch = {**body, field: "", "items": [{**item, field: ""}]}
        del batch["input"]
        assert http.post("/v1/audio/speech/batch", json=batch).json()["succeeded"] == 1
    if field in StreamConfig.model_fields:
        assert StreamConfig.model_validate({"type": "session.config", field: ""}) == StreamConfig(type="session.config")


@pytest.mark.parametrize("query", ["limit=", "after=", "limit", "limit=&after=", "&limit=&"])
def test_an_option_without_a_value_is_as_if_it_were_not_there(shared: Shared, query: str) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": b'{"speakers": []}'}
    assert http.get(f"/v1/audio/voices?{query}").status_code == 200
    *_, listed = [inputs for _, inputs in triton.asked if inputs["operation"] == b"list"]
    assert "after" not in str(listed)


def test_the_description_says_so_of_each_option_of_a_url(shared: Shared) -> None:
    paths = shared[1].get("/openapi.json").json()["paths"]
    operations = [each for path in paths.values() for each in path.values()]
    options = [each for operation in operations for each in operation.get("parameters", []) if each["in"] == "query"]
    assert options and all(each["allowEmptyValue"] for each in options)
