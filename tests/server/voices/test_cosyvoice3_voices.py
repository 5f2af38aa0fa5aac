"""Voices of CosyVoice3 on a real server: its voice encoder of three models and the speaker cache, without speech."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from safetensors.numpy import load
from voice_clone_client import Client, Unsupported

from tests.support.doubles.fakes import clip
from tests.support.families.bare_family import encode
from tests.support.families.cosyvoice3 import make_voice_encoder
from tests.support.servers.cache_calls import Cache
from tools.triton_server import MODELS, TritonServer
from voice_clone.families.cosyvoice3.encoder_stages import load_mel, load_speaker, load_tokens
from voice_clone.settings import Settings

pytestmark = pytest.mark.thorough

FAMILY = "cosyvoice3"
LOADED = [
    "--model-control-mode=explicit",
    "--load-model=speaker_cache",
    *(f"--load-model={FAMILY}_{name}" for name in ("mel", "speaker_encoder", "speech_tokenizer", "voice_encoder")),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voice_encoder(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


def started(checkpoint: Path, folder: Path) -> TritonServer:
    environment = {"VOICE_CLONE_COSYVOICE3_CHECKPOINT_DIR": str(checkpoint)}
    return TritonServer(
        None, folder / "voices", models=MODELS, log=folder / "log", options=LOADED, environment=environment
    )


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with started(checkpoint, tmp_path_factory.mktemp("server")) as server:
        yield server
        server.kill()


def expected(checkpoint: Path, audio: bytes) -> dict[str, NDArray[Any]]:
    """What the bare stages make of a clip."""
    given = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}
    settings, made = Settings({}, given, FAMILY), dict[str, NDArray[Any]]()
    for stage in (load_tokens(settings), load_speaker(settings), load_mel(settings)):
        made |= encode(stage, audio)
    return made


def check(artifacts: bytes, wanted: dict[str, NDArray[Any]]) -> None:
    got = load(artifacts)
    assert got.keys() == wanted.keys() == {"speech_tokens", "speaker", "mel"}
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        if name == "speaker":
            np.testing.assert_allclose(got[name], array, atol=1e-6)
        else:
            np.testing.assert_array_equal(got[name], array)


def test_a_voice_has_what_the_bare_stages_make(checkpoint: Path, cache: Cache) -> None:
    audio = clip(1, 10.0, 24000)
    shown = cache("upload", name="Ada", audio=audio, reference_text="Some words.", options={"wait": True})[0]
    [state] = shown["artifacts"]
    assert (state["model_type"], state["mode"], state["state"]) == (FAMILY, "zero_shot", "ready")
    wanted = expected(checkpoint, audio)
    assert {name: array.nbytes for name, array in wanted.items()} == {
        "speech_tokens": 500,
        "speaker": 768,
        "mel": 80_000,
    }
    result, artifacts = cache("resolve", name="Ada")
    assert (result["mode"], result["status"]) == ("zero_shot", "hit")
    check(artifacts, wanted)
    timbre, artifacts = cache("resolve", name="Ada", options={"mode": "cross_lingual"})
    assert timbre["mode"] == "cross_lingual"
    check(artifacts, wanted)
    inline, artifacts = cache("resolve", audio=audio, model_type=FAMILY, reference_text="Some words.")
    assert (inline["mode"], inline["status"]) == ("zero_shot", "miss")
    check(artifacts, wanted)
    cache("delete", name="Ada")


@pytest.mark.parametrize(("seconds", "rate"), [(1.0, 16000), (4.01, 16000), (4.01, 44100), (30.0, 48000)])
def test_clips_of_any_length_and_rate(checkpoint: Path, cache: Cache, seconds: float, rate: int) -> None:
    """The shortest and the longest clip that the server takes, too."""
    audio = clip(2, seconds, rate)
    shown = cache("upload", name="Any", audio=audio, options={"wait": True})[0]
    assert [(each["mode"], each["state"]) for each in shown["artifacts"]] == [("cross_lingual", "ready")]
    check(cache("resolve", name="Any")[1], expected(checkpoint, audio))
    cache("delete", name="Any")


def test_a_clip_of_a_telephone_is_unsupported(cache: Cache) -> None:
    shown = cache("upload", name="Phone", audio=clip(2, 2.0, 15999), options={"wait": True})[0]
    [state] = shown["artifacts"]
    assert state["state"] == "unsupported" and "at 15999 Hz; this model needs at least 16000 Hz" in state["reason"]
    with pytest.raises(triton.InferenceServerException, match=r"unsupported: .* at least 16000 Hz of a voice"):
        cache("resolve", name="Phone")
    cache("delete", name="Phone")


def test_a_voice_without_a_transcript_has_its_timbre_alone(cache: Cache) -> None:
    cache("upload", name="Mute", audio=clip(3), options={"wait": True})
    assert cache("resolve", name="Mute")[0]["mode"] == "cross_lingual"
    with pytest.raises(triton.InferenceServerException, match=r"unsupported: .* mode zero_shot needs `reference_text`"):
        cache("resolve", name="Mute", options={"mode": "zero_shot"})
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
    other = make_voice_encoder(tmp_path / "checkpoint", seed=1)
    shutil.copytree(server.voices, voices)
    shutil.copytree(voices, tmp_path / "other" / "voices")
    cache("delete", name="Kept")
    for folder, its_own, status in (("same", checkpoint, "restored"), ("other", other, "miss")):
        with started(its_own, tmp_path / folder) as again:
            asking = Cache(again)
            result, artifacts = asking("resolve", name="Kept")
            assert result["status"] == status
            check(artifacts, expected(its_own, audio))
            asking.close()
            again.kill()
