"""Which families the speaker cache serves, and what it counts: made-up encoders of six in one real server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from tests.support.doubles.fakes import clip
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("families")
    models = make_repository(folder / "models")
    with TritonServer(None, folder / "voices", models=models, log=folder / "log") as server:
        yield server
        server.kill()


def test_a_family_that_is_not_loaded(cache: Cache) -> None:  # B17
    audio = clip(2002)
    cache("upload", name="Known", audio=audio)
    before = cache("get", name="Known")[0]
    for operation in ("resolve", "prepare"):
        with pytest.raises(triton.InferenceServerException, match=r"unsupported: ") as failure:
            cache(operation, name="Known", model_type="kokoro")
        assert failure.value.status() == "StatusCode.UNIMPLEMENTED"
    after = cache("get", name="Known")[0]
    assert {each["model_type"] for each in after["artifacts"]} == {each["model_type"] for each in before["artifacts"]}
    cache("delete", name="Known")


LOADED = ["--model-control-mode=explicit", "--load-model=speaker_cache", "--load-model=qwen3_tts_voice_encoder"]


@pytest.mark.thorough  # a server for each
@pytest.mark.parametrize("setting", ["", "voxtral, qwen3_tts"])
def test_the_families_of_an_upload_are_those_loaded_or_those_set(tmp_path: Path, setting: str) -> None:
    environment = {"VOICE_CLONE_MODEL_TYPES": setting}
    models = make_repository(tmp_path / "models", ("qwen3_tts", "fish_speech", "voxtral"))
    log = tmp_path / "log"
    with TritonServer(
        None, tmp_path / "voices", models=models, log=log, options=LOADED, environment=environment
    ) as one:
        cache, client = Cache(one), triton.InferenceServerClient(one.url)

        def families() -> list[str]:
            found = cache("stats")[0]["model_types"]
            assert isinstance(found, list)
            return found

        assert families() == (["voxtral", "qwen3_tts"] if setting else ["qwen3_tts"])
        client.load_model("fish_speech_voice_encoder")
        assert families() == (["voxtral", "qwen3_tts"] if setting else ["fish_speech", "qwen3_tts"])
        made = cache("upload", name="Ada", audio=clip(1), reference_text="Some words.", options={"wait": True})[0]
        states = {each["model_type"]: each["state"] for each in made["artifacts"]}
        if setting:  # a family that is set and not loaded
            assert states == {"voxtral": "unsupported", "qwen3_tts": "ready"}
        else:
            assert states == {"fish_speech": "ready", "qwen3_tts": "ready"}
            client.unload_model("qwen3_tts_voice_encoder")
            until(lambda: families() == ["fish_speech"])
            assert cache("resolve", name="Ada")[0]["model_type"] == "fish_speech"
        client.close()
        cache.close()
        one.kill()


def test_metrics_follow_the_statistics(server: TritonServer, cache: Cache) -> None:
    cache("upload", name="Metric", audio=clip(4000), reference_text="Some words.", options={"wait": True})
    for _ in range(5):
        cache("resolve", name="Metric")
    prefix = "voice_clone_speaker_cache_"
    names = ("hits", "misses", "restores", "extractions", "uploads", "deletes")

    def wanted() -> dict[str, float]:
        stats = cache("stats")[0]
        found = {f"{prefix}{name}_total": stats[name] for name in names}
        for pool in ("registered", "inline"):
            for name in ("bytes", "entries"):
                found[f'{prefix}{name}{{pool="{pool}"}}'] = stats["pools"][pool][name]
        return found | {f"{prefix}voices": stats["speakers"], f"{prefix}extraction_seconds_count": stats["extractions"]}

    def shown() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=WAIT) as answer:
            lines = answer.read().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
        return {name: float(values[name]) for name in wanted()}

    until(lambda: shown() == wanted())  # they are updated one after the other, some time after the statistics
    cache("delete", name="Metric")
