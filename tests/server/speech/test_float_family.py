"""Murmur on a real server: float frames, runs, presets, speech without a voice, a decoder with states of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, Preset, Unsupported

from tests.support.families.murmur.stages import FRAME_SAMPLES, OWN_CHUNKS, REASON, make_checkpoint, speak_bare
from tests.support.servers.talker_calls import Call
from tools.triton_server import MODELS, ROOT, TritonServer

pytestmark = pytest.mark.thorough

REPOSITORIES = [MODELS, ROOT / "tests" / "support" / "families" / "murmur" / "models"]
TEXT = "Good morning."
SEEDS = range(6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(3, tmp_path_factory.mktemp("murmur") / "checkpoint")


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("server")
    settings = {"VOICE_CLONE_WARM_UP_SECONDS": "0.1", "VOICE_CLONE_DETERMINISTIC": "true"}
    with TritonServer(
        [checkpoint], folder / "voices", models=REPOSITORIES, log=folder / "log", environment=settings
    ) as server:
        yield server
        assert server.ready(), "a test made the server unready"


class Speech:
    """What came of a request: samples and frames by chunk, and the info of the last one."""

    def __init__(self, server: TritonServer, seed: int, voice: str | None = None, **options: Any) -> None:
        inputs: dict[str, Any] = {"text": TEXT, "seed": np.array([seed], np.uint64), "options": json.dumps(options)}
        if voice is not None:
            inputs["voice"] = voice
        call = Call(server, inputs, "murmur")
        self.chunks: list[NDArray[np.float32]] = []
        while True:
            result = call.next()
            if isinstance(result, str):
                call.close()
                raise AssertionError(result)
            self.chunks.append(result.as_numpy("audio"))
            if result.as_numpy("final")[0]:
                self.info = json.loads(result.as_numpy("info")[0])
                break
        call.close()
        self.samples = np.concatenate(self.chunks)


@pytest.mark.parametrize("voice", [None, "Ann", "Ben"])
def test_a_served_speech_is_the_bare_one(server: TritonServer, checkpoint: Path, voice: str | None) -> None:
    for seed in SEEDS:
        served = Speech(server, seed, voice)
        expected = speak_bare(checkpoint, TEXT, voice, seed)
        assert served.samples.shape == expected.shape and expected.std() > 0.05
        np.testing.assert_allclose(served.samples, expected, rtol=0, atol=1e-5)
        assert served.info["frames"] * FRAME_SAMPLES == len(served.samples)
        assert served.info["cache"] == ("none" if voice is None else "preset")


def test_speeches_end_by_themselves_and_the_last_frame_is_heard(server: TritonServer) -> None:
    infos = [Speech(server, seed).info for seed in SEEDS]
    assert {info["finish_reason"] for info in infos} <= {"stop", "budget"}
    assert len({info["frames"] for info in infos}) > 2 and min(info["frames"] for info in infos) > 1


def test_a_run_is_the_same_speech(server: TritonServer) -> None:
    for seed in SEEDS:
        stream, run = Speech(server, seed, "Ann"), Speech(server, seed, "Ann", whole=True)
        assert np.array_equal(stream.samples, run.samples)
        assert [len(chunk) for chunk in stream.chunks] == [len(chunk) for chunk in run.chunks]


def test_a_stream_may_have_chunks_of_its_own(server: TritonServer) -> None:
    usual, own = Speech(server, 1, "Ann"), Speech(server, 1, "Ann", chunks=True)
    assert np.array_equal(usual.samples, own.samples)
    heard = np.cumsum([len(chunk) for chunk in own.chunks])[:2] + 30  # that the decoder has kept back
    assert heard.tolist() == [OWN_CHUNKS[0] * FRAME_SAMPLES, sum(OWN_CHUNKS) * FRAME_SAMPLES]


def test_together_as_alone(server: TritonServer) -> None:
    ways: list[dict[str, Any]] = [{"seed": seed, "voice": [None, "Ann"][seed % 2]} for seed in SEEDS]
    ways += [{**way, "whole": True} for way in ways]
    alone = [Speech(server, **way).samples for way in ways]
    with ThreadPoolExecutor(len(ways)) as pool:
        together = list(pool.map(lambda way: Speech(server, **way).samples, ways))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
    assert not np.array_equal(alone[0], alone[2])


def test_a_registered_voice_is_unsupported_and_says_why(server: TritonServer, reference_clip: bytes) -> None:
    with Client(server.url, model="murmur") as client:
        client.upload("Ada", reference_clip)
        try:
            with pytest.raises(Unsupported, match=REASON):
                client.prepare("Ada", timeout=30)
            with pytest.raises(Unsupported, match=REASON):
                list(client.speak(TEXT, voice="Ada"))
            [voice] = client.list()
            assert [(each.model_type, each.mode, each.state) for each in voice.artifacts] == [
                ("murmur", "clone", "unsupported")
            ]
        finally:
            client.delete("Ada")


def test_the_checkpoints_voices_are_listed(server: TritonServer) -> None:
    with Client(server.url, model="murmur") as client:
        assert client.presets() == [Preset("Ann", "murmur"), Preset("Ben", "murmur")]


def test_a_registered_voice_that_it_cannot_use_hides_no_preset(server: TritonServer, reference_clip: bytes) -> None:
    before = Speech(server, SEEDS[0], "Ben")
    with Client(server.url, model="murmur") as client:
        client.upload("Ben", reference_clip)
        try:
            assert not any(preset.registered for preset in client.presets())
            assert np.array_equal(Speech(server, SEEDS[0], "Ben").samples, before.samples)
        finally:
            client.delete("Ben")
