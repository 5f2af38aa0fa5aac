"""The page at `/` in a real Chromium, in front of the real gateway and server."""

from __future__ import annotations

import re
import wave
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect
from voice_clone_client import Client, pcm16

from perf.bench.gateway_process import Gateway
from tests.support.official.chromium import WAIT
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

CLIP = Path(__file__).parents[3] / "tools" / "data" / "reference.wav"
# Ends a recording when there is enough of it: a click from outside may reach a busy page when its 30 s are over.
STOP = """() => new Promise((stopped) => {
  const look = () => {
    const enough = parseFloat(document.getElementById("clip-facts").textContent) >= 1.6;
    if (enough) stopped(document.querySelector("[aria-label='Stop recording']").click());
    else setTimeout(look, 20);
  };
  look();
})"""
# Notes each label that a button which plays has from now on.
LABELS = """() => {
  window.labels = new Set();
  const note = () => {
    for (const each of document.querySelectorAll("[data-listen]")) {
      labels.add(each.ariaLabel || each.textContent.trim());
    }
  };
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, attributes: true });
}"""


@pytest.fixture
def open_page(page: Page, gateway: Gateway) -> Page:
    """The page, ready."""
    page.goto(gateway.url)
    expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
    page.wait_for_load_state("networkidle")  # without voices it opens the form
    return page


def state(page: Page, expected: str) -> None:
    expect(page.locator("#speech")).to_have_attribute("data-state", expected, timeout=WAIT)


def choose(page: Page, voice: str) -> None:
    page.get_by_role("radio", name=re.compile(re.escape(voice))).check()


def register(page: Page, name: str, transcript: str = "") -> None:
    """Fill in the form of a new voice, but the clip, and send it."""
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Words spoken in the clip").fill(transcript)
    page.get_by_label("How the speaker agreed").fill("a test")
    page.get_by_role("button", name="Register").click()


def hear(page: Page, play: str, stop: str) -> None:
    """Press a button, and wait until its sound has been played to the end, though that may be over at the next look."""
    page.evaluate(LABELS)
    page.get_by_role("button", name=play).click()
    until(lambda: page.evaluate("stop => labels.has(stop)", stop))
    expect(page.get_by_role("button", name=play)).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("alert")).to_have_count(0)


def open_form(page: Page) -> None:
    if not page.locator("#new-voice[open]").count():
        page.locator("#new-voice summary").click()


def test_register_by_file_speak_and_hear(open_page: Page, client: Client, reference_text: str, tmp_path: Path) -> None:
    page = open_page
    open_form(page)
    page.locator("#clip").set_input_files(CLIP)
    expect(page.locator("#clip-facts")).to_have_text("5.2 s, reference.wav")
    register(page, "Page voice", reference_text)
    entry = page.get_by_role("radio", name=re.compile("Page voice ready, with transcript"))
    expect(entry).to_be_checked(timeout=WAIT)
    assert client.get("Page voice").consent == "a test"

    page.get_by_label("Text", exact=True).fill("Every evening the boats came home.")
    page.get_by_label("Seed").fill("3")
    page.get_by_label("Longest, seconds").fill("1.6")
    page.keyboard.press("Control+Enter")
    state(page, "done")
    samples, _ = client.speak(
        "Every evening the boats came home.", voice="Page voice", language="Auto", seed=3, max_frames=20
    ).read()
    assert page.locator("#speech").get_attribute("data-samples") == str(len(samples))
    assert float(page.locator("#speech").get_attribute("data-peak") or 0) > 0.01
    assert re.fullmatch(r"\d+ ms", page.locator("#first-audio").inner_text())
    assert page.locator("#cache").inner_text() == "hit"
    assert page.locator("#mode").inner_text() == "in context"
    assert page.locator("#used-seed").inner_text() == "3"
    stages = page.locator("#stages b").all_inner_texts()
    assert len(stages) == 7 and all(re.fullmatch(r"[\d.]+ ms", stage) for stage in stages)
    assert sum(float(stage.split()[0]) > 0 for stage in stages) >= 5
    with page.expect_download() as download:
        page.get_by_role("link", name="Save WAV").click()
    download.value.save_as(tmp_path / "saved.wav")
    with wave.open(str(tmp_path / "saved.wav")) as saved:
        assert saved.getframerate() == 24000
        pcm = np.frombuffer(saved.readframes(saved.getnframes()), "<i2")
    np.testing.assert_allclose(pcm, np.frombuffer(pcm16(samples), "<i2"), atol=1)  # rounding

    hear(page, "Play again", "Stop playing")
    hear(page, "Play the clip of Page voice", "Stop the clip")

    page.get_by_role("button", name="Delete Page voice").click()
    page.get_by_role("button", name="Keep").press("Enter")
    expect(entry).to_be_visible()
    page.get_by_role("button", name="Delete Page voice").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(entry).to_have_count(0)
    assert "Page voice" not in {each.name for each in client.list()}


def test_stop_frees_the_server_and_the_next_speech_runs(open_page: Page, gateway: Gateway, voice: str) -> None:
    page = open_page
    choose(page, voice)
    page.get_by_label("Text", exact=True).fill("This sentence goes on and on. " * 40)
    page.get_by_role("button", name="Speak").click()
    state(page, "speaking")
    page.keyboard.press("Escape")
    state(page, "stopped")
    expect(page.locator("#speech-state")).to_contain_text("Stopped after")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    until(lambda: not gateway.metric("live_speeches"))
    page.get_by_label("Text", exact=True).fill("Good morning.")
    page.get_by_label("Longest, seconds").fill("0.8")
    page.get_by_role("button", name="Speak").click()
    page.get_by_role("button", name="Speak").click()  # takes the place of the first
    state(page, "done")
    assert int(page.locator("#speech").get_attribute("data-samples") or 0) <= 10 * 1920


def test_record(open_page: Page, client: Client) -> None:
    page = open_page
    open_form(page)
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    page.evaluate(STOP)
    expect(page.get_by_role("button", name="Record", exact=True)).to_be_visible()
    register(page, "Recorded")
    expect(page.get_by_role("radio", name=re.compile("Recorded"))).to_be_checked(timeout=WAIT)
    recorded = client.get("Recorded")
    assert recorded.mime_type == "audio/wav" and 1.5 < (recorded.duration or 0) <= 30
    client.delete("Recorded")


def test_errors_are_said_in_words(open_page: Page, client: Client, reference_clip: bytes, tmp_path: Path) -> None:
    page = open_page
    open_form(page)
    (tmp_path / "text.mp3").write_text("no audio")
    page.locator("#clip").set_input_files(tmp_path / "text.mp3")
    expect(page.locator("#sample-error")).to_contain_text("text.mp3 holds no audio")
    register(page, "Without a clip")
    expect(page.locator("#sample-error")).to_contain_text("There is no clip yet")
    page.locator("#clip").set_input_files(CLIP)
    register(page, ".name")
    expect(page.locator("#name-error")).to_contain_text("a dot not at the beginning")
    register(page, "name", "word " * 2000)  # the page leaves that to the server
    expect(page.locator("#transcript-error")).to_contain_text("Reference_text has")

    client.upload("Gone", reference_clip, wait=True)
    page.reload()
    choose(page, "Gone")
    page.get_by_label("Text", exact=True).fill("Good morning.")
    page.get_by_label("Language").fill("Klingon")
    page.get_by_role("button", name="Speak").click()
    state(page, "failed")
    expect(page.locator("#language-error")).to_contain_text("'Klingon' is unknown")
    page.get_by_label("Language").fill("")
    client.delete("Gone")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#voice-error")).to_contain_text("No voice is registered under the name 'Gone'")
    expect(page.get_by_role("radio", name=re.compile("Gone"))).to_have_count(0)


def test_a_gateway_with_keys(page: Page, server: TritonServer, voice: str, tmp_path: Path) -> None:
    keys = {"VOICE_CLONE_GATEWAY_API_KEYS": "only-speaks speak"}
    with Gateway(server.url, tmp_path / "log", **keys) as gateway:
        page.goto(gateway.url)
        page.get_by_label("Key", exact=True).fill("only-speaks")
        page.get_by_role("button", name="Use it").click()
        choose(page, voice)
        page.reload()  # the tab keeps it
        choose(page, voice)
        open_form(page)
        page.locator("#clip").set_input_files(CLIP)
        expect(page.locator("#clip-facts")).to_contain_text("5.2 s")
        register(page, "Forbidden")
        expect(page.locator("#register-error")).to_contain_text("lacks the scope manage")
        page.get_by_role("button", name=f"Play the clip of {voice}").click()
        expect(page.locator(".voice .error:visible")).to_contain_text("lacks the scope manage")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(browser: Browser, gateway: Gateway, scheme: Any) -> None:
    """Nothing sticks out, and every field and button has a name."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(gateway.url)
    expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
    open_form(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select, textarea, button, a[href], canvas')]
        .filter((each) => !(each.labels?.length || each.ariaLabel || each.textContent.trim()))
        .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    context.close()


def test_the_browser_may_load_nothing_from_elsewhere(gateway: Gateway) -> None:
    html = httpx2.get(gateway.url, timeout=60.0)
    policy = html.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    linked = re.findall(r'(?:src|href)="(page/[^"]+)"', html.text)
    assert len(linked) >= 3
    for path in linked:
        assert httpx2.get(f"{gateway.url}/{path}", timeout=60.0).status_code == 200
    assert httpx2.get(f"{gateway.url}/page/__init__.py", timeout=60.0).status_code == 404


def test_what_would_be_spoken_is_shown(open_page: Page) -> None:
    page = open_page
    page.get_by_label("Text", exact=True).fill("Ada: It costs $5.\nBob: Really?")
    page.get_by_label("Dialogue").check()
    page.get_by_label("Numbers in words").check()
    page.get_by_label("Language").fill("English")
    page.get_by_role("button", name="Preview").click()
    items = page.locator("#plan-items li")
    expect(items).to_have_text(["It costs five dollars.Ada, English", "Really?Bob, English"])
    page.get_by_label("Dialogue").uncheck()
    expect(page.locator("#plan")).to_be_hidden()
    page.get_by_label("Text", exact=True).fill(
        "<speak>One.<break time='500ms'/><prosody rate='1.5'>Two.</prosody><emphasis>!</emphasis></speak>"
    )
    page.get_by_role("button", name="Preview").click()
    expect(items).to_have_text(["One.English", "0.5 s of silence", "Two.English, tempo 1.5", "!English"])
    expect(page.locator("#plan-warnings")).to_contain_text("emphasis")
    page.get_by_label("Text", exact=True).fill("<speak>One")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#text-error")).to_contain_text("line 1")
    expect(page.locator("#plan")).to_be_hidden()
