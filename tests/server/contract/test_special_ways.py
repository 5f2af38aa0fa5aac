"""What only some families do, on the server of all: blocks, chunks, budgets, tags, and instructions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from playwright.sync_api import expect
from safetensors.numpy import load
from voice_clone_client import Client, DeadlineExceeded, VoiceCloneError
from voice_clone_client.spans import first_audio_spans
from voice_clone_command import cli

from perf.bench.gateway_process import Gateway
from tests.support.families.bare import Bare
from tests.support.families.trials import ADA, CARDS, MUTE, TEXT
from tests.support.official.chromium import WAIT, chromium, tab
from tests.support.same_audio import is_same_audio
from tests.support.servers.contract_calls import SEED, expected, speak
from tests.support.servers.talker_calls import Call
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("contract")]

STYLE = "whispering, very slow"
WORDS = "female, low pitch"
LONG = "We read the same story twice, and then we spoke of it. Nobody knew which one they liked. " * 6
IN_CHUNKS: dict[str, Any] = {"num_step": 4, "audio_chunk_duration": 5.0, "audio_chunk_threshold": 8.0}


def test_chunks_of_cosyvoice3_are_whole_blocks_of_the_flow(
    client: Client, bare_of: Callable[[str], Bare], reference_clip: bytes
) -> None:
    """The first one ends where a block of the reference's and the stream's tokens does, less what the vocoder sees."""
    chunks = [len(chunk.samples) for chunk in client.speak(TEXT, model="cosyvoice3", voice=ADA, seed=2, max_frames=70)]
    made = bare_of("cosyvoice3").artifacts(reference_clip, "zero_shot")
    rest = 25 - min(len(made["speech_tokens"]), len(made["mel"]) // 2) % 25
    assert len(chunks) > 2 and 0 < chunks[0] <= 960 * (rest if rest >= 7 else rest + 25)
    assert sum(chunks) % 960 == 0


def test_a_first_chunk_of_several_frames_has_its_span(client: Client) -> None:
    with client.speak(TEXT, model="cosyvoice3", voice=ADA, seed=1, max_frames=70) as speech:
        chunk = next(speech)
        assert chunk.info is not None and len(chunk.samples) > 960
        spans = first_audio_spans(chunk.info)
        speech.read()
    assert [span.name for span in spans][-3:] == ["first frame", "first chunk", "code2wav"]
    first_audio = speech.status.first_audio_ms
    assert first_audio is not None and 0 < spans[-1].end <= first_audio
    assert speech.info is not None and first_audio_spans(speech.info) == spans, "the last chunk says the same"


def test_what_an_instruction_leaves_out_of_a_voice(client: Client) -> None:
    """The transcript, in CosyVoice3 and VoxCPM2; the timbre alone can be asked for."""
    for family, option, words in (("cosyvoice3", "instruct", "Whisper."), ("voxcpm2", "style", STYLE)):
        given = {"options": {option: words}}
        assert is_same_audio(speak(client, family, ADA, **given)[0], speak(client, family, MUTE, **given)[0])
    samples, info = speak(client, "cosyvoice3", ADA, x_vector_only=True)
    assert info["mode"] == "cross_lingual" and is_same_audio(samples, speak(client, "cosyvoice3", MUTE)[0])
    styled, _ = speak(client, "voxcpm2", ADA, options={"style": STYLE})
    assert is_same_audio(styled, speak(client, "voxcpm2", MUTE, text=f"({STYLE}){TEXT}")[0])
    reference = {"options": {"mode": "reference"}}
    assert is_same_audio(speak(client, "voxcpm2", ADA, **reference)[0], speak(client, "voxcpm2", MUTE)[0])


def test_a_style_without_a_clip_is_given_in_words(client: Client) -> None:
    for family, option in (("cosyvoice3", "instruct"), ("voxcpm2", "style")):
        by_style, info = speak(client, family, ADA, style="whispering,instructions")
        assert info["instructions"] == "whispering" and "style" not in info
        assert is_same_audio(by_style, speak(client, family, ADA, options={option: "whispering"})[0])
    assert is_same_audio(speak(client, "voxcpm2", ADA, style="x,neutral")[0], speak(client, "voxcpm2", ADA)[0])
    with pytest.raises(VoiceCloneError, match="whispering,neutral"):
        speak(client, "fish_speech", ADA, style="whispering,instructions")
    for family in ("cosyvoice3", "pocket_tts"):
        with pytest.raises(VoiceCloneError, match=r"no speaker embeddings.*leave joy out"):
            speak(client, family, ADA, style="joy:0.6")


def test_tags_and_speakers_of_fish_speech_are_text(client: Client) -> None:
    plain, _ = speak(client, "fish_speech", ADA)
    for text in ("[whisper] Good morning.", "<|speaker:1|>Good morning.", "<|phoneme_start|>G<|phoneme_end|>"):
        assert not np.array_equal(speak(client, "fish_speech", ADA, text=text)[0], plain)


@pytest.mark.parametrize("voice", [ADA, None])
def test_a_long_text_of_omnivoice_is_heard_chunk_by_chunk(
    client: Client, bare_of: Callable[[str], Bare], reference_clip: bytes, reference_text: str, voice: str | None
) -> None:
    """Each chunk of it is heard while the next one is made; they are joined as official does it."""
    speech = client.speak(LONG, model="omnivoice", voice=voice, seed=2, options=IN_CHUNKS)
    parts = [chunk.samples for chunk in speech]
    info, stages = speech.info or {}, bare_of("omnivoice")
    clone = None if voice is None else stages.voice(reference_clip, reference_text)
    wanted = stages.speak(LONG, clone, seed=2, options=IN_CHUNKS)
    assert info["text_chunks"] > 3 and info["frames"] == len(wanted.codes)
    assert is_same_audio(np.concatenate(parts), wanted.samples)
    assert sum(len(part) > 0 for part in parts) > 1
    assert info["first_chunk_ms"] < info["queue_ms"] + info["prefill_ms"] + info["talker_ms"], "it came with the end"


def test_omnivoice_ends_in_silence_and_without_a_voice_at_half_level(client: Client) -> None:
    for voice in (ADA, None):
        samples, _ = speak(client, "omnivoice", voice)
        assert not samples[:2400].any() and not samples[-2400:].any()
    assert np.isclose(np.abs(samples).max(), 0.5, atol=1e-3)


def test_a_deadline_ends_omnivoice_between_two_steps(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        speak(client, "omnivoice", ADA, options={"num_step": 1000, "duration": 20.0}, deadline=0.5)
    began = time.monotonic()
    speak(client, "omnivoice", ADA, options={"num_step": 1, "duration": 1.0})
    assert time.monotonic() - began < 10, "the talker still works for a caller that has left"


def test_the_budget_of_a_text_ends_a_speech_of_voxcpm2(client: Client) -> None:
    samples, info = speak(client, "voxcpm2", MUTE, text="Ah", max_frames=400, seed=0)
    assert info["finish_reason"] in ("budget", "stop")
    assert 4 <= len(samples) // 7680 <= 6 * info["text_tokens"] + 10


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        ("cosyvoice3", {"options": {"instruct": "Quick<|endofprompt|>"}}, r"instruct .*<\|endofprompt\|>"),
        ("omnivoice", {"options": {"instruct": "sounding like a robot"}}, "instruct"),
        ("voxcpm2", {"options": {"style": "softly", "mode": "continuation"}}, "would be read aloud"),
        ("voxcpm2", {"options": {"mode": "icl"}}, "it must be one of reference, continuation, ref_continuation"),
        ("voxcpm2", {"options": {"mode": "continuation"}, "voice": MUTE}, "needs the clip's transcript"),
        ("voxcpm2", {"options": {"mode": "reference"}, "voice": None}, "give a voice or reference_audio"),
        ("voxcpm2", {"x_vector_only": False, "voice": MUTE}, "has no transcript"),
        ("chirp", {"max_frames": 5000}, "together at most 2048 fit"),
        ("chirp", {"text": "x" * 201}, "text has 201 bytes; at most 200"),
        ("qwen3_tts", {"voice": "Vivian"}, "it is a voice of the model qwen3_tts_custom_voice"),
        ("qwen3_tts", {"options": {"instruct": "x y"}}, "take the model qwen3_tts_custom_voice"),
        ("qwen3_tts_custom_voice", {"voice": "Nemo"}, "this model's own voices are serena, vivian"),
    ],
)
def test_what_they_refuse(client: Client, family: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(VoiceCloneError, match=message):
        speak(client, family, **{"voice": ADA, **given})


def test_a_registered_voice_speaks_in_place_of_a_preset(client: Client, reference_clip: bytes) -> None:
    """Where the family can use it: Voxtral with encoder weights."""
    preset, _ = speak(client, "voxtral", "casual_male")
    client.upload("Casual_Male", reference_clip, wait=True)
    try:
        samples, info = speak(client, "voxtral", "casual_male")
        assert info["mode"] == "icl" and is_same_audio(samples, speak(client, "voxtral", MUTE)[0])
        assert [each.name for each in client.presets() if each.registered] == ["casual_male"]
    finally:
        client.delete("Casual_Male")
    assert is_same_audio(speak(client, "voxtral", "casual_male")[0], preset)


def test_the_models_of_a_family_one_by_one(
    server: TritonServer, bare_of: Callable[[str], Bare], reference_clip: bytes, reference_text: str
) -> None:
    """Of the example, whose decoder needs the voice: it goes with the first chunk, and with a heartbeat before it."""
    asked = Call(server, {"text": TEXT, "voice": ADA}, model="chirp_prompt")
    made = asked.next()
    asked.close()
    prompt = {name: made.as_numpy(name)[0] for name in ("prompt", "prompt_info")}
    knobs = {"seed": np.array([SEED], np.uint64), "max_frames": np.array([31], np.int32)}
    call = Call(server, {**prompt, **knobs}, model="chirp_talker")
    codes, voices, final = [], [], False
    while not final:
        result = call.next()
        assert not isinstance(result, str), result
        codes.append(result.as_numpy("codes"))
        voices.append(result.as_numpy("voice")[0])
        final = result.as_numpy("final")[0]
    call.close()
    stages = bare_of("chirp")
    wanted = expected(stages, stages.voice(reference_clip, reference_text))
    assert codes[0].dtype == np.uint16 and len(codes[0]) in (0, 2), "the first chunk of its schedule"
    np.testing.assert_array_equal(np.concatenate(codes), wanted.codes)
    assert {load(voice)["timbre"].dtype for voice in voices if voice} == {np.dtype(np.float16)}


def test_a_speech_without_frames(client: Client, bare_of: Callable[[str], Bare], reference_clip: bytes) -> None:
    stages = bare_of("chirp")
    voice = stages.voice(reference_clip, "So.")
    seed = next(seed for seed in range(2000) if not len(expected(stages, voice, seed=seed, max_frames=1).codes))
    given = {"reference_audio": reference_clip, "reference_text": "So."}
    samples, info = speak(client, "chirp", seed=seed, max_frames=1, **given)
    assert len(samples) == info["frames"] == 0 and info["finish_reason"] == "stop"


def test_settings_of_one_family(client: Client, server: TritonServer) -> None:
    log = Path(server.log).read_text(errors="replace")
    assert "chirp_talker: 3 streams" in log and "qwen3_tts_talker: 8 streams" in log
    samples, _ = speak(client, "qwen3_tts", ADA, text="word " * 50, max_frames=2)
    assert len(samples) == 2 * 1920, "its texts may be longer"


def test_the_command_knows_all(server: TritonServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--url", server.url, "models"]) == 0
    found = capsys.readouterr().out.split()
    assert set(found) == set(CARDS) and found[0] == "qwen3_tts"
    for family in ("chirp", "voxcpm2"):
        assert cli.main(["--url", server.url, "--model", family, "doctor"]) == 0


def test_the_page_offers_what_a_model_can(gateway: Gateway, tmp_path: Path) -> None:
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
        page.get_by_role("radio", name=f"{ADA} ready").check()
        for voice, words, mode in ((ADA, "", "in context"), (None, WORDS, "instructions"), (None, "", "any voice")):
            page.locator("#instructions").fill(words)
            page.locator("#voiceless").set_checked(voice is None)
            expect(page.locator("#speaking-voice")).to_be_visible(visible=voice is not None)
            page.locator("#say").click()
            expect(page.locator("#mode")).to_have_text(mode, timeout=WAIT)
            expect(page.locator("#speech")).to_have_attribute("data-state", "done", timeout=WAIT)
            assert page.locator("#speech").get_attribute("data-samples") == "24000"
        page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_an_instruction_that_would_be_read_aloud_is_refused_over_http(http: httpx2.Client) -> None:
    body = {"model": "voxcpm2", "input": TEXT, "voice": ADA, "instructions": STYLE, "response_format": "pcm"}
    refused = http.post("/v1/audio/speech", json={**body, "options": {"mode": "continuation"}})
    assert refused.status_code == 400 and "would be read aloud" in json.dumps(refused.json())
