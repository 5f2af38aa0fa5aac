"""Families rest and wake up in one server: no request fails, and they sound as before."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, Overloaded, Unsupported

from tests.support.families.trials import TRIALS
from tests.support.servers.code2wav_calls import CODEBOOKS, asking
from tests.support.servers.running import SETTINGS, running
from tests.support.servers.server_logs import Logs
from tests.support.servers.server_metrics import ended_streams, series
from tests.support.servers.talker_calls import Call
from tests.support.waiting import WAIT, until
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

SECONDS = 0.6  # without work after which a model rests
FAMILIES = ("qwen3_tts", "pocket_tts")
HEAVY = {f"{family}_{stage}" for family in FAMILIES for stage in ("talker", "code2wav", "voice_encoder")}
TEXT, VOICE, FRAMES = "Good morning to you.", "Ada", 24
RESTS = 20
REST = {"VOICE_CLONE_REST_MINUTES": str(SECONDS / 60)}

Speech = tuple[NDArray[np.float32], int]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    pocket = TRIALS["pocket_tts"].make(0, folder / "pocket")
    return {"qwen3_tts": shutil.copytree(SHIPPED, folder / "demo"), "pocket_tts": pocket}


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running(list(checkpoints.values()), tmp_path_factory.mktemp("rest"), **SETTINGS, **REST) as server:
        with Client(server.url) as client:
            client.upload(VOICE, CLIP, wait=True)
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def wakes(server: TritonServer) -> dict[str, float]:
    """How often each model was loaded again."""
    return {labels["model"]: value for name, labels, value in series(server) if name == "model_wakes_total"}


def resting(client: Client) -> set[str]:
    """The talkers and decoders that rest."""
    return {model for model, kept in client.stats()["kept"].items() if kept and kept.get("resting")}


def until_rest(client: Client) -> None:
    until(lambda: len(resting(client)) == 2 * len(FAMILIES), 2 * WAIT)  # a text in pieces keeps a talker for a minute


def speak(client: Client, family: str) -> Speech:
    return client.speak(TEXT, voice=VOICE, model=family, seed=2, max_frames=FRAMES).read()


def test_families_in_turns_sound_as_before(server: TritonServer, client: Client) -> None:
    before = {family: speak(client, family) for family in FAMILIES}
    for _ in range(2):
        for family in FAMILIES:
            until_rest(client)
            first = wakes(server)
            assert first.keys() == HEAVY
            samples, rate = speak(client, family)
            assert rate == before[family][1] and np.array_equal(samples, before[family][0])
            woken = {model for model, count in wakes(server).items() if count > first[model]}
            assert woken == {f"{family}_talker", f"{family}_code2wav"}, "the other family rests"


def test_questions_wake_no_model(server: TritonServer, client: Client) -> None:
    until_rest(client)
    first = wakes(server)
    until(lambda: all(family.synthesizer for family in client.families(synthesizers=True).values()))
    assert client.ready() and client.list() and client.get(VOICE) and client.models()
    assert len(resting(client)) == 4 and wakes(server) == first


def test_a_voice_is_uploaded_spoken_and_deleted_at_rest(server: TritonServer, client: Client) -> None:
    until_rest(client)
    client.upload("Bea", CLIP, wait=True)
    samples, _ = client.speak(TEXT, voice="Bea", seed=2, max_frames=FRAMES).read()
    assert np.array_equal(samples, speak(client, FAMILIES[0])[0]), "it is the same clip"
    until_rest(client)
    client.delete("Bea")
    assert {voice.name for voice in client.list()} == {VOICE}
    assert len(resting(client)) == 4
    speak(client, FAMILIES[0])


def test_a_stream_that_waits_for_its_text_keeps_its_talker_awake(server: TritonServer, client: Client) -> None:
    found: list[float] = []

    def text() -> Iterator[str]:
        yield "Good morning "
        for _ in range(2):
            time.sleep(2 * SECONDS)
            found.append(wakes(server)["qwen3_tts_talker"])
        yield "to you."

    assert sum(len(chunk.samples) for chunk in client.speak_stream(text(), voice=VOICE, seed=2)) > 0
    assert found[0] == found[1] == wakes(server)["qwen3_tts_talker"]


@contextmanager
def replaced(checkpoint: Path) -> Iterator[None]:
    """A checkpoint with another file meanwhile."""
    file = next(path for path in checkpoint.iterdir() if path.suffix == ".safetensors")
    kept = file.with_name(".kept")
    file.rename(kept)
    file.write_bytes(kept.read_bytes())
    yield
    kept.replace(file)


def test_a_replaced_checkpoint_asks_for_a_new_start(checkpoints: dict[str, Path], client: Client) -> None:
    until_rest(client)
    with replaced(checkpoints["pocket_tts"]), pytest.raises(Unsupported, match="start the server again"):
        speak(client, "pocket_tts")
    speak(client, "qwen3_tts")
    speak(client, "pocket_tts")


def test_a_decoder_alone_that_does_not_wake(checkpoints: dict[str, Path], client: Client) -> None:
    """The talker is at work then; it stays awake for a minute after a text that came in pieces."""
    list(client.speak_stream(iter(TEXT.split()), voice=VOICE, max_frames=FRAMES))
    until(lambda: "qwen3_tts_code2wav" in resting(client))
    assert "qwen3_tts_talker" not in resting(client)
    with replaced(checkpoints["qwen3_tts"]):
        for _ in range(5):
            with pytest.raises(Unsupported, match="start the server again"):
                speak(client, "qwen3_tts")
    speak(client, "qwen3_tts")


@contextmanager
def damaged(checkpoint: Path) -> Iterator[None]:
    """A checkpoint whose decoder cannot be loaded meanwhile, though its files look as before."""
    file = checkpoint / "speech_tokenizer" / "config.json"
    before, status = file.read_bytes(), file.stat()

    def write(data: bytes) -> None:
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    write(b" " * len(before))
    try:
        yield
    finally:
        write(before)


def test_a_decoder_that_can_be_loaded_again_in_the_middle_of_a_speech(
    server: TritonServer, checkpoints: dict[str, Path], client: Client, logs: Logs
) -> None:
    """The speech has lost its beginning, so it ends, and so does its talker's stream."""
    failed: list[str] = []

    def failures() -> list[str]:
        failed.extend(logs.tracebacks())
        return failed

    list(client.speak_stream(iter(TEXT.split()), voice=VOICE, max_frames=FRAMES))  # keeps the talker awake
    until(lambda: "qwen3_tts_code2wav" in resting(client))
    cancelled = ended_streams(server)["cancelled"]
    with ThreadPoolExecutor(1) as pool:
        with damaged(checkpoints["qwen3_tts"]):
            speech = pool.submit(lambda: client.speak(100 * TEXT, voice=VOICE, max_frames=3000).read())
            until(lambda: bool(failures()))
        with pytest.raises(Overloaded, match="try again later"):
            speech.result(WAIT)
    until(lambda: ended_streams(server)["cancelled"] > cancelled)
    [failure] = failures()
    assert "qwen3_tts_code2wav: loading again failed" in failure
    speak(client, "qwen3_tts")


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_a_voice_deleted_between_its_look_up_and_the_load(
    server: TritonServer, client: Client, stage: str, deleted: bool
) -> None:
    """Nothing of it stays in the model that is loaded then."""
    model = f"qwen3_tts_{stage}"

    def kept() -> int:
        """Of how many voices it keeps something."""
        until_rest(client)
        client.upload("Cid", CLIP, reference_text=TEXT, replace=True, wait=True)
        call = Call(server, {"text": TEXT, "voice": "Cid"}, model="qwen3_tts_prompt")
        answer = call.next()
        call.close()
        prompt = {name: answer.as_numpy(name)[0] for name in ("prompt", "prompt_info")}
        if deleted:
            client.delete("Cid")
        assert model in resting(client)
        if stage == "talker":
            Call(server, {**prompt, "max_frames": np.array([4], np.int32)}).codes()
        else:
            info = json.dumps({"origin": json.loads(prompt["prompt_info"])["origin"]})
            codes = np.ones((4, CODEBOOKS), np.int32)
            assert not isinstance(asking(server)("a stream", 0, codes, codes, True, info), str)
        found = client.stats()["kept"][model]
        if not deleted:
            client.delete("Cid")
        return kept() if "resting" in found else int(found["voices"])

    assert kept() == (0 if deleted else 1)


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_no_request_fails_while_models_rest_and_wake(server: TritonServer, stage: str) -> None:
    """Callers come and go at about the moments when models go to rest. A talker does not rest for a minute after a text
    that came in pieces, of which it answers questions.
    """
    first, answers, ended = wakes(server), Counter[str](), threading.Event()
    models = [f"{family}_{stage}" for family in FAMILIES]

    def leaves(client: Client) -> None:
        with client.speak(TEXT, voice=VOICE, model=random.choice(FAMILIES)) as speech:
            next(iter(speech))

    def uploads(client: Client) -> None:
        name = f"Voice {random.randrange(10**9)}"
        client.upload(name, CLIP, wait=True)
        client.delete(name)

    calls: dict[str, Callable[[Client], object]] = {
        "qwen3_tts": lambda client: speak(client, "qwen3_tts"),
        "pocket_tts": lambda client: speak(client, "pocket_tts"),
        "leaves": leaves,
        "uploads": uploads,
    }
    if stage != "talker":
        calls["text in pieces"] = lambda client: list(
            client.speak_stream(iter(TEXT.split()), voice=VOICE, max_frames=FRAMES)
        )

    def caller(number: int) -> None:
        value = random.Random(number)
        with Client(server.url) as client:
            while not ended.is_set():
                name = value.choice(list(calls))
                try:
                    calls[name](client)
                    answers[name] += 1
                except Exception as error:
                    answers[f"{name}: {error!r}"] += 1
                ended.wait(value.choice([0.0, 1.0]) * value.uniform(0.8, 2.2) * SECONDS)

    def looks() -> None:
        with Client(server.url) as client:
            while not ended.wait(0.05):
                client.stats()

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(looks), *(pool.submit(caller, number) for number in range(3))]
        try:
            until(lambda: all(wakes(server)[model] >= first[model] + RESTS for model in models), 300)
        finally:
            ended.set()
        for each in done:
            each.result()
    assert answers.keys() == calls.keys(), json.dumps(answers)
