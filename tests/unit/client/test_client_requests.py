"""What each call sends, as the protocol double decodes it, and what it makes of the answer."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import numpy as np
import pytest
import voice_clone_client as vc
from safetensors.numpy import save
from voice_clone_client.servers.affinity import HEADER, STREAM_HEADER
from voice_clone_client.sources import PART

from tests.support.doubles.triton_double import Failure, Server
from tests.support.request_values import another
from tests.support.waiting import WAIT
from voice_clone.request_fields import FIELDS

RECORD = {
    "name": "Ada",
    "generation": 3,
    "created_at": 1.5,
    "embedding_source": "audio",
    "duration": 2.5,
    "colour": "unknown to this client",
    "artifacts": [
        {"model_type": "qwen3_tts", "mode": "icl", "state": "ready", "extraction_ms": 7.0, "new": 1},
        {"model_type": "other", "mode": "x_vector", "state": "failed", "reason": "no encoder"},
    ],
}


class Blocking:
    """An AsyncClient with the face of a Client, so that every test runs on both."""

    def __init__(self, url: str, **arguments: Any) -> None:
        self._url, self._arguments = url, arguments

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                async with vc.AsyncClient(self._url, **self._arguments) as client:
                    reply = getattr(client, method)(*args, **kwargs)
                    return await (reply.read() if method == "speak" else reply)

            return asyncio.run(run())

        return call

    def close(self) -> None:
        pass


@pytest.fixture(params=[vc.Client, Blocking], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, triton: Server) -> Any:
    made = request.param(triton.url, headers={"X-Key": "secret"})
    yield made
    made.close()


def answer(triton: Server, value: Any, artifacts: bytes = b"") -> None:
    triton.answer = lambda inputs: {"result": json.dumps(value).encode(), "artifacts": artifacts}


def sent(triton: Server) -> dict[str, Any]:
    """The inputs of the last speaker_cache call; options decoded."""
    model, inputs = triton.calls[-1]
    assert model == "speaker_cache"
    return {**inputs, **({"options": json.loads(inputs["options"])} if "options" in inputs else {})}


def test_upload_with_everything(triton: Server, client: Any, tmp_path: Path) -> None:
    (tmp_path / "ada.wav").write_bytes(b"RIFF\0\xff")
    answer(triton, RECORD)
    voice = client.upload(
        "Ada",
        tmp_path / "ada.wav",
        reference_text="Grüße, 世界",
        consent="signed",
        description="calm",
        wait=True,
        replace=True,
    )
    assert sent(triton) == {
        "operation": b"upload",
        "name": b"Ada",
        "audio": b"RIFF\0\xff",
        "reference_text": "Grüße, 世界".encode(),
        "consent": b"signed",
        "description": b"calm",
        "options": {"wait": True, "replace": True},
    }
    assert (voice.name, voice.generation, voice.duration, voice.consent) == ("Ada", 3, 2.5, None)
    assert voice.record["colour"] == "unknown to this client"
    assert voice.artifacts == (
        vc.Artifacts("qwen3_tts", "icl", "ready", extraction_ms=7.0),
        vc.Artifacts("other", "x_vector", "failed", reason="no encoder"),
    )


def test_upload_sends_no_more_than_given(triton: Server, client: Any) -> None:
    answer(triton, RECORD)
    client.upload("Ada", b"clip")
    assert sent(triton) == {"operation": b"upload", "name": b"Ada", "audio": b"clip"}
    client.upload("Ada", b"clip", model="other")
    assert sent(triton) == {"operation": b"upload", "name": b"Ada", "model_type": b"other", "audio": b"clip"}
    assert triton.stats_calls == 0
    with vc.Client(triton.url, model="mine") as mine:
        mine.upload("Ada", b"clip")
    assert sent(triton)["model_type"] == b"mine"


def test_upload_of_an_embedding(triton: Server, client: Any) -> None:
    answer(triton, RECORD)
    client.upload("Ada", speaker_embedding=[0.5, -1.0, 2.0])
    embedding = sent(triton)["speaker_embedding"]
    assert embedding.dtype == np.float32 and embedding.tolist() == [0.5, -1.0, 2.0]


@pytest.mark.parametrize(
    ("method", "arguments", "inputs"),
    [
        ("get", ("Ada",), {"operation": b"get", "name": b"Ada"}),
        ("prepare", ("Ada",), {"operation": b"prepare", "name": b"Ada", "model_type": b"qwen3_tts"}),
        (
            "prepare",
            ("Ada", True),
            {"operation": b"prepare", "name": b"Ada", "model_type": b"qwen3_tts", "options": {"force": True}},
        ),
    ],
)
def test_calls_that_answer_a_voice(
    triton: Server, client: Any, method: str, arguments: tuple[Any, ...], inputs: dict[str, Any]
) -> None:
    answer(triton, RECORD)
    voice = getattr(client, method)(*arguments)
    assert sent(triton) == inputs
    assert voice.name == "Ada"


def test_list(triton: Server, client: Any) -> None:
    answer(triton, {"speakers": [RECORD, {"name": "Bob"}], "count": 2})
    assert [voice.name for voice in client.list()] == ["Ada", "Bob"]
    assert sent(triton) == {"operation": b"list", "options": {"limit": 1000}}


def test_a_long_list_comes_in_pages(triton: Server, client: Any) -> None:
    names = [f"v{number:04}" for number in range(2500)]

    def page(inputs: dict[str, Any]) -> dict[str, bytes]:
        options = json.loads(inputs["options"])
        begin = names.index(options["after"]) + 1 if "after" in options else 0
        speakers = [{"name": name} for name in names[begin : begin + options["limit"]]]
        return {"result": json.dumps({"speakers": speakers}).encode()}

    triton.answer = page
    assert [voice.name for voice in client.list()] == names
    assert len(triton.calls) == 3
    assert [voice.name for voice in client.list(limit=2, after="v0003")] == ["v0004", "v0005"]
    assert [voice.name for voice in client.list(after="v0998")] == names[999:]
    names[:] = names[:1000]
    assert len(client.list()) == 1000


def test_delete_and_stats(triton: Server, client: Any) -> None:
    answer(triton, {"hits": 2})
    assert client.delete("Ada") is None
    assert sent(triton) == {"operation": b"delete", "name": b"Ada"}
    assert client.stats()["hits"] == 2 and client.stats()["model_types"] == ["qwen3_tts"]
    assert sent(triton) == {"operation": b"stats"}


def test_detect(triton: Server, client: Any) -> None:
    answer(triton, {"mark": "perth", "confidence": 0.98, "speed": 1.0, "start": 30.0, "seconds": 28.5})
    assert client.detect(b"a sound") == vc.Detection("perth", 0.98, 1.0, 30.0, 28.5)
    assert triton.calls[-1] == ("mark_detector", {"audio": b"a sound"})


def test_detect_on_a_server_without_a_detector(triton: Server, client: Any) -> None:
    def unknown(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'mark_detector' is not found")

    triton.answer = unknown
    with pytest.raises(vc.Unsupported, match="serve the model mark_detector, too"):
        client.detect(b"a sound")
    triton.answer = lambda inputs: (_ for _ in ()).throw(Failure(grpc.StatusCode.INTERNAL, "overloaded: busy"))
    with pytest.raises(vc.Overloaded, match="busy"):
        client.detect(b"a sound")


def heard(triton: Server, words: bytes) -> list[dict[str, Any]]:
    """Let the double's transcriber hear these words; returns the inputs that it gets."""
    asked: list[dict[str, Any]] = []

    def answered(inputs: dict[str, Any]) -> dict[str, bytes]:
        if "operation" in inputs:
            return {"result": json.dumps(RECORD).encode()}
        asked.append(inputs)
        return {"text": words}

    triton.answer = answered
    return asked


def test_transcribe(triton: Server, client: Any) -> None:
    asked = heard(triton, "Grüße.\n".encode())
    assert client.transcribe(b"a sound") == client.transcribe(b"a sound", language="de") == "Grüße."
    assert [model for model, _ in triton.calls] == ["transcriber"] * 2
    assert asked == [{"audio": b"a sound"}, {"audio": b"a sound", "language": b"de"}]


def test_an_upload_with_the_words_that_the_server_hears(triton: Server, client: Any) -> None:
    asked = heard(triton, b"said in it")
    for audio, takes in ((io.BytesIO(b"first"), None), ([b"first", io.BytesIO(b"second")], [5, 6])):
        assert client.upload("Ada", audio, transcribe=True).name == "Ada"
        stored = sent(triton)
        assert (stored["reference_text"], stored["audio"]) == (b"said in it", b"firstsecond" if takes else b"first")
        assert stored.get("options", {}) == ({"takes": takes} if takes else {})
    assert asked == [{"audio": b"first"}] * 2
    client.upload("Ada", b"clip", transcribe=False, reference_text="mine")
    assert sent(triton)["reference_text"] == b"mine"
    calls = len(triton.calls)
    for wrong in ({"reference_text": "mine", "audio": b"clip"}, {"speaker_embedding": [1.0]}):
        with pytest.raises(vc.InvalidArgument, match="transcribe makes the reference_text"):
            client.upload("Ada", transcribe=True, **wrong)
    assert len(triton.calls) == calls
    heard(triton, b" ")
    with pytest.raises(vc.InvalidArgument, match="no words were recognised"):
        client.upload("Ada", b"clip", transcribe=True)
    assert len(triton.calls) == calls + 1, "nothing is stored"


def test_a_server_without_a_transcriber(triton: Server, client: Any) -> None:
    def unknown(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'transcriber' is not found")

    triton.answer = unknown
    with pytest.raises(vc.Unsupported, match="serve --with transcriber"):
        client.transcribe(b"a sound")


def test_prepare_of_a_style(triton: Server, client: Any) -> None:
    answer(triton, RECORD)
    client.prepare("Ada", style="happy")
    assert sent(triton)["options"] == {"style": "happy"}


def test_export_and_import(triton: Server, client: Any) -> None:
    bundle = bytes(range(256)) * 1000
    answer(triton, {"speakers": [RECORD], "count": 1}, bundle)
    for given, named in ((None, {}), ("Ada", {"name": b"Ada"})):
        assert client.export(given, include_audio=False) == bundle
        asked = sent(triton)
        options = {"id": asked["options"]["id"], "include_audio": False}
        assert asked == {"operation": b"export", "options": options, **named}
    assert [voice.name for voice in client.import_(b"few", reextract=True, replace=True)] == ["Ada"]
    assert sent(triton) == {"operation": b"import", "audio": b"few", "options": {"reextract": True, "replace": True}}


def test_a_large_bundle_comes_in_parts(triton: Server) -> None:
    bundle = random.Random(0).randbytes(5 * PART // 2)
    answer(triton, {}, bundle)
    with vc.Client(triton.url) as client:
        for taken, offsets in ((3, [None, PART, 2 * PART]), (1, [None, len(bundle)])):
            before = len(triton.calls)
            parts = client.export_parts("Ada")
            assert b"".join(next(parts) for _ in range(taken)) == bundle[: taken * PART]
            parts.close()
            asked = [(inputs.get("name"), json.loads(inputs["options"])) for _, inputs in triton.calls[before:]]
            assert [options.get("offset") for _, options in asked] == offsets, "what is left is not kept"
            assert [name for name, _ in asked] == [b"Ada"] + [None] * (len(asked) - 1)
            found = {(each[HEADER], each[STREAM_HEADER]) for each in triton.metadata[before:]}
            assert found == {(options["id"], options["id"]) for _, options in asked}, "one server of a fleet has it"


def test_parts_of_two_bundles_are_not_taken_for_one(triton: Server) -> None:
    triton.answer = lambda inputs: {"artifacts": random.Random(len(triton.calls)).randbytes(PART + 1)}
    with vc.Client(triton.url) as client, pytest.raises(vc.BrokenStream):
        client.export()


@pytest.mark.parametrize("size", [PART - 1, PART, 2 * PART, 5 * PART // 2])
def test_a_large_bundle_goes_in_parts(triton: Server, client: Any, tmp_path: Path, size: int) -> None:
    bundle, before = random.Random(size).randbytes(size), len(triton.calls)
    (tmp_path / "bundle").write_bytes(bundle)
    answer(triton, {"speakers": [RECORD], "count": 1})
    assert [voice.name for voice in client.import_(tmp_path / "bundle", replace=True)] == ["Ada"]
    calls = [inputs for model, inputs in triton.calls[before:]]
    assert b"".join(inputs["audio"] for inputs in calls) == bundle
    assert all(len(inputs["audio"]) <= PART for inputs in calls)
    options = [json.loads(inputs["options"]) for inputs in calls]
    if size < PART:
        assert options == [{"replace": True}]
    else:
        assert options == [
            {"replace": True, "part": part, "more": part < size // PART} for part in range(size // PART + 1)
        ]
        assert len({inputs["name"] for inputs in calls}) == 1 and len(calls[0]["name"]) == 32
        found = {(each[HEADER], each[STREAM_HEADER]) for each in triton.metadata[before:]}
        assert found == {(calls[0]["name"].decode(),) * 2}, "one server of a fleet gets all"


def test_speak_with_everything(triton: Server, client: Any, tmp_path: Path) -> None:
    (tmp_path / "clip.ogg").write_bytes(b"OggS")
    knobs = {
        **{each.name: another(each) for each in FIELDS if each.role == "knob"},
        "options": {"warmth": np.float32(0.5), "layers": (1, None, "é"), "nested": MappingProxyType({"on": True})},
    }
    assert knobs.keys() == vc.Knobs.__annotations__.keys()
    clip = tmp_path / "clip.ogg"
    speaking = client.speak("Hi.", reference_audio=str(clip), reference_text="Ho.", x_vector_only=False, **knobs)
    samples, _ = speaking.read() if isinstance(speaking, vc.Speech) else speaking
    assert len(samples) == 3 * 1920
    model, inputs = triton.calls[-1]
    assert model == "qwen3_tts"
    strings = {"text": b"Hi.", "reference_audio": b"OggS", "reference_text": b"Ho.", "language": b"German"}
    strings["style"] = knobs["style"].encode()
    assert {name: inputs[name] for name in strings} == strings
    assert json.loads(inputs.pop("options")) == {"warmth": 0.5, "layers": [1, None, "é"], "nested": {"on": True}}
    numbers = {name: inputs[name] for name in inputs.keys() - strings}
    assert {name: value.item() for name, value in numbers.items()} == {
        **{name: value for name, value in knobs.items() if name not in ("language", "style", "options")},
        "x_vector_only": False,
    }
    assert {name: value.dtype.name for name, value in numbers.items()} == {
        each.name: each.dtype.lower().replace("fp", "float") for each in FIELDS if each.name in numbers
    }


@pytest.mark.parametrize("given", ["bytes", "path"])
def test_speak_with_a_ready_prompt(triton: Server, client: Any, given: str, tmp_path: Path) -> None:
    path = tmp_path / "ada.bundle"
    path.write_bytes(b"a bundle\0\xff")
    speaking = client.speak("Hi.", voice_prompt=path if given == "path" else path.read_bytes())
    if isinstance(speaking, vc.Speech):
        speaking.read()
    assert triton.calls[-1] == ("qwen3_tts", {"text": b"Hi.", "voice_prompt": b"a bundle\0\xff"})


def test_speak_sends_no_more_than_given(triton: Server) -> None:
    with vc.Client(triton.url, model="other") as client:
        client.speak("Hi.", voice="Ada", seed=None, temperature=None, options=None).read()
    assert triton.calls == [("other", {"text": b"Hi.", "voice": b"Ada"})]


def test_headers_and_model_type(triton: Server, client: Any) -> None:
    answer(triton, {"speakers": []})
    client.list()
    assert triton.metadata[-1]["x-key"] == "secret"
    assert "x-voice-token" not in triton.metadata[-1]


def test_missing_file_is_an_os_error(triton: Server, client: Any) -> None:
    with pytest.raises(FileNotFoundError):
        client.upload("Ada", "no such file.wav")
    assert triton.calls == []


def test_errors_of_unary_calls(triton: Server, client: Any) -> None:
    def fail(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.INTERNAL, "speaker_exists: the name is taken")

    triton.answer = fail
    with pytest.raises(vc.VoiceExists, match=r"^the name is taken$"):
        client.upload("Ada", b"clip")


def test_answer_of_another_server(triton: Server, client: Any) -> None:
    triton.answer = lambda inputs: {"something": b"else"}
    with pytest.raises(vc.Internal, match="lacks 'result'"):
        client.list()


def test_timeout_of_unary_calls(triton: Server) -> None:
    release = threading.Event()

    def wait(inputs: dict[str, Any]) -> dict[str, bytes]:
        release.wait(WAIT)
        return {}

    triton.answer = wait
    with vc.Client(triton.url, timeout=0.2) as client, pytest.raises(vc.DeadlineExceeded):
        client.list()
    release.set()


def test_both_clients_have_the_same_methods() -> None:
    def face(kind: type) -> dict[str, Any]:
        members = inspect.getmembers(kind, inspect.isfunction)
        public = {name: value for name, value in members if not name.startswith("_")}
        for name in ("speak_stream", "speak_written", "import_parts"):  # in the one, what they take may be asynchronous
            public.pop(name, None)
        return {name: inspect.signature(value).parameters for name, value in public.items()}

    assert face(vc.Client) == face(vc.AsyncClient)


def test_options_of_the_voice_operations(triton: Server, client: Any) -> None:
    answer(triton, {**RECORD, "speakers": [RECORD]}, save({"speaker_embedding": np.array([1.5, 2.0], np.float16)}))
    client.prepare("Ada", mode="x_vector", timeout=2.5)
    assert sent(triton)["options"] == {"mode": "x_vector", "timeout": 2.5}
    client.upload("Ada", b"clip", wait=True, timeout=3)
    assert sent(triton)["options"] == {"wait": True, "timeout": 3}
    embedding = client.speaker_embedding("Ada")
    assert sent(triton) == {"operation": b"resolve", "name": b"Ada", "model_type": b"qwen3_tts"}
    assert embedding.dtype == np.float32 and embedding.tolist() == [1.5, 2.0]


def test_recordings_of_consents(triton: Server, client: Any) -> None:
    record = {"name": "cons_1", "description": "yes", "language": "en", "created_at": 1.0}
    answer(triton, {**record, "speakers": [record]})
    made = client.record_consent("cons_1", b"clip", description="yes", language="en")
    assert (made.id, made.description, made.language) == ("cons_1", "yes", "en")
    asked = {"operation": b"record_consent", "name": b"cons_1", "description": b"yes"}
    assert sent(triton) == {**asked, "audio": b"clip", "options": {"language": "en"}}
    assert client.record_consent("cons_1", description="yes") == made and sent(triton) == asked
    assert client.consents(limit=3, after="cons_0") == [client.consent("cons_1")] == [made]
    assert sent(triton)["options"] == {"kind": "consent"}
    client.delete_consent("cons_1")
    assert sent(triton) == {"operation": b"delete", "name": b"cons_1", "options": {"kind": "consent"}}


def test_dictionaries(triton: Server, client: Any) -> None:
    record = {"name": "dict_1", "generation": 7, "created_at": 1.0, "about": "names"}
    answer(triton, {**record, "speakers": [record]}, b"words")
    triton.keeps_dictionaries = True
    kept = client.keep_dictionary("dict_1", b"words", about="names")
    assert (kept.id, kept.generation, kept.owner, kept.about, kept.content) == ("dict_1", 7, None, "names", b"words")
    asked = {"operation": b"keep_dictionary", "name": b"dict_1"}
    assert sent(triton) == {**asked, "audio": b"words", "options": {"about": "names"}}
    assert client.keep_dictionary("dict_1", about="names", generation=7) == kept
    assert sent(triton) == {**asked, "options": {"about": "names", "generation": 7}}
    assert client.dictionary("dict_1") == kept
    assert sent(triton) == {"operation": b"get", "name": b"dict_1", "options": {"kind": "dictionary"}}
    [listed] = client.dictionaries(limit=3, after="dict_0")
    assert (listed.id, listed.content) == ("dict_1", None)
    assert sent(triton)["options"] == {"kind": "dictionary", "limit": 3, "after": "dict_0"}
    client.delete_dictionary("dict_1")
    assert sent(triton) == {"operation": b"delete", "name": b"dict_1", "options": {"kind": "dictionary"}}


def test_a_model_without_speaker_embeddings(triton: Server, client: Any) -> None:
    answer(triton, {}, save({"codes": np.zeros(3, np.int32)}))
    with pytest.raises(vc.Unsupported, match="no speaker embedding"):
        client.speaker_embedding("Ada")


def test_the_server_may_take_its_time(triton: Server) -> None:
    """A call lasts its own timeout longer than the client's: the server's answer comes before either ends."""

    release = threading.Event()

    def slow(inputs: dict[str, Any]) -> dict[str, bytes]:
        if "options" in inputs:
            time.sleep(0.6)
        else:
            release.wait(WAIT)
        return {"result": json.dumps(RECORD).encode()}

    triton.answer = slow
    with vc.Client(triton.url, model="qwen3_tts", timeout=0.3) as client:
        assert client.prepare("Ada", timeout=WAIT).name == "Ada"
        with pytest.raises(vc.DeadlineExceeded):
            client.prepare("Ada")
    release.set()


def test_readiness(triton: Server, client: Any) -> None:
    assert client.ready()
    assert client.ready(model="qwen3_tts") and not client.ready(model="fish")
    with vc.Client(triton.url, model="fish") as other, vc.Client("127.0.0.1:1") as nowhere:
        assert not other.ready() and other.ready(model="qwen3_tts") and not nowhere.ready()
