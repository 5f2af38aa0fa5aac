"""The speaker cache serves every family: made-up encoders of six, side by side in one real server."""

from __future__ import annotations

import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from safetensors.numpy import load

from tests.support.doubles.fakes import FAMILIES, MODES, FakeEncoder, clip
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.waiting import WAIT, until
from tools.triton_server import TritonServer
from voice_clone.audio import decode

CASES = [(family, mode) for family, (_, modes) in FAMILIES.items() for mode in modes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("families")
    models = make_repository(folder / "models")
    with TritonServer(None, folder / "voices", models=models, log=folder / "log") as server:
        yield server
        server.kill()


def expected(family: str, mode: str, audio: bytes) -> dict[str, np.ndarray]:
    """What the family's encoder makes of a clip."""
    decoded = decode(audio)
    made = FakeEncoder().encode(family, decoded.waveform, decoded.sample_rate, mode)
    return {name: np.atleast_1d(array) for name, array in made.artifacts.items()}


def check(artifacts: bytes, wanted: dict[str, np.ndarray]) -> None:
    got = load(artifacts)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_artifacts_come_back_as_the_encoder_made_them(cache: Cache, family: str, mode: str) -> None:
    audio = clip(zlib.crc32(f"{family} {mode}".encode()) % 1000)
    name = f"{family} {mode}"
    cache("upload", name=name, audio=audio, model_type="qwen3_tts", reference_text="Some words.")
    result, artifacts = cache("resolve", name=name, model_type=family, options={"mode": mode})
    assert result["model_type"] == family and result["mode"] == mode
    check(artifacts, expected(family, mode, audio))
    again, same = cache("resolve", name=name.upper(), model_type=family, options={"mode": mode})
    assert again["status"] == "hit" and same == artifacts
    asked = {"audio": audio, "model_type": family, "reference_text": "Some words.", "options": {"mode": mode}}
    inline, inline_artifacts = cache("resolve", **asked)
    assert inline["status"] == "miss" and inline_artifacts == artifacts
    assert cache("resolve", **asked)[0]["status"] == "hit"
    cache("delete", name=name)


def test_one_voice_in_every_family_is_deleted_everywhere(cache: Cache) -> None:  # C4, A4
    audio = clip(2001)
    cache("upload", name="Everywhere", audio=audio, reference_text="Some words.", options={"wait": True})
    for family, mode in CASES:
        _, artifacts = cache("resolve", name="Everywhere", model_type=family, options={"mode": mode})
        check(artifacts, expected(family, mode, audio))
    made = {(each["model_type"], each["mode"]) for each in cache("get", name="Everywhere")[0]["artifacts"]}
    assert made == set(CASES)
    before = cache("stats")[0]["pools"]["registered"]["entries"]
    cache("delete", name="Everywhere")
    assert cache("stats")[0]["pools"]["registered"]["entries"] == before - len(CASES)


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


def test_the_families_of_this_server_are_found(cache: Cache) -> None:
    assert cache("stats")[0]["model_types"] == sorted(FAMILIES)
    audio = clip(2003)
    shown = cache("upload", name="Found", audio=audio, reference_text="Some words.", options={"wait": True})[0]
    states = {each["model_type"]: (each["mode"], each["state"]) for each in shown["artifacts"]}
    assert states == {family: (next(iter(modes)), "ready") for family, modes in MODES.items()}
    result, artifacts = cache("resolve", name="Found")  # no family given: the first
    assert result["model_type"] == min(FAMILIES) and result["status"] == "hit"
    check(artifacts, expected(min(FAMILIES), "icl", audio))
    cache("delete", name="Found")


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


def test_a_voice_without_a_transcript(cache: Cache) -> None:
    shown = cache("upload", name="Silent", audio=clip(2004), options={"wait": True})[0]
    states = {each["model_type"]: (each["mode"], each["state"]) for each in shown["artifacts"]}
    for family, modes in MODES.items():
        mode = next((mode for mode, needs in modes.items() if not needs), None)
        assert states[family] == ((next(iter(modes)), "unsupported") if mode is None else (mode, "ready"))
        if mode is not None:
            assert cache("resolve", name="Silent", model_type=family)[0]["mode"] == mode
    [reason] = {each["reason"] for each in shown["artifacts"] if each["model_type"] == "fish_speech"}
    assert "upload it again with `reference_text`" in reason
    for operation in ("resolve", "prepare"):
        with pytest.raises(triton.InferenceServerException, match=r"unsupported: .*upload it again") as failure:
            cache(operation, name="Silent", model_type="fish_speech")
        assert failure.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(triton.InferenceServerException, match=r"invalid_argument: .* needs `reference_text`; send it"):
        cache("resolve", audio=clip(2004), model_type="fish_speech")
    cache("delete", name="Silent")


def test_a_stampede_extracts_once(server: TritonServer, cache: Cache) -> None:  # B9, C9
    for round_ in range(3):
        before = cache("stats")[0]["extractions"]
        name = f"Stampede {round_}"
        audio = clip(3000 + round_)
        cache("upload", name=name, audio=audio, reference_text="Some words.", model_type="qwen3_tts")

        def resolve(_: int, name: str = name) -> bytes:
            mine = Cache(server)
            try:
                return mine("resolve", name=name, model_type="fish_speech", options={"mode": "icl"})[1]
            finally:
                mine.close()

        with ThreadPoolExecutor(50) as pool:
            answers = set(pool.map(resolve, range(50)))
        assert len(answers) == 1
        assert cache("get", name=name)[0]["artifacts"]
        until(lambda: not cache("stats")[0]["in_flight"])
        assert cache("stats")[0]["extractions"] == before + 2  # the upload's own family, and fish_speech
        cache("delete", name=name)


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
