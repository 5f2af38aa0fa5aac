"""The page at `/` in a real Chromium, in front of the double of Triton: the choice of a model, and its sample rate."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tritonclient.grpc import service_pb2

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import FAMILY, Server, endless, speech

pytestmark = pytest.mark.thorough

RATES = {FAMILY: 24000, "made_up": 44100}
VOICES = b'{"speakers": [{"name": "ada", "artifacts": [{"model_type": "made_up", "mode": "icl", "state": "ready"}]}]}'


def open_page(page: Page, triton: Server, serve: Serve, *families: str, **settings: Any) -> None:
    triton.model_types = list(families)
    triton.answer = lambda inputs: {"result": VOICES}
    triton.play = lambda context: iter(speech(3, rate=RATES[triton.calls[-1][0]]))
    page.goto(str(serve(triton.url, **settings).base_url))
    expect(page.locator("#health")).to_have_text("Ready")
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("radio", name="ada")).to_be_checked()


def speak(page: Page) -> int:
    """Speak, and wait until it was played; returns the number of samples."""
    page.get_by_label("Text", exact=True).fill("Hello there.")
    page.locator("#speech").evaluate("node => node.dataset.state = 'before'")  # a short speech is soon done again
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#speech")).to_have_attribute("data-state", "done")
    return int(page.locator("#speech").get_attribute("data-samples") or 0)


def test_a_single_model_is_no_choice(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, "made_up", model_aliases=("tts-1",))
    expect(page.locator("#model-field")).to_be_hidden()
    assert speak(page) == 3 * 1920
    [(model, inputs)] = triton.speeches
    assert model == "made_up" and inputs["language"] == b"Auto"


def test_each_model_plays_at_its_rate(page: Page, triton: Server, serve: Serve, tmp_path: Path) -> None:
    page.add_init_script(
        """window.contexts = [];
        window.AudioContext = class extends window.AudioContext {
          constructor(options) { super(options); window.contexts.push(this); }
          createBuffer(...values) { this.rate = values[2]; return super.createBuffer(...values); }
        };"""
    )
    open_page(page, triton, serve, *RATES, model_aliases=("tts-1",))
    assert page.locator("#model option").all_inner_texts() == list(RATES), "aliases are no models of their own"
    for model in ("made_up", FAMILY, "made_up"):
        page.get_by_label("Model").select_option(model)
        assert speak(page) == 3 * 1920
        assert triton.speeches[-1][0] == model
        used = page.evaluate("contexts.filter((each) => each.rate).map((each) => [each.sampleRate, each.rate])")
        assert used[-1] == [RATES[model], RATES[model]], "nothing is resampled at the seams"
        with page.expect_download() as download:
            page.get_by_role("link", name="Save WAV").click()
        download.value.save_as(tmp_path / "saved.wav")
        with wave.open(str(tmp_path / "saved.wav")) as saved:
            assert (saved.getframerate(), saved.getnframes()) == (RATES[model], 3 * 1920)
    open_contexts = page.evaluate("contexts.filter((each) => each.state !== 'closed').length")
    assert open_contexts == 0


def test_the_longest_length_is_exact_at_any_rate(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, "made_up")
    triton.play = endless(0.005, rate=44100, info={"cache": "hit"})
    page.get_by_label("Longest, seconds").fill("0.5")
    assert speak(page) == 22050
    expect(page.locator("#speech-state")).to_contain_text("0.5 s spoken, cut at the longest length")
    assert triton.left.acquire(timeout=30), "the server goes on"
    assert "max_frames" not in triton.speeches[-1][1]


def test_the_language_is_any(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, "made_up")
    page.get_by_label("Language").fill("Esperanto")
    speak(page)
    assert triton.speeches[-1][1]["language"] == b"Esperanto"


def test_languages_and_options_are_those_of_the_chosen_model(page: Page, triton: Server, serve: Serve) -> None:
    triton.languages, triton.instructions = {"made_up": ["welsh"]}, {"made_up": "instruct"}
    triton.options = {"made_up": {"warmth": "how warm (a number)", "tone": "a word", "instruct": "how to speak"}}
    open_page(page, triton, serve, FAMILY, "made_up")
    suggested = page.locator("#languages option")
    assert suggested.count() == 10 and page.locator("#own-options input").count() == 0
    page.get_by_label("Model").select_option("made_up")
    assert suggested.all_inner_texts() == ["welsh"]
    assert page.locator("#own-options label").all_inner_texts() == ["warmth", "tone"], "instructions have a field"
    expect(page.get_by_label("warmth")).to_have_attribute("title", "how warm (a number)")
    page.get_by_label("warmth").fill("0.5")
    page.get_by_label("tone").fill("dark")
    refused = service_pb2.ModelStreamInferResponse(error_message="invalid_argument: `options.tone` is 'dark'")
    triton.play = lambda context: iter([refused])
    page.get_by_label("Text", exact=True).fill("Hello there.")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#option-tone-error")).to_contain_text("ptions.tone is 'dark'")
    assert json.loads(triton.speeches[-1][1]["options"]) == {"warmth": 0.5, "tone": "dark"}
    page.get_by_label("Model").select_option(FAMILY)
    assert suggested.count() == 10 and page.locator("#own-options input").count() == 0


def test_a_voice_that_no_model_supports_says_why(page: Page, triton: Server, serve: Serve) -> None:
    reason = "made_up in mode best needs reference_text"
    artifacts = {"model_type": "made_up", "mode": "best", "state": "unsupported", "reason": reason}
    voices = json.dumps({"speakers": [{"name": "ada", "artifacts": [artifacts]}]}).encode()
    triton.model_types = ["made_up"]
    triton.answer = lambda inputs: {"result": voices}
    page.goto(str(serve(triton.url).base_url))
    expect(page.locator(".voice .what")).to_have_text(f"cannot be spoken here; {reason}")
    expect(page.get_by_role("button", name="Prepare ada again")).to_have_count(0)


def test_an_error_of_the_instructions_is_beside_their_field(page: Page, triton: Server, serve: Serve) -> None:
    triton.instructions = {"made_up": "instruct"}
    open_page(page, triton, serve, "made_up")
    refused = service_pb2.ModelStreamInferResponse(
        error_message="invalid_argument: instruct has 900 tokens, at most 512"
    )
    triton.play = lambda context: iter([refused])
    page.get_by_label("Text", exact=True).fill("Hello there.")
    page.get_by_label("Instructions").fill("Sadly.")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#instructions-error")).to_have_text("Instruct has 900 tokens, at most 512.")
    assert triton.speeches[-1][1]["options"] == b'{"instruct": "Sadly."}'
