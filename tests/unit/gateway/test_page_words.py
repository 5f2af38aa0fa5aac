"""The page at `/` in a real Chromium, in front of the double of Triton: words light up while they are heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import FAMILY, AlignerDouble, Server, endless, speech
from tests.support.official.chromium import tab
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

VOICES = b'{"speakers": [{"name": "ada", "artifacts": [{"model_type": "%s", "mode": "icl", "state": "ready"}]}]}'
TEXT = "Good 👋🏽 morning,\nall\u2009of you."
STEP = 1920  # samples of a word
# Notes each state that a word has from now on.
NOTE = """() => {
  window.noted = [];
  const note = (changes) => {
    for (const { target } of changes) {
      if (target.dataset.state) noted.push([target.textContent, target.dataset.state]);
    }
  };
  const options = { subtree: true, attributes: true, attributeFilter: ["data-state"] };
  new MutationObserver(note).observe(document.getElementById("spoken-text"), options);
}"""


@pytest.fixture
def page(browser: Browser, triton: Server, serve: Serve) -> Iterator[Page]:
    """The page, ready, with a voice."""
    triton.align = AlignerDouble(STEP)
    triton.answer = lambda inputs: {"result": VOICES % FAMILY.encode()}
    with tab(browser) as page:
        page.goto(str(serve(triton.url).base_url))
        expect(page.get_by_role("radio", name="ada")).to_be_checked()
        page.evaluate(NOTE)
        yield page


def speak(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.locator("#speech").evaluate("node => node.dataset.state = 'before'")
    page.get_by_role("button", name="Speak").click()


def states(page: Page) -> list[Any]:
    script = "words => words.map((word) => [word.textContent, word.dataset.state ?? ''])"
    return list(page.locator("#spoken-text span").evaluate_all(script))


def test_words_light_up_one_after_another(page: Page, triton: Server) -> None:
    triton.play = lambda context: iter(speech(8))
    speak(page)
    expect(page.locator("#speech")).to_have_attribute("data-state", "done")
    words = ["Good 👋🏽", "morning,", "all", "of", "you."]
    assert page.locator("#spoken-text").text_content() == TEXT
    assert states(page) == [[word, "heard"] for word in words]
    noted = page.evaluate("noted")
    assert [word for word, state in noted if state == "heard"] == words
    assert [word for word, state in noted if state == "now"] == [word for word in words if [word, "now"] in noted]
    page.get_by_role("button", name="Play again").click()
    until(lambda: ["Good 👋🏽", "now"] in states(page) or ["morning,", "now"] in states(page))
    expect(page.locator("#spoken-text [data-state=heard]")).to_have_count(len(words))


def test_words_that_are_lit_are_those_that_were_heard(page: Page, triton: Server) -> None:
    triton.play = endless()
    speak(page)
    expect(page.locator("#spoken-text [data-state=heard]")).not_to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#speech")).to_have_attribute("data-state", "stopped")
    found = [state for _, state in states(page)]
    assert found == sorted(found, key=["heard", "now", ""].index) and found[0] == "heard"


def test_what_is_lit_at_a_time(page: Page) -> None:
    script = """async (seconds) => {
      const { SpokenText } = await import("/page/spoken-text.js");
      const text = new SpokenText(document.getElementById("spoken-text"));
      text.begin("One two, \\u{1F642} three.");
      text.add([{ span: [0, 3], start: 0.1, end: 0.3 }, { span: [4, 8], start: 0.5, end: 0.9 }]);
      text.add([{ span: [4, 8], start: 0.9, end: 1.0 }, { span: [11, 17], start: 1.0, end: 1.2 }]);
      text.light(2.0);
      text.light(seconds);
      return [...document.querySelectorAll("#spoken-text span")].map((word) => word.textContent + word.dataset.state);
    }"""
    assert page.evaluate(script, 0.0) == ["One", "two,", "three."]
    assert page.evaluate(script, 0.1) == ["Onenow", "two,", "three."]
    assert page.evaluate(script, 0.4) == ["Oneheard", "two,", "three."]
    assert page.evaluate(script, 1.1) == ["Oneheard", "two,heard", "three.now"]
