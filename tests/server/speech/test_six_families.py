"""All families on one server: one cache, one upload for all, each speaks as it does alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from playwright.sync_api import expect
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceNotFound
from voice_clone_client.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.doubles.fakes import clip
from tests.support.families.cosyvoice3 import make_cosyvoice3
from tests.support.families.cosyvoice3_bare import BareCosyVoice3
from tests.support.families.fish_bare import BareFish
from tests.support.families.omnivoice import BareOmniVoice, make_omnivoice
from tests.support.families.qwen3_bare import GREEDY, BareQwen3
from tests.support.families.voxcpm2_bare import BareVoxCPM2
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.families.voxtral import make_voxtral
from tests.support.families.voxtral_bare import BareVoxtral
from tests.support.official.chromium import WAIT, chromium, tab
from tests.support.same_audio import is_same_audio
from tests.support.servers.running import SETTINGS
from tests.support.servers.server_processes import memory_by_process
from tools.triton_server import TritonServer
from voice_clone.families.cosyvoice3.config import MARK

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, FRAMES = "Good morning.", 60
QUICK: dict[str, Any] = {"num_step": 6, "duration": 2.0}
ORDERS: dict[str, dict[str, Any]] = {
    "cosyvoice3": {"max_frames": FRAMES, "do_sample": False},
    "fish_speech": {"max_frames": FRAMES, "do_sample": False},
    "omnivoice": {"options": QUICK},
    "qwen3_tts": {"max_frames": FRAMES, "do_sample": False, "options": {"subtalker_do_sample": False}},
    "voxcpm2": {"max_frames": 14},
    "voxtral": {"max_frames": FRAMES},
}
SEED = 2


@pytest.fixture(scope="module")
def checkpoints(both_checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By family. The mark of CosyVoice3 would make a file, or end the server, if a parser of YAML saw it."""
    folder = tmp_path_factory.mktemp("families")
    cosyvoice3 = make_cosyvoice3(folder / "cosyvoice3")
    sprung = cosyvoice3 / "sprung"
    (cosyvoice3 / MARK).write_text(f"x: !!python/object/apply:os.mkdir ['{sprung}']\n- {{", encoding="utf-8")
    return {
        "cosyvoice3": cosyvoice3,
        "fish_speech": both_checkpoints[1],
        "omnivoice": make_omnivoice(folder / "omnivoice"),
        "qwen3_tts": both_checkpoints[0],
        "voxcpm2": make_voxcpm2(folder / "voxcpm2"),
        "voxtral": make_voxtral(folder / "voxtral", "tiny"),
    }


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """It takes clips of a minute. It says how long it took to start, and what its processes hold."""
    folder = tmp_path_factory.mktemp("server")
    environment = {**SETTINGS, "VOICE_CLONE_MAX_CLIP_SECONDS": "60"}
    began, given = time.monotonic(), list(checkpoints.values())
    server = TritonServer(given, folder / "voices", log=folder / "log", environment=environment)
    with server.start(900.0):  # it has some 25 processes, each of which a slow machine starts in half a minute
        ready = time.monotonic() - began
        yield server
        held = sum(memory_by_process(server).values())
        print(f"\nsix families: ready after {ready:.1f} s, {held / 1e9:.2f} GB held")  # noqa: T201
        assert server.ready(), "a test made the server unready"
        assert not (checkpoints["cosyvoice3"] / "sprung").exists(), "the mark was read"
        server.kill()


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def ada(client: Client, reference_clip: bytes, reference_text: str) -> str:
    """A voice of all families."""
    client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
    return "Ada"


def heard(client: Client, voice: str, family: str, **given: Any) -> NDArray[np.float32]:
    samples, _ = client.speak(TEXT, voice=voice, model=family, seed=SEED, **{**ORDERS[family], **given}).read()
    return samples


def alone(family: str, checkpoint: Path, clip: bytes, transcript: str) -> NDArray[np.float32]:
    """What the bare stages of a family say."""
    order = {"seed": SEED, **ORDERS[family]}
    if family == "qwen3_tts":
        qwen3 = BareQwen3(checkpoint)
        return qwen3.speak(qwen3.prompt(TEXT, clip, transcript), FRAMES, GREEDY)
    if family == "omnivoice":
        return BareOmniVoice(checkpoint).speak(TEXT, clip, transcript, seed=SEED, **QUICK).samples
    if family == "cosyvoice3":
        return BareCosyVoice3(checkpoint).speak(TEXT, clip, transcript, **order).samples
    if family == "fish_speech":
        fish = BareFish(checkpoint)
        return fish.speak(TEXT, fish.codes(clip), transcript, **order).samples
    if family == "voxcpm2":
        voxcpm2 = BareVoxCPM2(checkpoint)
        return voxcpm2.speak(TEXT, voxcpm2.voice(clip, transcript), **order).samples
    voxtral = BareVoxtral(checkpoint)
    return voxtral.speak(TEXT, voxtral.codes(clip), **order).samples


def states(client: Client, voice: str) -> dict[str, str]:
    return {each.model_type: each.state for each in client.get(voice).artifacts}


def test_one_upload_speaks_in_all_as_each_does_alone(
    client: Client, checkpoints: dict[str, Path], reference_clip: bytes, reference_text: str
) -> None:
    before = client.stats()["extractions"]
    client.upload("Eve", reference_clip, reference_text=reference_text, wait=True)
    assert states(client, "Eve") == dict.fromkeys(ORDERS, "ready")
    assert client.stats()["extractions"] == before + len(ORDERS)
    with ThreadPoolExecutor(len(ORDERS)) as pool:  # at once: none disturbs another
        together = dict(zip(ORDERS, pool.map(lambda family: heard(client, "Eve", family), ORDERS), strict=True))
    for family, samples in together.items():
        assert is_same_audio(samples, alone(family, checkpoints[family], reference_clip, reference_text)), family
    assert client.stats()["extractions"] == before + len(ORDERS)


WORDS = "female, low pitch"
VOICES = {  # kind: registered voice, instructions, and the mode that the page shows
    "clone": ("Ada", "", "in context"),
    "instruct": (None, WORDS, "instructions"),
    "auto": (None, "", "any voice"),
}


@pytest.mark.parametrize("kind", VOICES)
def test_omnivoice_from_the_shell_and_the_gateway_is_that_of_the_client(
    server: TritonServer, client: Client, gateway: Gateway, ada: str, tmp_path: Path, kind: str
) -> None:
    voice, words, _ = VOICES[kind]
    given = QUICK | ({"instruct": words} if words else {})
    expected, _ = client.speak(TEXT, voice=voice, model="omnivoice", seed=SEED, options=given).read()
    said = tmp_path / "said.wav"
    options = (word for name, value in given.items() for word in ("--option", f"{name}={value}"))
    speak = ["--url", server.url, "--model", "omnivoice", "speak", TEXT, "--seed", str(SEED), "-o", str(said)]
    assert main([*speak, *options, *(["--voice", voice] if voice else [])]) == 0
    samples, rate = soundfile.read(said, dtype="float32")
    body = {"model": "omnivoice", "input": TEXT, "seed": SEED, "options": QUICK, "response_format": "pcm"}
    more = {name: value for name, value in (("voice", voice), ("instructions", words)) if value}
    with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http:
        answer = http.post("/v1/audio/speech", json={**body, **more})
    assert answer.status_code == 200, answer.text
    for heard_so in (samples, np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767):
        assert rate == 24000 and len(heard_so) == len(expected)
        assert np.abs(heard_so - expected).max() <= 2 / 32768


def test_the_page_offers_what_a_model_can(gateway: Gateway, ada: str, tmp_path: Path) -> None:
    """A clone, a voice of words and any voice; a model that can do neither of the latter has no such fields."""
    with chromium() as browser, tab(browser) as page:
        page.goto(gateway.url)
        expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
        fields = page.locator("#instructions-field, #voiceless-field").filter(visible=True)
        page.locator("#model").select_option("qwen3_tts")
        expect(fields).to_have_count(0)
        page.locator("#model").select_option("omnivoice")
        expect(fields).to_have_count(2)
        page.locator("#text").fill(TEXT)
        page.locator("#longest").fill("1")
        for voice, words, mode in VOICES.values():
            page.locator("#instructions").fill(words)
            page.locator("#voiceless").set_checked(voice is None)
            expect(page.locator("#speaking-voice")).to_be_visible(visible=voice is not None)
            page.locator("#say").click()
            expect(page.locator("#mode")).to_have_text(mode, timeout=WAIT)
            expect(page.locator("#speech")).to_have_attribute("data-state", "done", timeout=WAIT)
            assert page.locator("#speech").get_attribute("data-samples") == "24000"
        page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_a_deleted_voice_is_erased_in_all(client: Client, server: TritonServer, reference_clip: bytes) -> None:
    assert server.voices is not None
    files = {path for path in server.voices.rglob("*") if path.is_file()} | {server.voices / "generation"}  # a counter
    client.upload("Bob", reference_clip, reference_text="Some words.", wait=True)
    assert all(len(heard(client, "Bob", family)) for family in ORDERS)
    client.delete("Bob")
    for family in ORDERS:
        with pytest.raises(VoiceNotFound):
            heard(client, "Bob", family)
    assert {path for path in server.voices.rglob("*") if path.is_file()} <= files


def test_a_clip_that_is_too_long_for_one_serves_the_others(client: Client) -> None:
    long = clip(7, 40.0, 24000)
    client.upload("Long", long, reference_text="Many words.", wait=True)
    serving = ("qwen3_tts", "voxcpm2", "voxtral")
    unsupported = dict.fromkeys(ORDERS, "unsupported")
    assert states(client, "Long") == {**unsupported, **dict.fromkeys(serving, "ready")}
    reasons = {each.model_type: each.reason for each in client.get("Long").artifacts}
    assert "40.00 s long; CosyVoice3 takes at most 30 s" in str(reasons["cosyvoice3"])
    for family, frames in (("fish_speech", 862), ("omnivoice", 1000)):
        assert f"the clip has {frames} frames, and this family takes at most 768 here" in str(reasons[family])
    assert len(heard(client, "Long", "qwen3_tts", max_frames=5)) == 5 * 1920
    assert all(len(heard(client, "Long", family)) for family in serving)
    with pytest.raises(Unsupported, match="takes at most 768"):
        heard(client, "Long", "fish_speech")
    for given in ({"voice": "Long"}, {"reference_audio": long}):
        with pytest.raises(Unsupported, match="CosyVoice3 takes at most 30 s of a voice"):
            client.speak(TEXT, model="cosyvoice3", **ORDERS["cosyvoice3"], **given).read()  # type: ignore[arg-type]
    client.delete("Long")


def test_no_family_takes_a_clip_above_the_limit(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"60\.50 s long; it must be 1 to 60 s"):
        client.upload("Longer", clip(8, 60.5, 16000))
