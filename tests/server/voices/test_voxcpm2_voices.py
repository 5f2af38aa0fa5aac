"""Voices of VoxCPM2 on a real server: its voice encoder and the speaker cache, without speech."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from safetensors.numpy import load
from voice_clone_client import Client, Unsupported

from tests.support.doubles.fakes import clip
from tests.support.families.bare_family import encode
from tests.support.families.voxcpm2_audio import make_audio_vae_folder
from tests.support.servers.cache_calls import Cache
from tools.triton_server import MODELS, TritonServer
from voice_clone.families.voxcpm2.encoder_stage import load_encoder
from voice_clone.settings import Settings
from voice_clone.stages.protocols import Arrays

pytestmark = pytest.mark.thorough

FAMILY = "voxcpm2"
LOADED = [
    "--model-control-mode=explicit",
    "--load-model=speaker_cache",
    f"--load-model={FAMILY}_voice_encoder",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_vae_folder(tmp_path_factory.mktemp("voxcpm2") / "checkpoint").folder


def started(checkpoint: Path, folder: Path) -> TritonServer:
    environment = {"VOICE_CLONE_VOXCPM2_CHECKPOINT_DIR": str(checkpoint)}
    return TritonServer(
        None, folder / "voices", models=MODELS, log=folder / "log", options=LOADED, environment=environment
    )


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with started(checkpoint, tmp_path_factory.mktemp("server")) as server:
        yield server
        server.kill()


def expected(checkpoint: Path, audio: bytes, mode: str) -> Arrays:
    """What the bare stage makes of a clip."""
    given = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}
    return encode(load_encoder(Settings({}, given, FAMILY)), audio, mode)


def check(artifacts: bytes, wanted: Arrays) -> None:
    got = load(artifacts)
    assert got.keys() == wanted.keys() == {"reference_latents", "prompt_latents"}
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype == np.float32
        np.testing.assert_array_equal(got[name], array)


def test_a_voice_has_what_the_bare_stage_makes(checkpoint: Path, cache: Cache) -> None:
    audio = clip(1, 10.0, 24000)
    shown = cache("upload", name="Ada", audio=audio, reference_text="Some words.", options={"wait": True})[0]
    [state] = shown["artifacts"]
    assert (state["model_type"], state["mode"], state["state"]) == (FAMILY, "icl", "ready")
    wanted = expected(checkpoint, audio, "icl")
    assert {name: array.nbytes for name, array in wanted.items()} == {
        "reference_latents": 64_512,
        "prompt_latents": 64_512,
    }
    result, artifacts = cache("resolve", name="Ada")
    assert (result["mode"], result["status"]) == ("icl", "hit")
    check(artifacts, wanted)
    inline, artifacts = cache("resolve", audio=audio, model_type=FAMILY, reference_text="Some words.")
    assert (inline["mode"], inline["status"]) == ("icl", "miss")
    check(artifacts, wanted)
    cache("delete", name="Ada")


@pytest.mark.parametrize(("seconds", "rate"), [(1.0, 16000), (4.01, 8000), (4.01, 44100), (30.0, 48000)])
def test_clips_of_any_length_and_rate(checkpoint: Path, cache: Cache, seconds: float, rate: int) -> None:
    """The shortest and the longest clip that the server takes, too."""
    audio = clip(2, seconds, rate)
    shown = cache("upload", name="Any", audio=audio, options={"wait": True})[0]
    assert [(each["mode"], each["state"]) for each in shown["artifacts"]] == [("reference", "ready")]
    wanted = expected(checkpoint, audio, "reference")
    assert len(wanted["prompt_latents"]) == 0
    check(cache("resolve", name="Any")[1], wanted)
    cache("delete", name="Any")


def test_a_voice_without_a_transcript_has_its_reference_alone(cache: Cache) -> None:
    cache("upload", name="Mute", audio=clip(3), options={"wait": True})
    assert cache("resolve", name="Mute")[0]["mode"] == "reference"
    with pytest.raises(triton.InferenceServerException, match=r"unsupported: .* mode icl needs `reference_text`"):
        cache("resolve", name="Mute", options={"mode": "icl"})
    cache("delete", name="Mute")


def test_a_speaker_embedding_alone_is_no_voice(server: TritonServer) -> None:
    with Client(server.url, model=FAMILY) as client, pytest.raises(Unsupported, match="takes no speaker_embedding"):
        client.upload("Embedded", speaker_embedding=np.ones(192, np.float32))


def test_voices_are_restored_and_another_checkpoint_makes_its_own(
    checkpoint: Path, server: TritonServer, cache: Cache, tmp_path: Path
) -> None:
    audio = clip(4, 3.0, 24000)
    cache("upload", name="Kept", audio=audio, reference_text="Some words.", options={"wait": True})
    voices = tmp_path / "same" / "voices"
    other = make_audio_vae_folder(tmp_path / "checkpoint", seed=1).folder
    shutil.copytree(server.voices, voices)
    shutil.copytree(voices, tmp_path / "other" / "voices")
    cache("delete", name="Kept")
    for folder, its_own, status in (("same", checkpoint, "restored"), ("other", other, "miss")):
        with started(its_own, tmp_path / folder) as again:
            asking = Cache(again)
            result, artifacts = asking("resolve", name="Kept")
            assert result["status"] == status
            check(artifacts, expected(its_own, audio, "icl"))
            asking.close()
            again.kill()
