"""Voxtral TTS without encoder weights on a real server: preset voices beside Qwen3-TTS, which clones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import expect
from voice_clone_client import Client, Preset, Unsupported, VoiceNotFound
from voice_clone_command.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.families import trials
from tests.support.families.bare import Bare
from tests.support.families.factories import CheckpointFactory
from tests.support.families.voxtral import make_voxtral
from tests.support.official.chromium import WAIT, chromium, tab
from tests.support.servers.running import SETTINGS, running
from tools.families.voxtral.checkpoint_config import VOICES
from voice_clone.families.voxtral.config import NO_ENCODER
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, RATE, FRAME, FRAMES = "Good morning.", 24000, 1920, 12


@pytest.fixture(scope="module")
def presets_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint")


@pytest.fixture(scope="module")
def bare(presets_only: Path) -> Bare:
    return trials.bare("voxtral", presets_only)


@pytest.fixture(scope="module")
def server(
    presets_only: Path, checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Of Qwen3-TTS, the default, and of Voxtral TTS without encoder weights."""
    folder = tmp_path_factory.mktemp("presets")
    checkpoints = [checkpoint_folder("tiny", 0), presets_only]
    with running(checkpoints, folder, **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url, model="voxtral") as client:
        yield client


@pytest.fixture
def ada(server: TritonServer, reference_clip: bytes, reference_text: str) -> Iterator[str]:
    """A voice that was uploaded for all families."""
    with Client(server.url) as of_all:
        of_all.upload("Ada", reference_clip, reference_text=reference_text)
        yield "Ada"
        of_all.delete("Ada")


def heard(client: Client, text: str = TEXT, **given: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Samples and the last info of a speech."""
    speech = client.speak(text, **{"seed": 2, "max_frames": FRAMES, **given})
    samples, rate = speech.read()
    info = dict(speech.info or {})
    assert rate == RATE and len(samples) == info["frames"] * FRAME
    return samples, info


def test_all_presets_are_listed_with_their_family(client: Client, http: httpx2.Client) -> None:
    expected = [Preset(name, "voxtral", False) for name in VOICES]
    assert client.presets() == expected and len(expected) == 20
    listed = http.get("/v1/audio/voices").json()
    assert listed["voices"] == list(VOICES) and listed["uploaded_voices"] == []
    assert listed["preset_voices"] == [{"name": name, "model": "voxtral", "registered": False} for name in VOICES]
    assert http.get("/v1/audio/voices", params={"after": "z"}).json()["preset_voices"] == []


def test_a_preset_speaks_through_the_openai_api(http: httpx2.Client, bare: Bare) -> None:
    body = {"model": "voxtral", "input": TEXT, "voice": "casual_male", "seed": 5, "max_new_tokens": FRAMES}
    answer = http.post("/v1/audio/speech", json={**body, "response_format": "pcm"})
    assert answer.status_code == 200, answer.text
    samples = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767
    expected = bare.speak(TEXT, "casual_male", seed=5, max_frames=FRAMES).samples
    assert np.abs(samples - expected).max() <= 2 / 32768
    other = http.post("/v1/audio/speech", json={**body, "model": "qwen3_tts"})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "voice_not_found"), "it is of one family"


def test_presets_in_the_shell(server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", server.url, "presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20 and lines[1] == "casual_male: voxtral"
    assert main(["--url", server.url, "list"]) == 0
    assert "20 further voices come with voxtral" in capsys.readouterr().err
    out = str(tmp_path / "out.wav")
    speak = [
        "--url",
        server.url,
        "--model",
        "voxtral",
        "speak",
        TEXT,
        "--voice",
        "fr_male",
        "--max-frames",
        "3",
        "-o",
        out,
    ]
    assert main(speak) == 0 and Path(out).stat().st_size > 3 * FRAME


def test_the_shell_says_why_nothing_is_cloned(
    server: TritonServer, ada: str, reference_clip: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clip, an embedding, a bundle, a registered voice; and a voice of this family alone."""
    wav, numbers, bundle, out = (str(tmp_path / name) for name in ("clip.wav", "ada.npy", "ada.bundle", "out.wav"))
    Path(wav).write_bytes(reference_clip)
    to = ["--url", server.url, "--model"]
    for made in (["embedding", "extract", ada, "-o", numbers], ["export", ada, "-o", bundle]):
        assert main([*to, "qwen3_tts", *made]) == 0
    capsys.readouterr()
    voices = (["--reference", wav], ["--embedding", numbers], ["--prompt", bundle], ["--voice", ada])
    for command in (
        *(["speak", TEXT, *voice, "-o", out] for voice in voices),
        ["prepare", ada],
        ["embedding", "extract", ada, "-o", str(tmp_path / "none.npy")],
        ["upload", "Embedded", "--embedding", numbers],
    ):
        assert main([*to, "voxtral", *command]) == 1, command
        said = capsys.readouterr()
        assert "unsupported: " in said.err and NO_ENCODER in said.err, command
    assert not Path(out).exists()


def test_presets_on_the_page(gateway: Gateway, client: Client) -> None:
    """All are listed and none can be deleted; one is chosen, and speaks with its model alone."""
    with chromium() as browser, tab(browser) as page:
        page.goto(gateway.url)
        expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
        page.locator("#model").select_option("voxtral")
        rows = page.locator("#voices .voice")
        expect(rows).to_have_count(20)
        assert sorted(rows.locator(".who").all_inner_texts()) == sorted(VOICES)
        assert {*rows.locator(".about").all_inner_texts()} == {"ready, preset"}
        expect(rows.get_by_role("button")).to_have_count(0)
        page.get_by_role("radio", name=re.compile("^de_female ")).check()
        page.get_by_label("Text", exact=True).fill(TEXT)
        page.get_by_label("Seed").fill("3")
        page.get_by_label("Longest, seconds").fill("0.96")  # of 12 frames
        page.get_by_role("button", name="Speak").click()
        expect(page.locator("#speech")).to_have_attribute("data-state", "done", timeout=WAIT)
        samples, _ = heard(client, voice="de_female", seed=3)
        assert page.locator("#speech").get_attribute("data-samples") == str(len(samples))
        assert float(page.locator("#speech").get_attribute("data-peak") or 0) == pytest.approx(
            float(np.abs(samples).max()), abs=0.01
        )
        assert (page.locator("#cache").inner_text(), page.locator("#mode").inner_text()) == ("preset", "preset")
        page.locator("#model").select_option("qwen3_tts")
        assert {*rows.locator(".about").all_inner_texts()} == {"cannot be spoken here; a preset of voxtral, preset"}


def test_a_preset_cannot_be_deleted(client: Client, http: httpx2.Client) -> None:
    with pytest.raises(VoiceNotFound):
        client.delete("casual_male")
    assert http.delete("/v1/audio/voices/casual_male").status_code == 404
    assert len(client.presets()) == 20
    heard(client, voice="casual_male", max_frames=2)


def test_the_same_voice_serves_the_other_family(client: Client, ada: str) -> None:
    """Uploaded for all: Qwen3-TTS clones it; Voxtral's state has the reason at once."""
    states = {each.model_type: each for each in client.get(ada).artifacts}
    assert (states["voxtral"].state, states["voxtral"].mode) == ("unsupported", "icl")
    assert states["voxtral"].reason == f"voxtral: {NO_ENCODER}"
    for refused in (lambda: heard(client, voice=ada), lambda: client.prepare(ada, timeout=30)):
        with pytest.raises(Unsupported, match=r"use one of the presets"):
            refused()
    samples, rate = client.speak(TEXT, voice=ada, model="qwen3_tts", seed=1, max_frames=3).read()
    assert len(samples) == 3 * 1920 and rate == 24000


def test_cloning_is_refused_with_the_sentence(client: Client, http: httpx2.Client, reference_clip: bytes) -> None:
    with pytest.raises(Unsupported, match="has no encoder weights"):
        heard(client, reference_audio=reference_clip)
    for asked in ({"speaker_embedding": np.ones(64)}, {"voice": "casual_male", "x_vector_only": True}):
        with pytest.raises(Unsupported, match="has no encoder weights"):
            heard(client, **asked)
    with pytest.raises(Unsupported, match="has no encoder weights"):
        client.upload("Embedded", speaker_embedding=np.ones(64, np.float32))
    answer = http.post(
        "/v1/audio/voices",
        data={"name": "Bob", "consent": "yes"},
        files={"audio_sample": ("clip.wav", reference_clip)},
    )
    try:
        assert answer.status_code == 200, "the other family serves it"
        spoken = http.post("/v1/audio/speech", json={"model": "voxtral", "input": TEXT, "voice": "Bob"})
        assert spoken.status_code == 501 and NO_ENCODER in spoken.json()["error"]["message"]
        other = http.post("/v1/audio/speech", json={"input": TEXT, "voice": "Bob", "max_new_tokens": 2})
        assert other.status_code == 200
    finally:
        client.delete("Bob")


def test_an_alias_stands_for_a_preset(client: Client, http: httpx2.Client) -> None:
    before, _ = heard(client, voice="casual_male", max_frames=2)
    client.set_alias("alloy", "Casual_Male")
    try:
        samples, info = heard(client, voice="Alloy", max_frames=2)
        assert np.array_equal(samples, before) and (info["cache"], info["voice"]) == ("preset", "casual_male")
        with pytest.raises(VoiceNotFound):
            client.speak(TEXT, voice="alloy", model="qwen3_tts").read()
        with pytest.raises(Unsupported):
            client.speaker_embedding("alloy")
        assert http.get("/v1/audio/voices").json()["voice_aliases"] == {"alloy": "Casual_Male"}
    finally:
        client.remove_alias("alloy")


def test_a_registered_voice_of_the_same_name_hides_no_preset(
    client: Client, reference_clip: bytes, http: httpx2.Client
) -> None:
    """This checkpoint cannot use it."""
    before, _ = heard(client, voice="casual_male", max_frames=2)
    client.upload("Casual_Male", reference_clip, model="qwen3_tts", wait=True)
    try:
        assert not any(preset.registered for preset in client.presets())
        listed = http.get("/v1/audio/voices").json()
        assert len(listed["voices"]) == 20 and "Casual_Male" in listed["voices"]
        for style in (None, "neutral", " Neutral"):
            assert np.array_equal(heard(client, voice="casual_male", style=style, max_frames=2)[0], before), style
        client.speak(TEXT, voice="casual_male", model="qwen3_tts", max_frames=2).read()
    finally:
        client.delete("Casual_Male")
