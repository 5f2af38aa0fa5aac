"""Chirp, which lives in tools/example_family only, beside Qwen3-TTS: what test_fish_speech.py cannot find."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from safetensors.numpy import load
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceCloneError, cli

from perf.bench.gateway_process import Gateway
from tests.conftest import CheckpointFactory
from tests.support.families.chirp_bare import BareChirp
from tests.support.servers.cache_calls import Cache
from tests.support.servers.running import running
from tests.support.servers.server_metrics import metric, series, until_cancelled, wait_until_quiet
from tests.support.servers.talker_calls import Call
from tests.support.waiting import WAIT, until
from tools.example_family.checkpoint_maker import make_checkpoint
from tools.models import write
from tools.triton_server import MODELS, TritonServer

pytestmark = pytest.mark.thorough

FAMILIES = ("qwen3_tts", "chirp")
RATE, FRAME = 44100, 441
TEXT = "Good morning."
VOICE = "Ada"
ENDLESS = {"top_k": 5}  # with it no stream of chirp ends by itself
SLOTS = {"qwen3_tts": 6, "chirp": 3}
SETTINGS = {
    "VOICE_CLONE_WARM_UP_SECONDS": "0.1",
    "VOICE_CLONE_MAX_STREAMS": str(SLOTS["qwen3_tts"]),
    "VOICE_CLONE_CHIRP_MAX_STREAMS": str(SLOTS["chirp"]),
    "VOICE_CLONE_CHIRP_MAX_LENGTH": "2048",
    "VOICE_CLONE_CHIRP_MAX_TEXT_TOKENS": "200",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(0, tmp_path_factory.mktemp("chirp") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareChirp:
    return BareChirp(checkpoint)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-families")


@pytest.fixture(scope="module")
def server(
    checkpoint_folder: CheckpointFactory, checkpoint: Path, folder: Path, reference_clip: bytes, reference_text: str
) -> Iterator[TritonServer]:
    """A server of both, with a voice."""
    checkpoints = [checkpoint_folder("tiny", 0), checkpoint]
    write(["tools.example_family"], folder / "models")
    with running(checkpoints, folder, [MODELS, folder / "models"], **SETTINGS) as server:
        with Client(server.url) as client:
            client.upload(VOICE, reference_clip, reference_text=reference_text, wait=True)
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    """A client whose family is chirp."""
    with Client(server.url, model="chirp") as client:
        yield client


@pytest.fixture(scope="module")
def gateway(server: TritonServer, folder: Path) -> Iterator[Gateway]:
    """With an alias for each family."""
    aliases = "tts-1=qwen3_tts,tts-1-hd=chirp"
    with Gateway(server.url, folder / "gateway-log", "--model-aliases", aliases) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def expected(bare: BareChirp, reference_clip: bytes, reference_text: str) -> Any:
    """The speech of `VOICE` by the bare network."""
    timbre = bare.timbre(reference_clip)
    return lambda text=TEXT, **more: bare.speak(text, timbre, reference_text, **more)


def speak(client: Client, text: str = TEXT, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Samples and the last info of a speech of chirp, checked for what holds of each."""
    chunks = list(client.speak(text, **{"voice": VOICE, "seed": 2, **given}))
    info = dict(chunks[-1].info or {})
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.sample_rate for chunk in chunks} == {RATE}
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert len(samples) == info["frames"] * FRAME
    return samples, info


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal but for the order of sums, which depends on the chunks."""
    return got.shape == wanted.shape and bool(np.abs(got - wanted).max(initial=0) <= 1e-6)


def test_one_upload_serves_both(cache: Cache, bare: BareChirp, reference_clip: bytes) -> None:
    shown = {each["model_type"]: each for each in cache("get", name=VOICE)[0]["artifacts"]}
    assert {family: (each["mode"], each["state"]) for family, each in shown.items()} == {
        "qwen3_tts": ("icl", "ready"),
        "chirp": ("clone", "ready"),
    }
    result, packed = cache("resolve", name=VOICE, model_type="chirp")
    artifacts = load(packed)
    assert result["status"] == "hit" and artifacts.keys() == {"timbre"}
    assert artifacts["timbre"].dtype == np.float16
    np.testing.assert_array_equal(artifacts["timbre"], bare.timbre(reference_clip))
    reported = cache("stats")[0]
    assert reported["model_types"] == list(FAMILIES), "the checkpoints' order decides"


def test_a_voice_that_is_an_embedding_is_for_qwen_alone(client: Client, cache: Cache) -> None:
    embedding = client.speaker_embedding(VOICE, model="qwen3_tts")
    client.upload("Direct", speaker_embedding=embedding, model="qwen3_tts", wait=True)
    with pytest.raises(VoiceCloneError):
        speak(client, voice="Direct")
    with pytest.raises(Unsupported):
        client.speaker_embedding(VOICE)
    client.delete("Direct")


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_server_speaks_as_the_bare_network(client: Client, expected: Any, seed: int) -> None:
    wanted = expected(seed=seed)
    samples, info = speak(client, seed=seed)
    assert info["frames"] == len(wanted.codes) and info["finish_reason"] == wanted.finish == "stop"
    assert info["voice"] == VOICE and info["mode"] == "clone" and info["seed"] == seed
    assert same(samples, wanted.samples)


def test_a_speech_without_frames(client: Client, expected: Any) -> None:
    seed = next(seed for seed in range(2000) if not len(expected(seed=seed, max_frames=1).codes))
    samples, info = speak(client, seed=seed)
    assert len(samples) == info["frames"] == 0 and info["finish_reason"] == "stop"


def test_plain_tritonclient(server: TritonServer, expected: Any) -> None:
    inputs = {"text": TEXT, "voice": VOICE, "seed": np.array([2], np.uint64), "max_frames": np.array([31], np.int32)}
    call = Call(server, inputs, model="chirp")
    parts, final = [], False
    while not final:
        result = call.next()
        assert not isinstance(result, str), result
        parts.append(result.as_numpy("audio"))
        assert result.as_numpy("sample_rate")[0] == RATE
        final = result.as_numpy("final")[0]
    call.close()
    assert len(parts[0]) == 2 * FRAME, "the first chunk of its schedule"
    assert same(np.concatenate(parts), expected(seed=2, max_frames=31).samples)


def test_the_models_one_by_one(server: TritonServer, expected: Any) -> None:
    asked = Call(server, {"text": TEXT, "voice": VOICE}, model="chirp_prompt")
    made = asked.next()
    asked.close()
    prompt = {name: made.as_numpy(name)[0] for name in ("prompt", "prompt_info")}
    knobs = {"seed": np.array([2], np.uint64), "max_frames": np.array([31], np.int32)}
    call = Call(server, {**prompt, **knobs}, model="chirp_talker")
    codes, voices, final = [], [], False
    while not final:
        result = call.next()
        assert not isinstance(result, str), result
        codes.append(result.as_numpy("codes"))
        voices.append(result.as_numpy("voice")[0])
        final = result.as_numpy("final")[0]
    call.close()
    assert codes[0].dtype == np.uint16
    np.testing.assert_array_equal(np.concatenate(codes), expected(seed=2, max_frames=31).codes)
    # The first chunk has it, and so has a heartbeat before it where the talker is slow.
    assert {load(voice)["timbre"].dtype for voice in voices if voice} == {np.dtype(np.float16)}


def test_the_command_line(
    server: TritonServer, expected: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--url", server.url, "models"]) == 0
    assert capsys.readouterr().out.split() == list(FAMILIES)
    file, url = tmp_path / "hello.wav", ["--url", server.url, "--model", "chirp"]
    command = [*url, "speak", TEXT, "--voice", VOICE, "-o", str(file), "--seed", "2", "--max-frames", "31"]
    assert cli.main([*command, "--option", "vibrato=1.5", "--option", "breath=true"]) == 0
    samples, rate = soundfile.read(file, dtype="float32")
    wanted = expected(seed=2, max_frames=31, options={"vibrato": 1.5, "breath": True}).samples
    assert rate == RATE and len(samples) == len(wanted) and np.abs(samples - wanted).max() <= 2 / 32768
    assert cli.main([*command, "--option", "subtalker_top_k=3"]) == 1
    assert "'subtalker_top_k' is unknown; this model has breath, vibrato" in capsys.readouterr().err
    assert cli.main([*url, "doctor"]) == 0


def say(http: httpx2.Client, **more: Any) -> httpx2.Response:
    body = {"input": TEXT, "voice": VOICE, "seed": 2, "max_new_tokens": 31, "response_format": "wav", **more}
    return http.post("/v1/audio/speech", json=body)


def test_the_gateway(http: httpx2.Client, expected: Any) -> None:
    listed = {model["id"]: model["root"] for model in http.get("/v1/models").json()["data"]}
    assert [*listed] == [*FAMILIES, "tts-1", "tts-1-hd"]
    assert listed["tts-1"] == "qwen3_tts" and listed["tts-1-hd"] == "chirp"
    wanted = expected(seed=2, max_frames=31, options={"vibrato": 1.5}).samples
    for model in ("chirp", "tts-1-hd"):
        answer = say(http, model=model, options={"vibrato": 1.5})
        assert answer.status_code == 200, answer.text
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
        assert rate == RATE and len(samples) == len(wanted) and np.abs(samples - wanted).max() <= 2 / 32768
    for model in (None, "tts-1", "qwen3_tts"):
        answer = say(http, response_format="pcm", max_new_tokens=3, **({"model": model} if model else {}))
        assert answer.headers["content-type"] == "audio/pcm;rate=24000" and len(answer.content) == 2 * 3 * 1920
    assert say(http, model="chirp", response_format="pcm").headers["content-type"] == "audio/pcm;rate=44100"


def test_the_gateway_reports_what_chirp_refuses(http: httpx2.Client) -> None:
    answer = say(http, model="chirp", options={"warble": 1})
    assert answer.status_code == 400 and "this model has breath, vibrato" in answer.json()["error"]["message"]
    answer = say(http, model="chirp", repetition_penalty=1.1)
    assert 400 <= answer.status_code < 600 and "no repetition_penalty" in answer.json()["error"]["message"]
    assert say(http, model="nightingale").status_code == 404


def test_options_change_the_speech(client: Client, expected: Any) -> None:
    plain, _ = speak(client, max_frames=31)
    for options in ({"vibrato": 4}, {"vibrato": 0.5}, {"breath": True}):
        samples, _ = speak(client, options=options, max_frames=31)
        assert same(samples, expected(seed=2, max_frames=31, options=options).samples)
        assert not same(samples, plain)
    neutral, _ = speak(client, options={"vibrato": 0, "breath": False}, max_frames=31)
    assert same(neutral, plain)
    greedy, _ = speak(client, do_sample=False, max_frames=31)
    assert same(greedy, expected(seed=2, do_sample=False, max_frames=31).samples) and not same(greedy, plain)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"options": {"warble": 1}}, InvalidArgument, "'warble' is unknown; this model has breath, vibrato"),
        ({"options": {"vibrato": "much"}}, InvalidArgument, "vibrato is 'much'; it must be of type float"),
        ({"options": {"vibrato": 99}}, InvalidArgument, r"vibrato is 99; it must lie in 0"),
        ({"options": {"breath": 1}}, InvalidArgument, "breath is 1; it must be of type bool"),
        ({"max_frames": 5000}, InvalidArgument, "together at most 2048 fit"),
        ({"text": "x" * 201}, InvalidArgument, "text has 201 bytes; at most 200"),
    ],
)
def test_what_chirp_refuses(client: Client, given: dict[str, Any], error: type[VoiceCloneError], message: str) -> None:
    with pytest.raises(error, match=message):
        speak(client, **given)


def test_qwen_does_not_know_the_options_of_chirp(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="'vibrato' is unknown; this model has instruct, subtalker_do_"):
        client.speak(TEXT, voice=VOICE, model="qwen3_tts", options={"vibrato": 1}).read()


def test_settings_of_one_family(client: Client, folder: Path) -> None:
    log = (folder / "log").read_text(errors="replace")
    for family, slots in SLOTS.items():
        assert f"{family}_talker: {slots} streams" in log
    text = "word " * 50  # 250 bytes
    assert len(client.speak(text, voice=VOICE, model="qwen3_tts", max_frames=2).read()[0]) == 2 * 1920


def test_a_client_that_leaves_frees_its_slot(server: TritonServer, client: Client) -> None:
    def leave() -> int:
        speeches = [client.speak(TEXT, voice=VOICE, seed=n, max_frames=1900, **ENDLESS) for n in range(SLOTS["chirp"])]
        for speech in speeches:
            next(speech)  # each has a slot
        for speech in speeches:
            speech.close()
        return len(speeches)

    for _ in range(2):  # all slots are free for the second time
        until_cancelled(server, leave, "chirp")
    until(lambda: metric(server, "talker_live_streams", "chirp") == metric(server, "code2wav_streams", "chirp") == 0)


def test_metrics_distinguish_the_families(server: TritonServer, client: Client) -> None:
    wait_until_quiet(server, WAIT)  # the speeches of other tests are counted
    names = ("talker_frames_total", "talker_speech_seconds_total")
    before = {(name, family): metric(server, name, family) for name in names for family in FAMILIES}

    def added(name: str, family: str) -> float:
        return metric(server, name, family) - before[name, family]

    speak(client, max_frames=20, **ENDLESS)
    until(lambda: added("talker_frames_total", "chirp") == 20)
    assert abs(added("talker_speech_seconds_total", "chirp") - 0.2) < 1e-6
    assert added("talker_frames_total", "qwen3_tts") == 0
    client.speak(TEXT, voice=VOICE, model="qwen3_tts", max_frames=5, seed=1).read()
    until(lambda: added("talker_frames_total", "qwen3_tts") == 5)
    assert abs(added("talker_speech_seconds_total", "qwen3_tts") - 0.4) < 1e-6
    assert added("talker_frames_total", "chirp") == 20
    labelled = [
        (name, labels.get("family")) for name, labels, _ in series(server) if name.startswith(("talker", "code"))
    ]
    assert {family for _, family in labelled} == set(FAMILIES)
    assert {name for name, family in labelled if family == "chirp"} == {
        name for name, family in labelled if family == "qwen3_tts"
    }
