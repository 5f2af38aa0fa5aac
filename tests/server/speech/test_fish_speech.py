"""Fish Speech beside Qwen3-TTS on one real server: one cache, voices of both, speech of both at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceCloneError, VoiceNotFound

from tests.support.doubles.fakes import clip
from tests.support.families.fish_bare import BareFish
from tests.support.official.encoded_sound import decode
from tests.support.same_audio import is_same_audio
from tests.support.servers.both_families import FAMILIES, FRAMES, MUTE, TEXT, VOICE, Next
from tests.support.servers.cache_calls import Cache
from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

RATE, FRAME = 44100, 2048


@pytest.fixture(scope="module")
def bare(both_checkpoints: list[Path]) -> BareFish:
    return BareFish(both_checkpoints[1])


@pytest.fixture(scope="module")
def server(server_of_both: TritonServer) -> TritonServer:
    return server_of_both


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    """A client whose family is Fish Speech."""
    with Client(server.url, model="fish_speech") as client:
        yield client


@pytest.fixture(scope="module")
def expected(bare: BareFish, reference_clip: bytes, reference_text: str) -> Any:
    """The speech of `VOICE` by the bare stages."""
    codes = bare.codes(reference_clip)
    return lambda text=TEXT, **knobs: bare.speak(text, codes, reference_text, **{"max_frames": FRAMES, **knobs})


def speak(client: Client, text: str = TEXT, **given: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Samples and the last info of a speech, checked for what holds of each."""
    chunks = list(client.speak(text, **{"voice": VOICE, "seed": 2, "max_frames": FRAMES, **given}))
    info = dict(chunks[-1].info or {})
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.sample_rate for chunk in chunks} == {RATE}
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert len(samples) == info["frames"] * FRAME
    return samples, info


def state(cache: Cache, name: str) -> dict[str, dict[str, Any]]:
    """What is shown of a voice's artifacts, by family."""
    return {each["model_type"]: each for each in cache("get", name=name)[0]["artifacts"]}


def test_one_upload_serves_both(cache: Cache, bare: BareFish, reference_clip: bytes) -> None:
    assert {family: (each["mode"], each["state"]) for family, each in state(cache, VOICE).items()} == {
        "qwen3_tts": ("icl", "ready"),
        "fish_speech": ("icl", "ready"),
    }
    result, packed = cache("resolve", name=VOICE, model_type="fish_speech")
    artifacts = load(packed)
    assert result["status"] == "hit" and artifacts.keys() == {"codec_codes"}
    assert artifacts["codec_codes"].dtype == np.uint16
    np.testing.assert_array_equal(artifacts["codec_codes"], bare.codes(reference_clip))
    assert load(cache("resolve", name=VOICE, model_type="qwen3_tts")[1]).keys() == {"codec_codes", "speaker_embedding"}


def test_ten_seconds_are_4320_bytes(client: Client, cache: Cache) -> None:
    client.upload("Ten", clip(3, 10.0, RATE), reference_text="Ten seconds of it.", wait=True)
    codes = load(cache("resolve", name="Ten", model_type="fish_speech")[1])["codec_codes"]
    assert codes.shape == (216, 10) and codes.nbytes == 4320
    client.delete("Ten")


def test_a_voice_without_transcript_is_for_qwen_alone(client: Client, cache: Cache, reference_clip: bytes) -> None:
    shown = state(cache, MUTE)
    assert shown["fish_speech"]["state"] == "unsupported"
    assert "upload it again with `reference_text`" in shown["fish_speech"]["reason"]
    assert shown["qwen3_tts"]["state"] == "ready"
    with pytest.raises(Unsupported, match="upload it again with reference_text"):
        speak(client, voice=MUTE)
    with pytest.raises(InvalidArgument, match="needs reference_text"):
        speak(client, voice=None, reference_audio=reference_clip)
    samples, rate = client.speak(TEXT, voice=MUTE, model="qwen3_tts", seed=1, max_frames=3).read()
    assert len(samples) == 3 * 1920 and rate == 24000


@pytest.mark.parametrize("knobs", [{"seed": 0}, {"seed": 3, "top_p": 0.6, "temperature": 1.4}, {"do_sample": False}])
def test_the_server_speaks_as_the_bare_stages(client: Client, expected: Any, knobs: dict[str, Any]) -> None:
    wanted = expected(**{"seed": 2, **knobs})
    samples, info = speak(client, **knobs)
    assert info["frames"] == len(wanted.codes) == FRAMES and info["finish_reason"] == wanted.finish == "length"
    assert info["voice"] == VOICE and info["mode"] == "icl"
    np.testing.assert_array_equal(samples, wanted.samples)
    assert float(samples.std()) > 0.01, "near silence proves nothing"


def test_a_clip_of_its_own_speaks_as_the_registered_voice(
    client: Client, expected: Any, reference_clip: bytes, reference_text: str
) -> None:
    for cached in ("miss", "hit"):
        samples, info = speak(client, voice=None, reference_audio=reference_clip, reference_text=reference_text)
        np.testing.assert_array_equal(samples, expected(seed=2).samples)
        assert info["cache"] in (cached, "hit")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"options": {"warble": 1}}, InvalidArgument, "'warble' is unknown; this model has none"),
        ({"repetition_penalty": 1.1}, Unsupported, "no repetition_penalty"),
        ({"non_streaming_mode": False}, Unsupported, "reads the whole text first"),
        ({"language": "English"}, Unsupported, "takes no language"),
        ({"x_vector_only": True}, Unsupported, "no speaker embedding"),
        ({"voice": None, "speaker_embedding": np.ones(8)}, Unsupported, "no speaker embedding"),
        ({"temperature": -1}, InvalidArgument, "temperature is -1.0; it must be above 0"),
        ({"max_frames": 0}, InvalidArgument, "max_frames"),
        ({"text": "Hello <|im_end|> there"}, InvalidArgument, "control token"),
        ({"text": "<|semantic:5|>"}, InvalidArgument, "control token"),
    ],
)
def test_what_it_refuses(client: Client, given: dict[str, Any], error: type[VoiceCloneError], message: str) -> None:
    with pytest.raises(error, match=message):
        speak(client, **given)


def test_it_needs_the_whole_text(client: Client) -> None:
    with pytest.raises(Unsupported, match="needs the whole text before it speaks"):
        client.speak_stream(["Good ", "morning."], voice=VOICE).read()


def test_a_transcript_with_a_control_token_is_refused(client: Client, cache: Cache) -> None:
    before = cache("stats")[0]["extractions"]
    with pytest.raises(InvalidArgument, match=r"the reference_text holds '<\|im_start\|>', a control token"):
        speak(client, voice=None, reference_audio=clip(31, 2.0), reference_text="Now <|im_start|>system")
    assert cache("stats")[0]["extractions"] == before, "a request that is refused encodes no clip"


def test_tags_and_speakers_are_text(client: Client) -> None:
    plain, _ = speak(client)
    for text in ("[whisper] Good morning.", "<|speaker:1|>Good morning.", "<|phoneme_start|>G<|phoneme_end|>"):
        assert not np.array_equal(speak(client, text)[0], plain)


def test_sixteen_speeches_of_both_at_once(client: Client) -> None:
    wanted = [{"model": family, "seed": seed} for seed in range(8) for family in FAMILIES]
    barrier = threading.Barrier(len(wanted))

    def read(given: dict[str, Any], together: bool) -> np.ndarray[Any, Any]:
        if together:
            barrier.wait(60.0)
        speech = client.speak(f"Sentence {given['seed']}.", voice=VOICE, max_frames=FRAMES, **given)
        return speech.read()[0]

    alone = [read(each, False) for each in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        together = list(pool.map(lambda each: read(each, True), wanted))
    for each, one, company in zip(wanted, alone, together, strict=True):
        if each["model"] == "fish_speech":
            np.testing.assert_array_equal(company, one)
        else:
            assert is_same_audio(company, one)


@pytest.mark.parametrize("registered", [False, True])
def test_a_stampede_extracts_once_a_family(
    server: TritonServer, client: Client, cache: Cache, registered: bool
) -> None:
    """The first speeches of a clip in both families, also of one that was registered a moment ago."""
    before = cache("stats")[0]["extractions"]
    audio, transcript = clip(77 + registered, 2.0), "Nobody has heard this one."
    given: dict[str, Any] = {"reference_audio": audio, "reference_text": transcript, "max_frames": 3}
    if registered:
        given = {"voice": "Stampede", "max_frames": 3}
        with Client(server.url) as of_all:
            of_all.upload("Stampede", audio, reference_text=transcript)
    barrier = threading.Barrier(12)

    def read(number: int) -> np.ndarray[Any, Any]:
        barrier.wait(60.0)
        samples: np.ndarray[Any, Any] = client.speak(TEXT, model=FAMILIES[number % 2], seed=1, **given).read()[0]
        return samples

    with ThreadPoolExecutor(12) as pool:
        heard = list(pool.map(read, range(12)))
    assert cache("stats")[0]["extractions"] == before + 2
    for number, samples in enumerate(heard):
        assert is_same_audio(samples, heard[number % 2])


def test_a_delete_purges_both(server: TritonServer, client: Client, cache: Cache) -> None:
    voices = server.voices
    entries, files = cache("stats")[0]["entries"], len([*voices.rglob("*")])
    with Client(server.url) as of_all:  # a client of one family has a voice prepared for that alone
        of_all.upload("Gone", clip(5, 2.0), reference_text="Soon forgotten.", wait=True)
    assert cache("stats")[0]["entries"] == entries + 2
    client.delete("Gone")
    assert cache("stats")[0]["entries"] == entries and len([*voices.rglob("*")]) <= files
    for family in FAMILIES:
        with pytest.raises(VoiceNotFound):
            client.speak(TEXT, voice="Gone", model=family).read()


@pytest.mark.parametrize("form", ["wav", "flac", "pcm", "mp3", "opus"])
def test_the_gateway_speaks_it_in_every_format(http: httpx2.Client, expected: Any, form: str) -> None:
    body = {"input": TEXT, "voice": VOICE, "seed": 2, "max_new_tokens": FRAMES, "model": "fish_speech"}
    answer = http.post("/v1/audio/speech", json={**body, "response_format": form})
    assert answer.status_code == 200, answer.text
    wanted = expected(seed=2).samples
    heard = decode(form, answer.content, RATE)
    assert len(heard.samples) / heard.rate == pytest.approx(len(wanted) / RATE, abs=0.1)
    if form == "pcm":
        assert answer.headers["content-type"] == f"audio/pcm;rate={RATE}"
    if form in ("wav", "flac", "pcm"):
        assert heard.rate == RATE and np.abs(heard.samples - wanted).max() <= 2 / 32768


def test_a_whole_speech_is_of_the_default_family_or_the_named_one(server: TritonServer) -> None:
    def whole(**named: str) -> np.ndarray[Any, Any]:
        body = {"text": TEXT, "voice": VOICE, "seed": 7, "max_frames": FRAMES, **named}
        url = f"{server.http}/v2/models/speech_whole/generate"
        return np.array(httpx2.post(url, json=body, timeout=60.0, verify=False).json()["audio"], np.float32)

    spoken = {family: whole(model=family) for family in FAMILIES}
    with Client(server.url) as client:
        for family, samples in spoken.items():
            streamed, _ = client.speak(TEXT, voice=VOICE, seed=7, max_frames=FRAMES, model=family).read()
            assert is_same_audio(samples, streamed)
    assert is_same_audio(whole(), spoken["qwen3_tts"])
    assert len(spoken["fish_speech"]) == FRAMES * FRAME != len(spoken["qwen3_tts"])


def test_the_next_server_has_the_voice_of_both(next_of_both: Next, expected: Any) -> None:
    for family, rate in (("fish_speech", RATE), ("qwen3_tts", 24000)):
        samples, found, info = next_of_both.spoken[family]
        assert found == rate and info["cache"] == "restored"
        if family == "fish_speech":
            np.testing.assert_array_equal(samples, expected(seed=2).samples)
    assert next_of_both.extractions == 0
