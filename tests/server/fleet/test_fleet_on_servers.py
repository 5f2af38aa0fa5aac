"""Three tritonservers on one PostgreSQL: what is acknowledged by one holds on all, and one of them extracts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.doubles.fakes import Voices, clip
from tests.support.official.deployment_files import metrics_in_manifests
from tests.support.official.postgres import Databases
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.servers.server_metrics import series
from tests.support.servers.single_model import write_model
from tests.support.waiting import until
from voice_clone.speakers.postgres.history import IDLE_PERIOD
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def fleet(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TritonServer]]:
    """Servers of speaker_cache and made-up encoders."""
    folder, dsn = tmp_path_factory.mktemp("fleet"), databases.take()
    models = make_repository(folder / "models", ("qwen3_tts",))
    environment = {"VOICE_CLONE_VOICE_STORE": dsn, "VOICE_CLONE_VOICE_STORE_TIMEOUT": "20", "FAKE_DELAY": "0.5"}
    servers = [
        TritonServer(
            None, folder / f"unused-{number}", models=models, log=folder / f"log-{number}", environment=environment
        )
        for number in range(3)
    ]
    try:
        for server in servers:
            server.start(120)
        yield servers
    finally:
        for server in servers:
            server.kill()
            server.stop()
    assert not list(folder.glob("unused-*")), "voices were written to a directory"
    databases.give_back(dsn)


@pytest.fixture
def caches(fleet: list[TritonServer]) -> Iterator[list[Cache]]:
    made = [Cache(server) for server in fleet]
    yield made
    for cache in made:
        cache.close()


def test_an_acknowledged_upload_resolves_on_all_at_once_and_a_deletion_holds_on_all(caches: list[Cache]) -> None:
    for cache in caches:
        cache("list")  # it hears of the deletions of other tests
    before = [cache("stats")[0]["entries"] for cache in caches]
    for seed in range(6):
        uploaded = caches[seed % 3]("upload", name="Erna", audio=clip(seed), options={"wait": True, "replace": True})[0]
        replies = [cache("resolve", name="Erna") for cache in caches]
        assert len({artifacts for _, artifacts in replies}) == 1
        assert {result["generation"] for result, _ in replies} == {uploaded["generation"]}
    caches[0]("delete", name="Erna")
    for cache, entries in zip(caches, before, strict=True):
        with pytest.raises(InferenceServerException, match="speaker_not_found"):
            cache("resolve", name="Erna")
        assert cache("stats")[0]["entries"] == entries


def test_a_style_that_one_server_has_taken_speaks_on_all_and_goes_on_all(caches: list[Cache]) -> None:
    caches[0]("upload", name="Ida", audio=clip(1), options={"wait": True})
    first = caches[1]("resolve", name="Ida")[1]
    for seed, cache in enumerate(caches, 2):
        styled = cache("upload", name="Ida", audio=clip(seed), options={"style": "happy", "replace": True})[0]
        replies = [each("resolve", name="Ida", options={"style": "happy"}) for each in caches]
        assert len({artifacts for _, artifacts in replies}) == 1 and replies[0][1] != first
        assert {result["generation"] for result, _ in replies} == {styled["generation"]}
        assert {each("resolve", name="Ida", options={"style": "sad,neutral"})[1] for each in caches} == {first}
    caches[2]("delete", name="Ida", options={"style": "happy"})
    for cache in caches:
        with pytest.raises(InferenceServerException, match="its styles are neutral"):
            cache("resolve", name="Ida", options={"style": "happy"})
        assert cache("resolve", name="Ida")[1] == first
    caches[1]("delete", name="Ida")


def test_ninety_six_cold_requests_on_three_servers_are_one_extraction(
    fleet: list[TritonServer], caches: list[Cache]
) -> None:
    caches[0]("upload", name="Cold", audio=clip(7), options={"wait": True})
    before = sum(cache("stats")[0]["extractions"] for cache in caches)
    caches[0]("upload", name="Cold", audio=clip(8), options={"replace": True})
    with ThreadPoolExecutor(96) as pool:
        many = [Cache(fleet[number % 3]) for number in range(96)]
        replies = list(pool.map(lambda cache: cache("resolve", name="Cold"), many))
        for cache in many:
            cache.close()
    assert len({artifacts for _, artifacts in replies}) == 1
    assert sum(cache("stats")[0]["extractions"] for cache in caches) == before + 1


def test_the_state_of_the_store_is_reported(fleet: list[TritonServer], caches: list[Cache]) -> None:
    assert caches[0]("stats")[0]["store"]["reachable"] is True
    reported = {name for name, _, _ in series(fleet[0])}
    counters = ("look_failures", "claims_refused", "write_failures")
    assert reported >= {f"speaker_cache_store_{name}_total" for name in counters} | {"speaker_cache_store_unreadable"}
    alerts = {name for name in metrics_in_manifests() if name.startswith("speaker_cache_")}
    assert alerts and reported >= alerts


def test_a_server_that_dies_takes_no_voice_with_it(fleet: list[TritonServer], caches: list[Cache]) -> None:
    uploaded = caches[2]("upload", name="CacheUsage", audio=clip(9), options={"wait": True})[0]
    artifacts = caches[2]("resolve", name="CacheUsage")[1]
    fleet[2].kill()
    for cache in caches[:2]:
        result, found = cache("resolve", name="CacheUsage")
        assert (result["generation"], result["status"], found) == (uploaded["generation"], "restored", artifacts)
    replaced = caches[0]("upload", name="CacheUsage", audio=clip(10), options={"replace": True})[0]
    assert replaced["generation"] > uploaded["generation"]
    caches[0]("delete", name="CacheUsage")
    fleet[2].start(120)  # for the other tests


SLOW = '''"""A model whose load ends when a file is there."""

import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        while not Path("{loaded}").exists():
            time.sleep(0.05)
'''
CONFIG = 'name: "slow_talker" backend: "python" max_batch_size: 0 instance_group [ { count: 1 kind: KIND_CPU } ]'


def test_a_server_during_whose_start_another_deletes_a_voice_serves(databases: Databases, tmp_path: Path) -> None:
    """Triton refuses calls from model to model until all models are loaded, as it does when it stops."""
    dsn, loaded, log = databases.take(), tmp_path / "loaded", tmp_path / "log"
    other = Voices(tmp_path, dsn=dsn)
    other.upload("Erna", 1)
    models = make_repository(tmp_path / "models", ("qwen3_tts",))
    write_model(models, SLOW.format(loaded=loaded), CONFIG)
    environment = {"VOICE_CLONE_VOICE_STORE": dsn, "VOICE_CLONE_VOICE_STORE_TIMEOUT": "20"}
    server = TritonServer(None, tmp_path / "unused", models=models, log=log, environment=environment)
    try:
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(server.start, 120)
            try:
                until(lambda: started.done() or (log.exists() and "restored 1 voices" in log.read_text()))
                other.call("delete", name="Erna")
                time.sleep(3 * IDLE_PERIOD)  # the server hears of that
                assert not started.done()
            finally:
                loaded.touch()
            started.result(120)
        cache = Cache(server)
        made = cache("upload", name="Uwe", audio=clip(2), options={"wait": True})[0]
        assert [each["state"] for each in made["artifacts"]] == ["ready"]
        cache.close()
    finally:
        server.kill()
        server.stop()
        other.cache.close()
        databases.give_back(dsn)
