"""What holds of the voices of every family: one upload for all, kept, restored, and erased everywhere."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from safetensors.numpy import load
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceNotFound

from tests.support.doubles.fakes import clip
from tests.support.families.bare import Bare, check_artifacts
from tests.support.families.trials import ADA, CARDS, CLONING, MUTE, TRIALS, bare
from tests.support.same_audio import is_same_audio
from tests.support.servers.cache_calls import Cache
from tests.support.servers.contract_calls import Samples, expected, speak
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("contract")]

WORDS = "Some words."
each_family = pytest.mark.parametrize("family", CARDS)
each_cloning = pytest.mark.parametrize("family", CLONING)
MUTE_TOO = tuple(name for name in CLONING if not all(CARDS[name].modes.values()))
LIMITED = {name: trial for name, trial in TRIALS.items() if trial.too_long}


@pytest.fixture
def upload(client: Client) -> Iterator[Callable[..., dict[str, tuple[str, str]]]]:
    """Uploads voices, which are deleted at the end; the modes and states of one by family."""
    names = []

    def do(name: str, audio: bytes, **given: Any) -> dict[str, tuple[str, str]]:
        client.upload(name, audio, wait=True, **given)
        names.append(name)
        return {each.model_type: (each.mode, each.state) for each in client.get(name).artifacts}

    yield do
    for name in names:
        client.delete(name)


def reasons(client: Client, voice: str) -> dict[str, str]:
    return {each.model_type: str(each.reason) for each in client.get(voice).artifacts}


def best(family: str, transcript: bool) -> tuple[str, str]:
    """Mode and state of a voice with a transcript, or without."""
    card = CARDS[family]
    modes = [mode for mode, needs in card.modes.items() if transcript or not needs]
    state = "ready" if card.artifacts and modes else "unsupported"
    return (modes or [*card.modes])[0], state


def test_one_upload_is_for_all_that_clone(
    client: Client, server: TritonServer, upload: Callable[..., dict[str, tuple[str, str]]]
) -> None:
    assert client.stats()["model_types"][0] == "qwen3_tts", "the first checkpoint's is the default"
    before = client.stats()["extractions"]
    assert upload("Eve", clip(21, 3.0, 24000), reference_text=WORDS) == {name: best(name, True) for name in CARDS}
    assert client.stats()["extractions"] == before + len(CLONING)
    assert {each.model_type: (each.mode, each.state) for each in client.get(MUTE).artifacts} == {
        name: best(name, False) for name in CARDS
    }
    said = reasons(client, MUTE)
    for name, card in CARDS.items():
        if card.artifacts and name not in MUTE_TOO:
            assert "upload it again with `reference_text`" in said[name]
        elif not card.artifacts:
            assert "take the `model` qwen3_tts, of a Base checkpoint" in said[name]
            for refused in (lambda name=name: speak(client, name, ADA), lambda name=name: prepare(server, name)):
                with pytest.raises(Unsupported, match="take the model qwen3_tts"):
                    refused()


def prepare(server: TritonServer, family: str) -> None:
    with Client(server.url, model=family) as own:
        own.prepare(ADA, timeout=30)


@each_cloning
@pytest.mark.parametrize(("seconds", "rate"), [(1.0, 16000), (4.01, 8000), (4.01, 44100), (30.0, 48000)])
def test_a_voice_has_what_the_bare_stages_make_of_its_clip(
    cache: Cache,
    client: Client,
    bare_of: Callable[[str], Bare],
    upload: Callable[..., dict[str, tuple[str, str]]],
    family: str,
    seconds: float,
    rate: int,
) -> None:
    """Of any length and rate that the family takes, registered or in a request, in every mode."""
    audio, card = clip(2, seconds, rate), CARDS[family]
    states = upload("Any", audio, reference_text=WORDS, model=family)
    if rate < max(part.least_rate for part in card.encoders):
        assert (
            states[family][1] == "unsupported" and f"at {rate} Hz; this model needs" in reasons(client, "Any")[family]
        )
        with pytest.raises(triton.InferenceServerException, match=r"unsupported: .* at least 16000 Hz of a voice"):
            cache("resolve", name="Any", model_type=family)
        return
    assert states[family] == best(family, True)
    for number, mode in enumerate(card.modes):
        wanted = bare_of(family).artifacts(audio, mode)
        result, packed = cache("resolve", name="Any", model_type=family, options={"mode": mode})
        assert (result["mode"], result["status"]) == (mode, "miss" if number and result["status"] == "miss" else "hit")
        check_artifacts(load(packed), wanted)
        asked = {"audio": audio, "model_type": family, "reference_text": WORDS, "options": {"mode": mode}}
        result, packed = cache("resolve", **asked)
        assert result["mode"] == mode
        check_artifacts(load(packed), wanted)
        assert cache("resolve", **asked)[0]["status"] == "hit"


def test_a_mode_that_needs_the_transcript_says_so(cache: Cache) -> None:
    for family in CLONING:
        for mode, needs in CARDS[family].modes.items():
            if needs:
                with pytest.raises(triton.InferenceServerException, match=f"unsupported: .* mode {mode} needs `refer"):
                    cache("resolve", name=MUTE, model_type=family, options={"mode": mode})


@pytest.mark.parametrize("family", LIMITED)
def test_a_clip_that_is_too_long_for_one_serves_the_others(
    client: Client, upload: Callable[..., dict[str, tuple[str, str]]], family: str
) -> None:
    trial = LIMITED[family]
    states = upload("Longest", clip(5, trial.longest, 24000), reference_text="Many words.")
    assert states[family][1] == "ready"
    samples, info = speak(client, family, "Longest")
    assert len(samples) and info.get("reference_frames", 1)
    long = clip(7, 40.0, 24000)
    states = upload("Long", long, reference_text="Many words.")
    assert {name: states[name][1] for name in CLONING} == {
        name: "unsupported" if name in LIMITED else "ready" for name in CLONING
    }
    assert trial.too_long in reasons(client, "Long")[family]
    for given in ({"voice": "Long"}, {"reference_audio": long, "reference_text": "Many words."}):
        with pytest.raises(Unsupported, match=trial.too_long):
            speak(client, family, **given)
    for other in CLONING:
        if other not in LIMITED:
            assert len(speak(client, other, "Long")[0])


def test_no_family_takes_a_clip_above_the_limit(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"1 to 60 s"):
        client.upload("Longer", clip(8, 60.5, 16000))


@each_cloning
def test_two_voices_with_one_transcript_never_meet(
    client: Client,
    bare_of: Callable[[str], Bare],
    upload: Callable[..., dict[str, tuple[str, str]]],
    reference_clip: bytes,
    reference_text: str,
    family: str,
) -> None:
    other = clip(7, 4.0, 24000)
    upload("Eve", other, reference_text=reference_text, model=family)
    stages = bare_of(family)
    wanted = {
        name: expected(stages, stages.voice(audio, reference_text)).samples
        for name, audio in ((ADA, reference_clip), ("Eve", other))
    }
    assert not is_same_audio(*wanted.values())
    for name in (ADA, "Eve", ADA, "Eve"):
        assert is_same_audio(speak(client, family, name)[0], wanted[name])


@each_cloning
def test_a_voice_is_prepared_once_and_forgotten_with_its_name(client: Client, family: str) -> None:
    """Later speeches begin behind what its first one has read; so they sound the same."""
    client.upload("Once", clip(9, 5.0, 24000), reference_text=WORDS, wait=True, model=family)
    heard = [speak(client, family, "Once") for _ in range(3)]
    assert all(is_same_audio(samples, heard[0][0]) for samples, _ in heard)
    if CARDS[family].references:
        assert [info["primed"] for _, info in heard] == ["miss", "hit", "hit"]

    def kept() -> dict[str, int]:
        stats = client.stats()["kept"]
        return {name: stats[name]["voices"] for name in stats if name.startswith(f"{family}_")}

    before = kept()
    client.delete("Once")
    after = kept()
    if CARDS[family].prefix_bytes:
        assert after[f"{family}_talker"] == before[f"{family}_talker"] - 1
    if CARDS[family].references:
        assert after[f"{family}_code2wav"] <= before[f"{family}_code2wav"]


@pytest.mark.parametrize("registered", [False, True])
def test_a_stampede_extracts_once_a_family(client: Client, registered: bool) -> None:
    """The first speeches of a clip in all families, also of one that was registered a moment ago."""
    before = client.stats()["extractions"]
    audio = clip(77 + registered, 2.0)
    given: dict[str, Any] = {"reference_audio": audio, "reference_text": "Nobody has heard this one."}
    if registered:
        client.upload("Stampede", audio, reference_text=given["reference_text"])
        given = {"voice": "Stampede"}
    families = [*CLONING, *CLONING]
    barrier = threading.Barrier(len(families))

    def read(family: str) -> Samples:
        barrier.wait(WAIT)
        return speak(client, family, **given)[0]

    with ThreadPoolExecutor(len(families)) as pool:
        heard = list(pool.map(read, families))
    assert client.stats()["extractions"] == before + len(CLONING)
    for one, other in zip(heard[: len(CLONING)], heard[len(CLONING) :], strict=True):
        assert is_same_audio(one, other)
    if registered:
        client.delete("Stampede")


@each_cloning
def test_a_voice_is_its_owners(server: TritonServer, family: str) -> None:
    with Client(server.url, owner="carol") as carol, Client(server.url, owner="dave") as dave:
        carol.upload("Hers", clip(31, 3.0, 24000), reference_text=WORDS, wait=True, model=family)
        assert len(speak(carol, family, "Hers")[0])
        with pytest.raises(VoiceNotFound):
            speak(dave, family, "Hers")
        carol.delete("Hers")


def test_a_deleted_voice_is_erased_in_all(client: Client, server: TritonServer) -> None:
    assert server.voices is not None
    files = {path for path in server.voices.rglob("*") if path.is_file()} | {server.voices / "generation"}  # a counter
    entries = client.stats()["pools"]["registered"]["entries"]
    client.upload("Bob", clip(41, 3.0, 24000), reference_text=WORDS, wait=True)
    assert client.stats()["pools"]["registered"]["entries"] == entries + len(CLONING)
    assert all(len(speak(client, family, "Bob")[0]) for family in CLONING)
    client.delete("Bob")
    assert client.stats()["pools"]["registered"]["entries"] == entries
    for family in CLONING:
        with pytest.raises(VoiceNotFound):
            speak(client, family, "Bob")
    assert {path for path in server.voices.rglob("*") if path.is_file()} <= files


def test_the_next_server_has_them_and_erases_them(
    client: Client, server: TritonServer, checkpoints: dict[str, Path], repositories: list[Path], tmp_path: Path
) -> None:
    """As a crash leaves them."""
    wanted = {family: speak(client, family, ADA)[0] for family in CLONING}
    assert server.voices is not None
    shutil.copytree(server.voices, tmp_path / "voices")
    given = [checkpoints[family] for family in CLONING]
    with running(given, tmp_path, repositories, **SETTINGS) as other, Client(other.url) as of_other:
        for family, samples in wanted.items():
            again, info = speak(of_other, family, ADA)
            assert info["cache"] == "restored" and is_same_audio(again, samples), family
        assert of_other.stats()["extractions"] == 0
        kept = {name: each["voices"] for name, each in of_other.stats()["kept"].items()}
        of_other.delete(ADA)
        until(lambda: any(each["voices"] < kept[name] for name, each in of_other.stats()["kept"].items()))
        for family in CLONING:
            with pytest.raises(VoiceNotFound):
                speak(of_other, family, ADA)


def test_another_checkpoint_makes_voices_of_its_own(
    client: Client, server: TritonServer, repositories: list[Path], reference_clip: bytes, tmp_path: Path
) -> None:
    """Of their clips; a voice that has none is there and cannot be used."""
    assert server.voices is not None
    client.upload("Embedded", speaker_embedding=np.ones(64, np.float32), model="qwen3_tts", wait=True)
    shutil.copytree(server.voices, tmp_path / "voices")
    client.delete("Embedded")
    others = {family: TRIALS[family].make(1, tmp_path / family) for family in CLONING}
    loaded = ["speaker_cache"]
    for family in CLONING:
        parts = CARDS[family].encoders
        loaded += [f"{family}_{part.stage}" for part in parts]
        loaded += [f"{family}_voice_encoder"] if len(parts) > 1 else []
    environment = {f"VOICE_CLONE_{name.upper()}_CHECKPOINT_DIR": str(folder) for name, folder in others.items()}
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in loaded)]
    with TritonServer(
        None,
        tmp_path / "voices",
        models=repositories,
        log=tmp_path / "log",
        options=options,
        environment={**environment, "VOICE_CLONE_MAX_CLIP_SECONDS": "60"},
    ) as other:
        asking = Cache(other)
        for family, folder in others.items():
            result, packed = asking("resolve", name=ADA, model_type=family)
            stages = bare(family, folder)
            made = stages.artifacts(reference_clip, next(iter(CARDS[family].modes)))
            assert result["status"] == "miss", family
            check_artifacts(load(packed), made)
            assert asking("resolve", name=ADA, model_type=family)[0]["status"] == "hit"
        with pytest.raises(triton.InferenceServerException, match=r"registered without audio.*upload a clip of it"):
            asking("resolve", name="Embedded", model_type="qwen3_tts")
        asking.close()
        other.kill()
