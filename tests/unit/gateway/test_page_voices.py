"""The page's voices and its errors in a real Chromium, in front of the double of Triton."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from voice_clone_program.server_lock import ServerLock

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import FAMILY, Failure, Server, speech
from tests.support.official.chromium import WAIT, tab
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

CLIP = Path(__file__).parents[3] / "tools" / "data" / "reference.wav"


def voice(name: str, mode: str = "icl", state: str = "ready", family: str = FAMILY, **more: Any) -> dict[str, Any]:
    artifacts = [{"model_type": family, "mode": mode, "state": state}]
    return {"name": name, "embedding_source": "audio", "artifacts": artifacts, **more}


def listing(triton: Server, *voices: dict[str, Any], presets: tuple[dict[str, Any], ...] = ()) -> None:
    """What the double answers from now on to every operation."""
    answer = {"speakers": voices, "presets": presets, "name": "Ada"}
    triton.answer = lambda inputs: {"result": json.dumps(answer).encode()}


def open_page(
    page: Page,
    triton: Server,
    serve: Serve,
    *voices: dict[str, Any],
    presets: tuple[dict[str, Any], ...] = (),
    **settings: Any,
) -> None:
    listing(triton, *voices, presets=presets)
    page.goto(str(serve(triton.url, **settings).base_url))
    expect(page.locator("#health")).to_have_text("Ready")
    page.wait_for_load_state("networkidle")


def about(page: Page) -> list[str]:
    """What stands below the names."""
    return page.locator(".voice .about").all_inner_texts()


def focus(page: Page) -> None:
    """As if the user came back to the tab."""
    page.evaluate("window.dispatchEvent(new Event('focus'))")


def fill_form(page: Page, name: str) -> None:
    if not page.locator("#new-voice[open]").count():
        page.locator("#new-voice summary").click()
    page.locator("#clip").set_input_files(CLIP)
    expect(page.locator("#clip-facts")).to_contain_text("5.2 s")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("How the speaker agreed").fill("a test")


def uploads(triton: Server) -> list[Any]:
    return [inputs["name"] for _, inputs in triton.calls if inputs.get("operation") == b"upload"]


def add_to_answers(page: Page, change: Any) -> None:
    """Change the JSON of the list and of an upload before the page gets it."""

    def answer(route: Route) -> None:
        given = route.fetch()
        body = given.json()
        change(body)
        route.fulfill(response=given, json=body)

    page.route("**/v1/audio/voices", answer)


def test_each_voice_says_whether_it_has_a_transcript(page: Page, triton: Server, serve: Serve) -> None:
    lacking = voice("Fay", "icl", "unsupported")  # its family wants a transcript
    embedding = voice("Emma", "x_vector", embedding_source="direct")
    open_page(page, triton, serve, voice("Ada"), voice("Bo", "x_vector"), embedding, lacking)
    assert about(page) == [
        "ready, with transcript",
        "ready, no transcript",
        "ready, embedding",
        "cannot be spoken here",
    ]
    assert page.locator(".voice .label").first.get_attribute("title")
    expect(page.get_by_role("button", name="Play the clip of Bo")).to_be_visible()
    expect(page.get_by_role("button", name="Play the clip of Emma")).to_have_count(0)


def test_the_state_is_that_for_the_chosen_model(page: Page, triton: Server, serve: Serve) -> None:
    triton.model_types = [FAMILY, "made_up"]
    both = [voice("Ada")["artifacts"][0], voice("Ada", state="failed", family="made_up")["artifacts"][0]]
    open_page(page, triton, serve, {**voice("Ada"), "artifacts": both}, voice("Bo", "x_vector"))
    assert about(page) == ["ready, with transcript", "ready, no transcript"]
    page.get_by_label("Model").select_option("made_up")
    assert about(page) == ["failed, with transcript", "not prepared yet, no transcript"]
    expect(page.get_by_role("button", name="Prepare Ada again")).to_be_visible()


def test_voices_that_a_model_brings_speak_and_cannot_be_deleted(page: Page, triton: Server, serve: Serve) -> None:
    triton.model_types = [FAMILY, "made_up"]
    presets = (
        {"name": "Zoe", "model_type": "made_up", "registered": False},
        {"name": "ada", "model_type": "made_up", "registered": True},
    )
    open_page(page, triton, serve, voice("Ada"), presets=presets)
    assert about(page) == ["ready, with transcript", "cannot be spoken here; a preset of made_up, preset"]
    page.get_by_label("Model", exact=True).select_option("made_up")
    assert about(page)[1] == "ready, preset"
    expect(page.get_by_role("button", name="Delete Ada")).to_be_visible()
    for button in ("Delete Zoe", "Play the clip of Zoe"):
        expect(page.get_by_role("button", name=button)).to_have_count(0)
    page.get_by_role("radio", name="Zoe").check()
    expect(page.locator("#speaking-voice")).to_have_text("Zoe")


def test_the_clips_of_a_voice_are_tabs_and_a_clip_is_added(page: Page, triton: Server, serve: Serve) -> None:
    styles = {"happy": voice("Ada"), "sad": voice("Ada")}
    open_page(page, triton, serve, voice("Ada", styles=styles), voice("Bo"))
    page.get_by_role("radio", name="Bo").check()
    expect(page.get_by_role("radiogroup", name="Style")).to_be_hidden()
    page.get_by_role("radio", name="Ada").check()
    tabs = page.get_by_role("radiogroup", name="Style").get_by_role("radio")
    assert [tabs.nth(place).input_value() for place in range(tabs.count())] == ["neutral", "happy", "sad"]
    expect(page.get_by_role("radio", name="neutral")).to_be_checked()
    triton.play = lambda context: iter(speech(1))
    for style in ("happy", "neutral"):
        page.locator("#styles label", has_text=style).click()
        page.get_by_label("Text", exact=True).fill("Hi.")
        with page.expect_request("**/v1/audio/speech") as asked:
            page.locator("#text").press("Control+Enter")
        given = asked.value.post_data_json
        assert given.get("style", "neutral") == style and given["voice"] == "Ada"
    fill_form(page, "Ada")
    page.locator("#new-style").fill("calm")
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.locator("#voices-note")).to_have_text("Ada is registered.")
    [sent] = [inputs for _, inputs in triton.calls if inputs.get("operation") == b"upload"]
    assert json.loads(sent["options"])["style"] == "calm"


def test_a_style_is_deleted_after_a_question(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada", styles={"happy": voice("Ada"), "sad": voice("Ada")}))

    def deletions() -> list[Any]:
        return [inputs for _, inputs in triton.calls if inputs.get("operation") == b"delete"]

    page.locator("#styles label", has_text="happy").click()
    expect(page.get_by_role("button", name="Delete neutral of Ada")).to_have_count(0)
    delete = page.get_by_role("button", name="Delete happy of Ada")
    delete.click()
    expect(page.get_by_role("dialog", name="Delete happy of Ada?")).to_be_visible()
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not deletions()
    listing(triton, voice("Ada", styles={"sad": voice("Ada")}))
    delete.click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(delete).to_have_count(0)
    [sent] = deletions()
    assert sent["name"] == b"Ada" and json.loads(sent["options"]) == {"style": "happy"}
    expect(page.get_by_role("radio", name="neutral")).to_be_checked()
    expect(page.get_by_role("radio", name="sad")).not_to_be_checked()

    def refuse(inputs: Any) -> Any:
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: it is being changed")

    triton.answer = refuse
    page.get_by_role("button", name="Delete sad of Ada").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#voice-error")).to_have_text("It is being changed.")
    expect(page.get_by_role("radio", name="sad")).to_have_count(1)


def test_the_words_of_a_clip_are_written_down_and_corrected(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Bo"))
    usual = triton.answer
    page.locator("#new-voice summary").click()
    write, transcript = page.get_by_role("button", name="Write them down"), page.locator("#transcript")
    write.click()
    expect(page.locator("#sample-error")).to_contain_text("There is no clip yet")
    fill_form(page, "Ada")

    def unknown(inputs: Any) -> Any:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'transcriber' is not found")

    triton.answer = unknown
    write.click()
    expect(page.locator("#transcript-error")).to_contain_text("serve --with transcriber")
    expect(write).to_be_enabled()
    triton.answer = lambda inputs: {"text": b""} if "operation" not in inputs else usual(inputs)
    write.click()
    expect(page.locator("#transcript-error")).to_have_text("No words were recognised in the clip.")
    triton.answer = lambda inputs: {"text": b"the harbor was quiet"} if "operation" not in inputs else usual(inputs)
    write.click()
    expect(transcript).to_have_value("the harbor was quiet")
    expect(page.locator("#transcript-error")).to_be_hidden()
    expect(transcript).to_be_focused()
    [*_, heard] = [inputs for model, inputs in triton.calls if model == "transcriber"]
    assert heard["audio"] == CLIP.read_bytes()
    transcript.press_sequentially(" in the morning")
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.locator("#voices-note")).to_have_text("Ada is registered.")
    [sent] = [inputs for _, inputs in triton.calls if inputs.get("operation") == b"upload"]
    assert sent["reference_text"] == b"the harbor was quiet in the morning"


def test_the_gateway_s_default_voice_is_chosen_and_aliases_are_reported(
    page: Page, triton: Server, serve: Serve
) -> None:
    listing(triton, voice("Ada"), voice("Bo"))
    answer, alias = triton.answer, json.dumps({"speakers": [{"name": "nova", "voice": "BO"}]}).encode()
    triton.answer = lambda inputs: {"result": alias} if b"alias" in inputs.get("options", b"") else answer(inputs)
    page.goto(str(serve(triton.url, default_voice="bo").base_url))
    expect(page.get_by_role("radio", name="Bo")).to_be_checked()
    expect(page.locator("#speaking-voice")).to_have_text("Bo")
    assert about(page) == ["ready, with transcript", "ready, with transcript, default, also nova"]


def test_warnings_stand_beside_the_voice_and_are_open_after_its_registration(
    page: Page, triton: Server, serve: Serve
) -> None:
    def warn(body: Any) -> None:
        found = [{"code": "noise", "message": "the clip is noisy"}, {"code": "silence", "message": "it begins late"}]
        for each in [body["voice"]] if "voice" in body else body["uploaded_voices"]:
            each["warnings"] = found if each["name"] == "Ada" else []

    add_to_answers(page, warn)
    open_page(page, triton, serve, voice("Ada"), voice("Bo"))
    expect(page.locator(".warnings")).to_have_count(1)
    expect(page.get_by_text("The clip is noisy.")).to_be_hidden()
    page.get_by_text("2 warnings about the clip").click()
    expect(page.get_by_text("The clip is noisy.")).to_be_visible()
    page.reload()
    page.wait_for_load_state("networkidle")
    fill_form(page, "Ada")
    page.get_by_role("button", name="Register").click()
    page.get_by_role("button", name="Replace").click()
    expect(page.locator("#voices-note")).to_have_text("Ada is registered.")
    expect(page.get_by_text("The clip is noisy.")).to_be_visible()


def test_a_voice_that_is_gone_leaves_the_list(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada"), voice("Bo"), voice("Cy"))
    page.get_by_role("radio", name="Bo").check()
    listing(triton, voice("Ada"), voice("Cy"))
    focus(page)
    expect(page.get_by_role("radio")).to_have_count(2)
    expect(page.locator("#voices-note")).to_have_text("Bo was deleted; Ada is chosen now.")

    def refuse(context: Any) -> Iterator[Any]:
        listing(triton, voice("Cy"))
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'Ada'")

    triton.play = refuse
    page.get_by_label("Text", exact=True).fill("Hello.")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#voice-error")).to_contain_text("No voice is registered under the name 'Ada'")
    expect(page.get_by_role("radio")).to_have_count(1)

    def gone(inputs: Any) -> Any:
        listing(triton)
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'Cy'")

    triton.answer = gone
    page.get_by_role("button", name="Delete Cy").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#no-voices")).to_be_visible()
    expect(page.locator("#speaking-voice")).to_have_text("none yet")


def test_a_refresh_keeps_what_the_user_does(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada"), voice("Bo"))
    page.get_by_role("radio", name="Bo").check()
    page.get_by_role("button", name="Delete Bo").focus()
    listing(triton, voice("Aaron"), voice("Ada"), voice("Bo"))
    focus(page)
    expect(page.get_by_role("radio")).to_have_count(3)
    expect(page.get_by_role("radio", name="Bo")).to_be_checked()
    expect(page.get_by_role("button", name="Delete Bo")).to_be_focused()


def test_a_taken_name_is_replaced_only_after_a_question(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada"))
    fill_form(page, " ada")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("dialog", name="Replace Ada?")).to_be_visible()
    page.get_by_role("button", name="Keep").press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Register")).to_be_enabled()
    assert uploads(triton) == []
    page.get_by_role("button", name="Register").click()
    page.get_by_role("button", name="Replace").click()
    expect(page.locator("#voices-note")).to_have_text("Ada is registered.")
    [options] = [inputs["options"] for _, inputs in triton.calls if inputs.get("operation") == b"upload"]
    assert json.loads(options) == {"replace": True}


@pytest.mark.parametrize("own", [True, False])
def test_a_name_that_is_taken_though_it_is_not_listed(page: Page, triton: Server, serve: Serve, own: bool) -> None:
    """It came meanwhile, is one of too many, or another owner's, who keeps it."""
    open_page(page, triton, serve, voice("Bo"))
    usual = triton.answer

    def refuses(inputs: Any) -> Any:
        if inputs["operation"] == b"upload" and b"replace" not in inputs.get("options", b""):
            raise Failure(grpc.StatusCode.ALREADY_EXISTS, "speaker_exists: the name 'Ada' is taken")
        if inputs["operation"] == b"get" and not own:
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice of that name")
        return usual(inputs)

    triton.answer = refuses
    fill_form(page, "ada")
    page.get_by_role("button", name="Register").click()
    if own:
        page.get_by_role("button", name="Replace").click()
        expect(page.locator("#voices-note")).to_contain_text("is registered.")
    else:
        expect(page.locator("#name-error")).to_have_text("The name 'Ada' is taken.")
    assert len(uploads(triton)) == (2 if own else 1)


def test_errors_stand_beside_their_fields(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada"))
    page.locator("#new-voice summary").click()
    page.get_by_label("Name", exact=True).fill("no/name")
    page.get_by_role("button", name="Register").click()
    for field, text in (("sample", "no clip yet"), ("name", "Letters, digits"), ("consent", "how the speaker agreed")):
        expect(page.locator(f"#{field}-error")).to_contain_text(text)
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    assert page.get_by_label("Name", exact=True).get_attribute("aria-invalid") == "true"
    expect(page.get_by_label("Name", exact=True)).to_have_accessible_description(re.compile("Letters, digits"))
    page.get_by_label("Name", exact=True).fill("name")
    expect(page.locator("#name-error")).to_be_hidden()

    fill_form(page, "Bo")
    refused = {
        "the audio is 0.20 s long; it must be 1 to 30 s": "sample",
        "the name begins with a dot": "name",
        "reference_text has 4001 characters; at most 4000 are allowed": "transcript",
        "something else is wrong": "register",
    }
    for message, field in refused.items():

        def refuse(inputs: Any, message: str = message) -> Any:
            if inputs["operation"] == b"upload":
                raise Failure(grpc.StatusCode.INVALID_ARGUMENT, f"invalid_argument: {message}")
            return {"result": b'{"speakers": []}'}

        triton.answer = refuse
        page.get_by_role("button", name="Register").click()
        expect(page.locator(f"#{field}-error")).to_contain_text(message[1:])
        expect(page.get_by_role("alert")).to_have_count(1)

    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#text-error")).to_have_text("Type the text to speak.")
    page.get_by_label("Text", exact=True).fill("Hello.")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#voice-error")).to_contain_text("There is no voice yet")


def test_the_end_of_waiting_for_the_server(page: Page, triton: Server, serve: Serve) -> None:
    """Not reachable, then no model, then ready: each is said, and the page goes on by itself."""
    triton.model_types = []
    listing(triton, voice("Ada"))
    url = str(serve(triton.url).base_url)
    page.goto(url)
    expect(page.locator("#notice")).to_contain_text("no model that speaks")
    page.route(re.compile("/health$|/v1/"), lambda route: route.abort())
    expect(page.locator("#notice")).to_contain_text("The gateway cannot be reached", timeout=WAIT)
    page.reload()
    expect(page.locator("#voices-away")).to_be_visible()
    triton.model_types = [FAMILY]
    page.unroute_all()
    expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
    expect(page.get_by_role("radio", name="Ada")).to_be_checked(timeout=WAIT)
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#voices-away")).to_be_hidden()


def test_the_page_starts_an_idle_server_when_it_is_used(
    page: Page, triton: Server, serve: Serve, tmp_path: Path
) -> None:
    lock = ServerLock(tmp_path / "lock", make=True)
    assert lock.take()
    listing(triton, voice("Ada"))
    page.goto(str(serve(triton.url, server_lock=str(tmp_path / "lock")).base_url))
    expect(page.locator("#health")).to_have_text("Idle")
    focus(page)
    page.wait_for_load_state("networkidle")
    assert not triton.calls and not lock.asked
    page.get_by_label("Text", exact=True).press_sequentially("Hello.")
    until(lambda: lock.asked)
    lock.free()
    expect(page.get_by_role("radio", name="Ada")).to_be_checked(timeout=WAIT)
    expect(page.locator("#health")).to_have_text("Ready", timeout=WAIT)
    expect(page.locator("#notice")).to_be_hidden()


def test_many_voices_can_be_searched(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, *(voice(f"Voice {index:02d}") for index in range(60)))
    page.get_by_label("Find a voice").fill("VOICE 5")
    expect(page.get_by_role("radio")).to_have_count(10)
    page.get_by_label("Find a voice").fill("nobody")
    expect(page.locator("#none-found")).to_be_visible()


def test_what_came_of_a_speech_can_be_heard_again(page: Page, triton: Server, serve: Serve) -> None:
    open_page(page, triton, serve, voice("Ada"))

    def breaks_off(context: Any) -> Iterator[Any]:
        yield from speech(20)[:15]
        raise Failure(grpc.StatusCode.INTERNAL, "internal: it broke")

    again, stop = page.get_by_role("button", name="Play again"), page.get_by_role("button", name="Stop playing")
    for play, state in ((lambda context: iter(speech(15)), "done"), (breaks_off, "failed")):
        triton.play = play
        page.get_by_label("Text", exact=True).fill("Hello.")
        page.get_by_role("button", name="Speak").click()
        expect(page.locator("#speech")).to_have_attribute("data-state", state)
        again.click()
        expect(stop).to_be_visible()
        expect(again).to_be_visible()  # at its end
        again.click()
        page.keyboard.press("Escape")
        expect(again).to_be_visible()
    expect(page.locator("#speak-error")).to_contain_text("not the whole text")


def test_on_a_phone_the_options_are_folded(browser: Browser, triton: Server, serve: Serve) -> None:
    with tab(browser, 390, 844) as page:
        open_page(page, triton, serve, voice("Ada"), voice("W" * 64))
        expect(page.get_by_label("Seed")).to_be_hidden()
        expect(page.get_by_label("Name", exact=True)).to_be_hidden()
        page.get_by_text("Options").click()
        page.get_by_label("Seed").fill("some")
        page.get_by_text("Options").click()
        page.get_by_label("Text", exact=True).fill("Hello.")
        page.get_by_role("button", name="Speak").click()
        expect(page.get_by_label("Seed")).to_be_focused()
        expect(page.locator("#seed-error")).to_contain_text("at most 15 digits")
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


SLOW_MICROPHONE = """
const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
window.opened = [];
navigator.mediaDevices.getUserMedia = async (wanted) => {
  await new Promise((resolve) => setTimeout(resolve, 300));
  const stream = await real(wanted);
  window.opened.push(stream);
  return stream;
};
"""


def test_a_second_click_while_the_microphone_opens(page: Page, triton: Server, serve: Serve) -> None:
    """It opens no further one, which nothing would close."""
    page.add_init_script(SLOW_MICROPHONE)
    open_page(page, triton, serve)
    page.locator("#record").dblclick()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    page.wait_for_timeout(1000)
    page.get_by_role("button", name="Stop recording").click()
    live = "opened.map((stream) => stream.getTracks().some((track) => track.readyState === 'live'))"
    assert page.evaluate(live) == [False]
