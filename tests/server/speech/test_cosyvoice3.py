"""CosyVoice3 on a real server beside Qwen3-TTS: what it says equals the bare stages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceCloneError, VoiceNotFound
from voice_clone_client.spans import first_audio_spans

from perf.bench.gateway_process import Gateway
from tests.support.doubles.fakes import clip
from tests.support.families.cosyvoice3 import make_cosyvoice3
from tests.support.families.cosyvoice3_bare import BareCosyVoice3
from tests.support.families.factories import CheckpointFactory
from tests.support.same_audio import is_same_audio
from tests.support.servers.running import SETTINGS, client_of_two_voices, restored_and_erased, running
from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, RATE, FRAME, FRAMES = "Good morning.", 24000, 960, 70
INSTRUCTION = "Please speak as quickly as you can."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareCosyVoice3:
    return BareCosyVoice3(checkpoint)


@pytest.fixture(scope="module")
def server(
    checkpoint: Path, checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Of CosyVoice3 and Qwen3-TTS."""
    folder = tmp_path_factory.mktemp("server")
    checkpoints = [checkpoint_folder("tiny", 0), checkpoint]
    with running(checkpoints, folder, **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer, reference_clip: bytes, reference_text: str) -> Iterator[Client]:
    """Of a server with the voices Ada, whose transcript is known, and Mute, of the same clip without it."""
    with client_of_two_voices(server, "cosyvoice3", reference_clip, reference_text) as client:
        yield client


def heard(client: Client, text: str = TEXT, **given: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Samples and the last info of a speech."""
    speech = client.speak(text, **{"seed": 2, "max_frames": FRAMES, **given})
    samples, rate = speech.read()
    assert rate == RATE
    return samples, dict(speech.info or {})


@pytest.mark.parametrize(
    ("voice", "mode", "options"),
    [
        ("Ada", "zero_shot", {}),
        ("Mute", "cross_lingual", {}),
        ("Ada", "instruct", {"instruct": INSTRUCTION}),
        ("Mute", "instruct", {"instruct": INSTRUCTION}),
        ("Ada", "zero_shot", {"align": True}),
    ],
)
def test_each_mode_speaks_as_the_bare_stages(
    client: Client,
    bare: BareCosyVoice3,
    reference_clip: bytes,
    reference_text: str,
    voice: str,
    mode: str,
    options: dict[str, Any],
) -> None:
    samples, info = heard(client, voice=voice, options=options)
    expected = bare.speak(
        TEXT, reference_clip, reference_text if voice == "Ada" else None, options, seed=2, max_frames=FRAMES
    )
    assert (info["mode"], info["cache"], info["finish_reason"]) == (mode, "hit", expected.finish)
    assert len(samples) == FRAME * len(expected.codes) and is_same_audio(samples, expected.samples)
    assert float(samples.std()) > 0.003


def test_the_modes_differ_and_the_timbre_alone_can_be_asked_for(client: Client) -> None:
    found = {
        "clip": heard(client, voice="Ada")[0],
        "timbre": heard(client, voice="Mute")[0],
        "instruct": heard(client, voice="Mute", options={"instruct": INSTRUCTION})[0],
        "other": heard(client, voice="Mute", options={"instruct": "Whisper."})[0],
    }
    assert len({samples.tobytes() for samples in found.values()}) == 4
    samples, info = heard(client, voice="Ada", x_vector_only=True)
    assert info["mode"] == "cross_lingual" and is_same_audio(samples, found["timbre"])
    same, _ = heard(client, voice="Ada", options={"instruct": INSTRUCTION})
    assert is_same_audio(same, found["instruct"]), "the transcript is not heard"


def test_a_clip_in_the_request_is_the_same_voice(client: Client, reference_clip: bytes, reference_text: str) -> None:
    samples, info = heard(client, reference_audio=reference_clip, reference_text=reference_text)
    assert info["mode"] == "zero_shot" and is_same_audio(samples, heard(client, voice="Ada")[0])
    samples, info = heard(client, reference_audio=reference_clip)
    assert info["mode"] == "cross_lingual" and is_same_audio(samples, heard(client, voice="Mute")[0])


def test_chunks_are_whole_blocks_of_the_flow(client: Client, bare: BareCosyVoice3, reference_clip: bytes) -> None:
    """The first one ends where a block of the reference's and the stream's tokens does, less what the vocoder sees."""
    speech = client.speak(TEXT, voice="Ada", seed=2, max_frames=FRAMES)
    chunks = [len(chunk.samples) for chunk in speech]
    made = bare.artifacts(reference_clip)
    reference = min(len(made["speech_tokens"]), len(made["mel"]) // 2)
    rest = 25 - reference % 25
    first = rest if rest >= 7 else rest + 25
    assert len(chunks) > 2 and 0 < chunks[0] <= FRAME * first
    assert sum(chunks) % FRAME == 0


def test_company_changes_no_speech(client: Client) -> None:
    orders = [
        {"voice": voice, "seed": seed, "text": text}
        for seed, (voice, text) in enumerate((each, text) for each in ("Ada", "Mute") for text in (TEXT, "Yes, two."))
    ]
    alone = [heard(client, **order)[0] for order in orders]
    with ThreadPoolExecutor(len(orders)) as pool:
        beside = list(pool.map(lambda order: heard(client, **order)[0], orders))
    for one, other in zip(alone, beside, strict=True):
        assert is_same_audio(one, other)


def test_two_voices_with_one_transcript_never_meet(
    client: Client, bare: BareCosyVoice3, reference_clip: bytes, reference_text: str
) -> None:
    other = clip(7, 4.0, RATE)
    client.upload("Eve", other, reference_text=reference_text, wait=True)
    expected = {
        name: bare.speak(TEXT, audio, reference_text, seed=2, max_frames=FRAMES).samples
        for name, audio in (("Ada", reference_clip), ("Eve", other))
    }
    for name in ("Ada", "Eve", "Ada", "Eve"):
        assert is_same_audio(heard(client, voice=name)[0], expected[name])
    client.delete("Eve")


def test_a_voice_is_prepared_once(client: Client) -> None:
    """Its first speech solves the blocks that depend on it alone; the next ones begin behind them."""
    client.upload("Once", clip(9, 5.0, RATE), reference_text="Some words.", wait=True)
    assert [heard(client, voice="Once", seed=seed, max_frames=30)[1]["primed"] for seed in range(3)] == [
        "miss",
        "hit",
        "hit",
    ]
    kept = client.stats()["kept"]["cosyvoice3_code2wav"]
    client.delete("Once")
    assert client.stats()["kept"]["cosyvoice3_code2wav"]["voices"] == kept["voices"] - 1


def test_a_first_chunk_of_several_frames_has_its_span(client: Client) -> None:
    with client.speak(TEXT, voice="Ada", seed=1, max_frames=FRAMES) as speech:
        chunk = next(speech)
        assert chunk.info is not None and len(chunk.samples) > FRAME
        spans = first_audio_spans(chunk.info)
        speech.read()
    assert [span.name for span in spans][-3:] == ["first frame", "first chunk", "code2wav"]
    first_audio = speech.status.first_audio_ms
    assert first_audio is not None and 0 < spans[-1].end <= first_audio
    assert speech.info is not None and first_audio_spans(speech.info) == spans, "the last chunk says the same"


def test_the_longest_clip_speaks(client: Client) -> None:
    client.upload("Long", clip(5, 30.0, RATE), reference_text="Many words.", wait=True)
    samples, info = heard(client, voice="Long", max_frames=30)
    assert info["reference_frames"] == 750 and len(samples) % FRAME == 0 and len(samples)
    client.delete("Long")


def test_it_speaks_through_the_openai_api(server: TritonServer, client: Client, tmp_path: Path) -> None:
    with (
        Gateway(server.url, tmp_path / "log") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):
        body = {"model": "cosyvoice3", "input": TEXT, "voice": "Ada", "seed": 2, "max_new_tokens": FRAMES}
        more = {"response_format": "pcm", "allow_partial": True, "instructions": INSTRUCTION}
        answer = http.post("/v1/audio/speech", json={**body, **more})
        assert answer.status_code == 200, answer.text
        assert "x-speech-warning" not in answer.headers
    samples = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767
    expected, _ = heard(client, voice="Ada", options={"instruct": INSTRUCTION})
    assert len(samples) == len(expected) and np.abs(samples - expected).max() <= 2 / 32768


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"text": "Hello<|endofprompt|>there."}, InvalidArgument, r"text .*<\|endofprompt\|>"),
        ({"options": {"instruct": "Be quick<|endofprompt|>"}}, InvalidArgument, r"instruct .*<\|endofprompt\|>"),
        ({"options": {"instruct": " "}}, InvalidArgument, "instruct is blank"),
        ({"options": {"instruct": 3}}, InvalidArgument, "instruct is 3; it must be of type str"),
        ({"options": {"speed": 1}}, InvalidArgument, "'speed' is unknown; this model has align, instruct"),
        ({"repetition_penalty": 1.1}, Unsupported, "this model has no repetition_penalty"),
        ({"language": "English"}, Unsupported, "language"),
        ({"non_streaming_mode": False}, Unsupported, "reads the whole text first"),
        ({"voice": None, "speaker_embedding": np.ones(192)}, Unsupported, "needs more of a voice than an embedding"),
        ({"voice": "Nobody"}, VoiceNotFound, "Nobody"),
        ({"max_frames": 0}, InvalidArgument, "max_frames"),
    ],
)
def test_what_it_refuses(client: Client, given: dict[str, Any], error: type[VoiceCloneError], message: str) -> None:
    asked = {name: value for name, value in {"voice": "Ada", **given}.items() if value is not None}
    with pytest.raises(error, match=message):
        heard(client, **asked)


def test_voices_are_restored_and_erased(checkpoint: Path, server: TritonServer, client: Client, tmp_path: Path) -> None:
    with restored_and_erased(server, client, checkpoint, tmp_path, heard):
        pass
