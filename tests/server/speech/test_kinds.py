"""Base, CustomVoice and VoiceDesign on one server: built-in speakers, instructions, and voices that are designed."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from openai import OpenAI
from playwright.sync_api import Route, expect
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceNotFound
from voice_clone_command.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.official.chromium import WAIT, chromium, tab
from tests.support.same_audio import is_same_audio
from tests.support.servers.jobs import content, made, sentences
from tests.support.servers.running import SETTINGS, running
from tests.support.servers.server_processes import memory_by_process
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

SHOTS = os.environ.get("SHOTS", "")
BASE, CUSTOM, DESIGN = "qwen3_tts", "qwen3_tts_custom_voice", "qwen3_tts_voice_design"
TEXT, STYLE, FRAMES, SEED = "Good morning.", "Speak like an old captain.", 24, 7


@pytest.fixture(scope="module")
def checkpoints(checkpoint_folder: CheckpointFactory) -> dict[str, Path]:
    shapes = {BASE: "tiny", CUSTOM: "tiny-custom", DESIGN: "tiny-design"}
    return {family: checkpoint_folder(shape, 0) for family, shape in shapes.items()}


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("kinds")
    with running(list(checkpoints.values()), folder, **SETTINGS) as server:
        yield server
        held = {name: round(size / 1e6) for name, size in memory_by_process(server).items()}
        print(f"\nthree kinds, MB held: {held}")  # noqa: T201


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def ada(client: Client, reference_clip: bytes, reference_text: str) -> str:
    client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
    return "Ada"


def heard(client: Client, family: str, **given: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
    speech = client.speak(TEXT, model=family, seed=SEED, max_frames=FRAMES, **given)
    samples, _ = speech.read()
    return samples, dict(speech.info or {})


def test_a_registered_voice_does_not_hide_a_built_in_speaker(
    client: Client, reference_clip: bytes, reference_text: str
) -> None:
    before, _ = heard(client, CUSTOM, voice="ryan")
    client.upload("Ryan", reference_clip, reference_text=reference_text, wait=True)
    try:
        assert is_same_audio(heard(client, CUSTOM, voice="ryan")[0], before)
        assert heard(client, BASE, voice="ryan")[1]["mode"] == "icl"
    finally:
        client.delete("Ryan")


def test_instructions_of_the_openai_client(gateway: Gateway, client: Client, ada: str) -> None:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as openai:

        def said(model: str, voice: Any, **more: Any) -> tuple[NDArray[np.float32], str]:
            answer = openai.audio.speech.create(
                model=model,
                input=TEXT,
                voice=voice,
                response_format="pcm",
                extra_body={"seed": SEED, "max_new_tokens": FRAMES},
                **more,
            )
            samples = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767
            return samples, answer.response.headers.get("x-speech-warning", "")

        style = {"options": {"instruct": STYLE}}
        styled, warning = said(CUSTOM, "vivian", instructions=STYLE)
        assert not warning and np.abs(styled - heard(client, CUSTOM, voice="vivian", **style)[0]).max() <= 2 / 32768
        assert np.abs(styled - said(CUSTOM, "Vivian")[0]).max() > 0.01
        designed, warning = said(DESIGN, "", instructions=STYLE)
        assert not warning and np.abs(designed - heard(client, DESIGN, **style)[0]).max() <= 2 / 32768
        _, warning = said(BASE, "Ada", instructions=STYLE)
        assert f"{CUSTOM} and {DESIGN} follow them" in warning


def test_a_style_without_a_clip_is_given_in_words(client: Client, ada: str, reference_clip: bytes) -> None:
    in_words, info = heard(client, CUSTOM, voice="vivian", style="cheerful,instructions")
    assert is_same_audio(in_words, heard(client, CUSTOM, voice="vivian", options={"instruct": "cheerful"})[0])
    assert info["instructions"] == "cheerful"
    plain, info = heard(client, CUSTOM, voice="vivian", style="neutral,instructions")
    assert is_same_audio(plain, heard(client, CUSTOM, voice="vivian")[0]) and "instructions" not in info
    with pytest.raises(InvalidArgument, match="leave one out"):
        heard(client, CUSTOM, voice="vivian", style="cheerful,instructions", options={"instruct": "sad"})
    with pytest.raises(Unsupported, match="cheerful,neutral"):
        heard(client, BASE, voice=ada, style="cheerful,instructions")
    with pytest.raises(InvalidArgument, match="happy,instructions"):
        heard(client, BASE, voice=ada, style="instructions")
    with pytest.raises(Unsupported, match=r"no speaker embeddings.*leave joy out"):
        heard(client, CUSTOM, voice="vivian", style="joy:0.6")
    with pytest.raises(InvalidArgument, match="happy,instructions"):
        client.upload(ada, reference_clip, style="instructions")
    client.upload(ada, reference_clip, style="cheerful", wait=True)
    try:
        _, info = heard(client, BASE, voice=ada, style="cheerful,instructions")
        assert info["style"] == "cheerful" and "instructions" not in info
    finally:
        client.delete(ada, style="cheerful")


def test_http_the_command_and_jobs_give_styles_in_words(server: TritonServer, tmp_path: Path) -> None:
    words, out = "cheerful,instructions", tmp_path / "out.wav"
    body = {"model": CUSTOM, "voice": "vivian", "input": TEXT, "response_format": "wav", "max_new_tokens": FRAMES}
    body |= {"do_sample": False, "allow_partial": True, "options": {"subtalker_do_sample": False}}
    asked = ["--model", CUSTOM, "speak", TEXT, "--voice", "vivian", "--style", words, "--max-frames", str(FRAMES)]
    greedy = ["--no-do-sample", "--option", "subtalker_do_sample=false", "--allow-partial"]
    assert main([*asked, *greedy, "-o", str(out), "--url", server.url]) == 0
    with (
        Gateway(server.url, tmp_path / "log", "--jobs-dir", str(tmp_path / "jobs")) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):

        def said(**how: Any) -> str:
            return _samples(http.post("/v1/audio/speech", json={**body, **how}).raise_for_status().content)

        def job(**how: Any) -> tuple[str, int]:
            found = made(http, {**body, **how})
            return _samples(content(http, found)), sentences(found)[1]

        assert said(style=words) == said(instructions="cheerful") == _samples(out.read_bytes()) != said()
        assert said(style="neutral,instructions") == said()
        plain, _ = job(style="neutral")
        cheerful, count = job(style=words)
        assert cheerful != plain and count == 1
        assert job(style=words) == (cheerful, 0) and job(style="sad,neutral") == (plain, 0)
        assert job(instructions="cheerful") == (cheerful, 1) and job(style="sad,instructions")[1] == 1
        refused = http.post("/v1/audio/jobs", json={**body, "style": "cheerful"}).json()["error"]["message"]
        assert "no style but neutral" in refused


def _samples(wav: bytes) -> str:
    """Their digest."""
    return hashlib.sha256(soundfile.read(io.BytesIO(wav), dtype="int16")[0].tobytes()).hexdigest()


def test_a_designed_voice_is_heard_kept_and_spoken_after_a_restart(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    words, text = "An old captain with a rough voice.", "All hands on deck, and look to the west."
    given = [checkpoints[DESIGN], checkpoints[BASE]]
    with TritonServer(given, tmp_path / "voices", log=tmp_path / "log", environment=SETTINGS) as server:
        with Client(server.url, model=BASE) as client:
            candidates = client.design(words, text, seeds=[1, 2, 3], model=DESIGN, max_frames=40)
            assert len({each.samples.tobytes() for each in candidates}) == 3
            [again] = client.design(words, text, seeds=[2], model=DESIGN, max_frames=40)
            assert is_same_audio(again.samples, candidates[1].samples), "the seed is the voice"
            kept = client.keep("Captain", candidates[1], consent="no person's voice", wait=True, model=None)
            assert (kept.design, kept.design_model, kept.design_seed) == (words, DESIGN, 2)
            assert kept.reference_text == text
            before, _ = heard(client, BASE, voice="captain")
        server.stop()
    with TritonServer(given, tmp_path / "voices", log=tmp_path / "log2", environment=SETTINGS) as server:
        with Client(server.url, model=BASE) as client:
            after, info = heard(client, BASE, voice="Captain")
            assert is_same_audio(before, after) and info["cache"] == "restored" and info["mode"] == "icl"
            found = client.get("captain")
            assert (found.design, found.design_model, found.design_seed) == (words, DESIGN, 2)
            bundle = client.export("Captain")
            client.delete("Captain")
            [back] = client.import_(bundle)
            assert back.design == words
        server.kill()


def test_design_over_http(http: httpx2.Client, client: Client) -> None:
    body = {"description": "A child that whispers.", "input": "Who is there?", "seeds": [4, 5], "max_frames": 30}
    found = http.post("/v1/audio/voices/design", json=body)
    assert found.status_code == 200, found.text
    assert found.json()["model"] == DESIGN
    clip = base64.b64decode(found.json()["candidates"][1]["audio_data"])
    samples, rate = soundfile.read(io.BytesIO(clip), dtype="float32")
    [expected] = client.design(body["description"], body["input"], seeds=[5], max_frames=30)
    assert rate == expected.sample_rate and np.abs(samples - expected.samples).max() <= 2 / 32768
    form = {"name": "Child", "consent": "no person's voice", "reference_text": body["input"]}
    form |= {"design": body["description"], "design_model": DESIGN, "design_seed": "5"}
    kept = http.post("/v1/audio/voices", data=form, files={"audio_sample": ("5.wav", clip)})
    assert kept.status_code == 200, kept.text
    shown = http.get("/v1/audio/voices/child").json()
    assert (shown["design"], shown["design_model"], shown["design_seed"]) == (body["description"], DESIGN, 5)
    speech = {"model": BASE, "input": TEXT, "voice": "child", "max_new_tokens": FRAMES, "response_format": "wav"}
    assert http.post("/v1/audio/speech", json=speech).status_code == 200
    for change, status in (({"model": BASE}, 501), ({"description": " "}, 400), ({"seeds": [1, 1]}, 400)):
        assert http.post("/v1/audio/voices/design", json={**body, **change}).status_code == status
    http.delete("/v1/audio/voices/child")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "words"}, "the option design_model is missing"),
        ({"design": "words", "design_model": "a b", "design_seed": 1}, "the option design_model must be 1 to 64"),
        ({"design": "words", "design_model": "a", "design_seed": 2**64}, "design_seed must be below"),
        ({"design": " ", "design_model": "a", "design_seed": 1}, "design is blank"),
        ({"design": "x" * 1025, "design_model": "a", "design_seed": 1}, "design has 1025 characters"),
    ],
)
def test_an_origin_that_is_none(client: Client, reference_clip: bytes, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        client.upload("Nobody", reference_clip, **options)
    with pytest.raises(VoiceNotFound):
        client.get("Nobody")


def test_design_and_keep_on_the_page(gateway: Gateway, client: Client) -> None:
    def fixed(route: Route) -> None:
        """Random weights do not end by themselves, so the request gets lengths; and always the same seeds."""
        route.continue_(post_data={**(route.request.post_data_json or {}), "seeds": [1, 2, 3], "max_frames": 30})

    with chromium() as browser, tab(browser) as page:
        page.route("**/voices/design", fixed)
        page.goto(gateway.url)
        expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
        page.locator("#design-voice summary").click()
        page.get_by_role("button", name="Make three voices").click()
        expect(page.locator("#wanted-error")).to_have_text("Describe the voice in words.")
        page.get_by_label("Describe the voice").fill("An old captain, rough and calm.")
        page.get_by_role("button", name="Make three voices").click()
        expect(page.locator("#candidates li")).to_have_count(3, timeout=WAIT)
        page.get_by_role("button", name="Play voice 2").click()
        expect(page.get_by_role("button", name="Play voice 2")).to_be_visible(timeout=WAIT)  # it has been heard
        expect(page.get_by_role("radio", name="Voice 2")).to_be_checked()
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/design.png", full_page=True)
        page.get_by_role("button", name="Keep this voice").click()
        expect(page.locator("#design-name-error")).to_have_text("Give the voice a name.")
        page.locator("#design-name").fill("Captain")
        page.get_by_role("button", name="Keep this voice").click()
        expect(page.locator("#voices-note")).to_have_text("Captain is registered.", timeout=WAIT)
        expect(page.get_by_role("radio", name="Captain ready, with transcript")).to_be_checked(timeout=WAIT)
        page.get_by_label("Model", exact=True).select_option(CUSTOM)
        expect(page.get_by_role("radio", name="Captain cannot be spoken here")).to_be_visible()
        expect(page.get_by_role("radio", name="vivian ready, preset")).to_be_visible()
        expect(page.get_by_label("Instructions")).to_be_visible()
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/custom.png", full_page=True)
    kept = client.get("Captain")
    assert (kept.design, kept.design_model, kept.design_seed) == ("An old captain, rough and calm.", DESIGN, 2)
    client.delete("Captain")
