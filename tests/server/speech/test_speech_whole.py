"""A whole speech in one answer, on the real server: over HTTP and gRPC, with errors, limits and clients that leave."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from voice_clone_client import Client

from tests.support.same_audio import is_same_audio
from tests.support.servers.endless import SPEECH_ALONE, endless
from tests.support.servers.server_metrics import metric, wait_until_quiet
from tests.support.waiting import WAIT, until
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = pytest.mark.share("servers")

MODEL = "speech_whole"
TEXT = "Every evening the boats came home."
KNOBS = {"seed": np.array([7], np.uint64), "max_frames": np.array([30], np.int32)}
EMBEDDING = {"speaker_embedding": np.ones(64, np.float32)}
KINDS = {"U": "BYTES", "S": "BYTES", "f": "FP32", "i": "INT32", "u": "UINT64", "b": "BOOL"}
LONG = "word " * 300  # its budget is far above the limit of `limited`


def tensors(given: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs as arrays; texts and bytes become object arrays."""
    made = {name: np.array([v], object) if isinstance(v, (str, bytes)) else v for name, v in given.items()}
    return {name: np.asarray(value) for name, value in made.items()}


def kind(array: np.ndarray[Any, Any]) -> str:
    return "BYTES" if array.dtype == object else KINDS[array.dtype.kind]


def inputs(module: Any, given: dict[str, Any]) -> list[Any]:
    return [
        module.InferInput(name, list(array.shape), kind(array)).set_data_from_numpy(array)
        for name, array in tensors(given).items()
    ]


def over_http(server: TritonServer, given: dict[str, Any], binary: bool = True) -> Any:
    """By tritonclient; the tensors as bytes behind the JSON, or in it."""
    with tritonclient.http.InferenceServerClient(server.http.removeprefix("http://"), network_timeout=WAIT) as client:
        names = ("audio", "sample_rate", "info")
        outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in names]
        return client.infer(MODEL, inputs(tritonclient.http, given), outputs=outputs)


def over_grpc(server: TritonServer, given: dict[str, Any], **more: Any) -> Any:
    with tritonclient.grpc.InferenceServerClient(server.url) as client:
        return client.infer(MODEL, inputs(tritonclient.grpc, given), **more)


def post(server: TritonServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON; an HTTP error is an answer, too, with its `status`."""
    request = urllib.request.Request(f"{server.http}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        found = {**json.load(error), "status": error.code}
    return found


def in_json(given: dict[str, Any]) -> dict[str, Any]:
    """The body of an `infer` of KServe's protocol, as a program without any client writes it."""
    return {
        "inputs": [
            {"name": name, "shape": list(array.shape), "datatype": kind(array), "data": array.tolist()}
            for name, array in tensors(given).items()
        ]
    }


def plain(server: TritonServer, given: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an `infer` in JSON by name, or the error."""
    answer = post(server, f"/v2/models/{MODEL}/infer", in_json(given))
    return {each["name"]: each["data"] for each in answer["outputs"]} if "outputs" in answer else answer


@pytest.fixture(scope="module")
def streamed(server: TritonServer, voice: str) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """The same speech as a stream."""
    with Client(server.url) as client, client.speak(TEXT, voice=voice, seed=7, max_frames=30) as speech:
        samples, rate = speech.read()
        assert rate == 24000 and samples.size
        return samples, dict(speech.info or {})


def check_same(answer: Any, streamed: tuple[np.ndarray[Any, Any], dict[str, Any]]) -> None:
    samples, info = streamed
    audio = answer.as_numpy("audio")
    assert audio.dtype == np.float32 and is_same_audio(audio, samples)
    assert answer.as_numpy("sample_rate").tolist() == [24000]
    found = json.loads(answer.as_numpy("info")[0])
    assert set(found) == set(info)
    same = ("voice", "mode", "seed", "frames", "finish_reason", "reference_frames")
    assert {name: found[name] for name in same} == {name: info[name] for name in same}


@pytest.mark.parametrize("binary", [True, False])
def test_it_is_the_stream_over_http(server: TritonServer, voice: str, streamed: Any, binary: bool) -> None:
    check_same(over_http(server, {"text": TEXT, "voice": voice, **KNOBS}, binary), streamed)


def test_it_is_the_stream_over_grpc(server: TritonServer, voice: str, streamed: Any) -> None:
    check_same(over_grpc(server, {"text": TEXT, "voice": voice, **KNOBS}), streamed)


def test_plain_json(
    server: TritonServer, voice: str, streamed: Any, reference_clip: bytes, reference_text: str
) -> None:
    samples, info = streamed
    found = plain(server, {"text": TEXT, "voice": voice, **KNOBS})
    assert is_same_audio(np.array(found["audio"], np.float32), samples)
    assert found["sample_rate"] == [24000] and json.loads(found["info"][0])["frames"] == info["frames"]
    clip = f"data:audio/wav;base64,{base64.b64encode(reference_clip).decode()}"
    inline = {"reference_audio": clip, "reference_text": reference_text}
    found = plain(server, {"text": TEXT, **inline, **KNOBS})
    assert is_same_audio(np.array(found["audio"], np.float32), samples)


def test_generate(server: TritonServer, voice: str, streamed: Any) -> None:
    body = {"text": TEXT, "voice": voice, "seed": 7, "max_frames": 30}
    found = post(server, f"/v2/models/{MODEL}/generate", body)
    assert is_same_audio(np.array(found["audio"], np.float32), streamed[0])
    assert json.loads(found["info"])["finish_reason"] == streamed[1]["finish_reason"]


def test_all_inputs_of_the_family_are_taken(server: TritonServer) -> None:
    with tritonclient.grpc.InferenceServerClient(server.url) as client:
        config = {name: client.get_model_config(name).config.input for name in (MODEL, "qwen3_tts")}
    names = {name: {each.name: (each.data_type, list(each.dims)) for each in of} for name, of in config.items()}
    assert names["qwen3_tts"].pop("text_stream") and names[MODEL].pop("model")
    assert names[MODEL] == names["qwen3_tts"]
    given = {
        "text": TEXT,
        **EMBEDDING,
        **KNOBS,
        "temperature": np.array([0.8], np.float32),
        "do_sample": np.array([True]),
        "language": "English",
        "options": '{"subtalker_top_k": 20}',
    }
    answer = over_http(server, given)
    options = {"temperature": 0.8, "do_sample": True, "language": "English", "options": {"subtalker_top_k": 20}}
    with Client(server.url) as client:
        direct = client.speak(TEXT, seed=7, max_frames=30, **EMBEDDING, **options)  # type: ignore[arg-type]
        assert is_same_audio(answer.as_numpy("audio"), direct.read()[0])


@pytest.mark.parametrize(
    ("given", "status", "slug", "text"),
    [
        ({"voice": "somebody"}, 404, "speaker_not_found", "somebody"),
        ({"text": "  "}, 400, "invalid_argument", "text"),
        ({"text": None}, 400, "invalid_argument", "text"),
        ({"max_frames": np.array([0], np.int32)}, 400, "invalid_argument", "max_frames"),
        ({"options": '{"warmth": 1}'}, 400, "invalid_argument", "subtalker_top_k"),
        ({"options": "[]"}, 400, "invalid_argument", "options"),
        ({"model": "no_such"}, 400, "invalid_argument", "`model` must be a family of this server: qwen3_tts"),
        ({"model": "qwen3_tts_talker"}, 400, "invalid_argument", "`model` must be"),
        ({"model": MODEL}, 400, "invalid_argument", "`model` must be"),
        ({"model": "speaker_cache"}, 400, "invalid_argument", "`model` must be"),
        ({"text_stream": "an-id"}, 400, "", "text_stream"),
        ({"seed": np.array([7], np.int32)}, 400, "", "seed"),
        ({"seed": np.array([7, 8], np.uint64)}, 400, "", "seed"),
    ],
)
def test_errors(server: TritonServer, voice: str, given: dict[str, Any], status: int, slug: str, text: str) -> None:
    asked = {"text": TEXT, "voice": voice, **KNOBS, **given}
    answer = plain(server, {name: value for name, value in asked.items() if value is not None})
    assert answer["status"] == status and text in answer["error"], answer
    assert not slug or f"{slug}: " in answer["error"]
    assert "/" not in answer["error"].removeprefix("http://"), "no path of the server"


def test_parameters_go_to_the_family(server: TritonServer, client: Client, reference_clip: bytes) -> None:
    tenant = client.acting_for("alice")
    tenant.upload("Of Alice", reference_clip, wait=True)
    given = {"text": TEXT, "voice": "Of Alice", **KNOBS}
    for owner, known in (("alice", True), ("bob", False)):
        try:
            over_grpc(server, given, parameters={"owner": owner})
            assert known
        except tritonclient.grpc.InferenceServerException as error:
            assert not known and "speaker_not_found: " in str(error)
    tenant.delete("Of Alice")
    for deadline in (1, 1.5):
        body = {**in_json({"text": TEXT, **EMBEDDING, **KNOBS}), "parameters": {"deadline_ms": deadline}}
        answer = post(server, f"/v2/models/{MODEL}/infer", body)
        assert answer["status"] == 503 and "deadline_exceeded: " in answer["error"], answer
    for wrong in (
        *({"deadline_ms": value} for value in (-1, -1.5, 0.0, "soon", 1e300, -1e300)),
        *({"owner": value} for value in (1, 1.5, True)),
        {"stream_id": 3},
    ):
        body = {**in_json({"text": TEXT, **EMBEDDING, **KNOBS}), "parameters": wrong}
        answer = post(server, f"/v2/models/{MODEL}/infer", body)
        if wrong in ({"stream_id": 3}, {"deadline_ms": 1e300}):  # the stream has an id of this model's
            assert "outputs" in answer, answer
        else:
            assert answer["status"] == 400 and "invalid_argument: " in answer["error"], answer


def test_many_at_once_beside_streams(server: TritonServer, client: Client, voice: str, streamed: Any) -> None:
    def one(index: int) -> Any:
        if index % 3 == 2:
            return client.speak(TEXT, voice=voice, seed=7, max_frames=30).read()[0]
        if index % 3:
            return over_grpc(server, {"text": TEXT, "voice": voice, **KNOBS}).as_numpy("audio")
        return over_http(server, {"text": TEXT, "voice": voice, **KNOBS}).as_numpy("audio")

    with ThreadPoolExecutor(12) as pool:
        for audio in pool.map(one, range(36)):
            assert is_same_audio(audio, streamed[0])


@pytest.fixture(scope="module")
def limited(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server of endless speeches with one slot, and small limits. It must stop with nothing in flight."""
    limits = {"MAX_STREAMS": "1", "MAX_WHOLE_SECONDS": "40", "MAX_WHOLE_SPEECHES": "2", "TEXT_IDLE_SECONDS": "60"}
    environment = {f"VOICE_CLONE_{name}": value for name, value in limits.items()}
    options = [*SPEECH_ALONE, f"--load-model={MODEL}", "--load-model=text_front_end"]
    folder = tmp_path_factory.mktemp("limited")
    # The default family is that of the setting: this server has no voice encoder, by which speaker_cache finds them.
    environment["VOICE_CLONE_MODEL_TYPES"] = "qwen3_tts"
    models = [MODELS, OPTIONAL / "text_front_end"]
    with endless(endless_checkpoint, folder, models, options, **environment) as server:
        yield server


def cancelled(server: TritonServer) -> float:
    return metric(server, "talker_streams_total", reason="cancelled")


def asked(text: str = LONG, **more: Any) -> dict[str, Any]:
    return {"text": text, **EMBEDDING, "seed": np.array([1], np.uint64), **more}


def test_a_speech_that_is_too_long(limited: TritonServer) -> None:
    before = cancelled(limited)
    answer = plain(limited, asked())
    assert answer["status"] == 400
    assert "invalid_argument: the speech has more than 40 s" in answer["error"]
    assert "stream it from the model qwen3_tts" in answer["error"] and "max_frames" in answer["error"]
    until(lambda: cancelled(limited) == before + 1)  # the rest of it was not made
    longest = np.array([500], np.int32)  # of 80 ms: 40 s
    audio = over_http(limited, asked(max_frames=longest)).as_numpy("audio")
    assert len(audio) == 40 * 24000
    assert plain(limited, asked(max_frames=longest + 1))["status"] == 400


def test_an_error_behind_the_first_chunk(limited: TritonServer) -> None:
    """A deadline that passes while the speech is made: a share of the time that the whole took.

    Where the machine pauses, it may pass before the speech or behind it.
    """
    speech = in_json(asked(max_frames=np.array([500], np.int32)))
    began = time.monotonic()
    assert "outputs" in post(limited, f"/v2/models/{MODEL}/infer", speech)
    whole = 1000.0 * (time.monotonic() - began)
    for share in 3 * (0.5, 0.25, 0.12, 0.06):
        wait_until_quiet(limited, WAIT)
        before = metric(limited, "talker_streams_total", reason="deadline_exceeded")
        frames = metric(limited, "talker_frames_total")
        body = {**speech, "parameters": {"deadline_ms": share * whole}}
        answer = post(limited, f"/v2/models/{MODEL}/infer", body)
        if "status" in answer:
            assert answer["status"] == 503 and "deadline_exceeded: " in answer["error"], answer
            wait_until_quiet(limited, WAIT)
            if metric(limited, "talker_frames_total") > frames:  # it had begun
                break
    assert "status" in answer, answer
    assert metric(limited, "talker_frames_total") > frames
    until(lambda: metric(limited, "talker_streams_total", reason="deadline_exceeded") == before + 1)


@contextmanager
def occupied(server: TritonServer) -> Iterator[None]:
    """The only slot of the server is taken meanwhile, by a stream that waits for text."""
    go_on = threading.Event()

    def text() -> Iterator[str]:
        yield "Good "
        go_on.wait(WAIT)

    with Client(server.url, model="qwen3_tts") as client:
        speech = client.speak_stream(text(), **EMBEDDING, x_vector_only=None)
        try:
            until(lambda: metric(server, "talker_live_streams") == 1)
            yield
        finally:
            go_on.set()
            speech.close()
            until(lambda: metric(server, "talker_live_streams") == 0)


@pytest.mark.parametrize("waits", [False, True], ids=["live", "waiting"])
def test_a_client_that_leaves(limited: TritonServer, waits: bool) -> None:
    gauge = f"talker_{'waiting' if waits else 'live'}_streams"

    def made() -> float:
        """Frames of the speech that is left."""
        before, frames, over = cancelled(limited), metric(limited, "talker_frames_total"), threading.Event()
        with (
            occupied(limited) if waits else nullcontext(),
            tritonclient.grpc.InferenceServerClient(limited.url) as client,
        ):
            call = client.async_infer(MODEL, inputs(tritonclient.grpc, asked()), lambda result, error: over.set())
            until(lambda: metric(limited, gauge) == 1 or over.is_set())
            call.cancel()
            until(lambda: metric(limited, gauge) == 0)
            until(lambda: cancelled(limited) == before + 1)
        wait_until_quiet(limited, WAIT)
        return metric(limited, "talker_frames_total") - frames

    # A client that is held up for a moment leaves behind the limit, so the best of some tries counts.
    assert any(made() < 500 for _ in range(5)), "it goes on to the limit"


def test_too_many_at_once(limited: TritonServer) -> None:
    short = asked("Good morning.", max_frames=np.array([3], np.int32))
    other = {**in_json(short), "parameters": {"caller": "other"}}
    with ThreadPoolExecutor(3) as pool:
        with occupied(limited):
            made = [pool.submit(plain, limited, short) for _ in range(2)]
            until(lambda: metric(limited, "talker_waiting_streams") == 2)
            refused = plain(limited, short)
            assert refused["status"] == 503
            assert "overloaded: 2 whole speeches are made already" in refused["error"]
            others = pool.submit(post, limited, f"/v2/models/{MODEL}/infer", other)
            assert "outputs" in others.result(), "another caller has its share"
        for answer in made:
            assert len(answer.result()["audio"]) == 3 * 1920
    assert len(plain(limited, short)["audio"]) == 3 * 1920
