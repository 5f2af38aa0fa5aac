"""The official clients of vendors, as they come, on the real server: only the base URL is another."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import trustme
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from openai import NotFoundError, OpenAI
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "Good morning."
CONSENT = "They said so in a letter."


@pytest.fixture(scope="module")
def adapted(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose operator states the consent. A random checkpoint hardly ever ends a speech."""
    folder = tmp_path_factory.mktemp("vendors")
    with Gateway(
        server.url, folder / "log", "--vendors-consent", CONSENT, "--allow-partial", "true", "--default-voice", "Ada"
    ) as gateway:
        yield gateway
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def elevenlabs(adapted: Gateway) -> Iterator[ElevenLabs]:
    with httpx.Client(timeout=60) as http:
        yield ElevenLabs(base_url=adapted.url, api_key="unused", httpx_client=http)


@pytest.fixture
def added(elevenlabs: ElevenLabs, reference_clip: bytes, client: Client) -> Iterator[str]:
    """The id of a voice that ElevenLabs' client has added; its name is taken by the first of two files."""
    made = elevenlabs.voices.ivc.create(name="Zoë (studio)", files=[io.BytesIO(reference_clip)])
    assert made.requires_verification is False
    yield made.voice_id
    for voice in client.list():
        if voice.name.startswith("Zoë"):
            client.delete(voice.name)


def heard(data: bytes, rate: int) -> float:
    """Seconds of a file that has a header."""
    samples, found = soundfile.read(io.BytesIO(data))
    assert found == rate
    return len(samples) / rate


def test_voices_of_elevenlabs(elevenlabs: ElevenLabs, added: str, reference_clip: bytes, client: Client) -> None:
    voice = elevenlabs.voices.get(added)
    assert (voice.voice_id, voice.name, voice.category) == (added, "Zoë -studio-", "cloned")
    assert client.get("Zoë -studio-").consent == CONSENT
    again = elevenlabs.voices.ivc.create(name="Zoë (studio)", files=[io.BytesIO(reference_clip)])
    assert again.voice_id == added, "the same clip once more is the same voice"
    other = elevenlabs.voices.ivc.create(name="Zoë (studio)", files=[reference_clip, reference_clip])
    assert elevenlabs.voices.get(other.voice_id).name == "Zoë -studio- 2"
    found = client.get("Zoë -studio- 2")
    assert [take.number for take in found.takes] == [2] and found.duration == client.get("Zoë -studio-").duration
    listed = {each.voice_id for each in elevenlabs.voices.get_all().voices}
    assert {added, other.voice_id} <= listed
    paged, token = set[str](), None
    while True:
        page = elevenlabs.voices.search(page_size=1, next_page_token=token)
        paged |= {each.voice_id for each in page.voices}
        token = page.next_page_token
        if not page.has_more:
            break
    assert paged == listed == set(paged) and page.total_count == len(listed)
    assert [each.voice_id for each in elevenlabs.voices.search(search="studio- 2").voices] == [other.voice_id]
    assert elevenlabs.voices.settings.get(added).speed == elevenlabs.voices.settings.get_default().speed == 1.0
    elevenlabs.voices.delete(other.voice_id)
    with pytest.raises(ApiError) as gone:
        elevenlabs.voices.delete(other.voice_id)
    assert gone.value.status_code == 404 and gone.value.body["detail"]["status"] == "voice_not_found"


@pytest.mark.parametrize(
    ("output_format", "rate"), [(None, 44100), ("mp3_22050_32", 22050), ("wav_24000", 24000), ("opus_48000_64", 48000)]
)
def test_speech_of_elevenlabs(elevenlabs: ElevenLabs, added: str, output_format: Any, rate: int) -> None:
    named = {} if output_format is None else {"output_format": output_format}
    settings: Any = {"stability": 0.5, "speed": 1.25, "clone_strength": 1.0}
    data = b"".join(
        elevenlabs.text_to_speech.convert(
            added, text=TEXT, model_id="eleven_v3", seed=3, voice_settings=settings, language_code="en", **named
        )
    )
    assert heard(data, rate) > 0.3


def test_raw_formats_of_elevenlabs(elevenlabs: ElevenLabs, added: str) -> None:
    sizes = {
        form: len(b"".join(elevenlabs.text_to_speech.stream(added, text=TEXT, seed=3, output_format=form)))
        for form in ("pcm_16000", "pcm_32000", "ulaw_8000", "alaw_8000")
    }
    assert sizes["pcm_32000"] == 2 * sizes["pcm_16000"] == 8 * sizes["ulaw_8000"] == 8 * sizes["alaw_8000"]


def test_times_and_dialogues_of_elevenlabs(elevenlabs: ElevenLabs, added: str, voice: str) -> None:
    whole = elevenlabs.text_to_speech.convert_with_timestamps(added, text=TEXT, seed=3)
    assert whole.audio_base_64 and whole.alignment is not None, "an estimate, since the server has no aligner"
    assert "".join(whole.alignment.characters) == TEXT
    parts = list(elevenlabs.text_to_speech.stream_with_timestamps(added, text=TEXT, output_format="pcm_24000"))
    assert len(parts) > 1 and all(part.audio_base_64 for part in parts[:-1])
    told = "".join(each for part in parts if part.alignment for each in part.alignment.characters)
    assert told == TEXT
    inputs: Any = [{"text": TEXT, "voice_id": added}, {"text": "And to you.", "voice_id": voice}]
    alone = [
        len(
            b"".join(
                elevenlabs.text_to_speech.convert(i["voice_id"], text=i["text"], seed=3, output_format="pcm_24000")
            )
        )
        for i in inputs
    ]
    both = b"".join(elevenlabs.text_to_dialogue.convert(inputs=inputs, seed=3, output_format="pcm_24000"))
    assert len(both) == sum(alone)
    timed = elevenlabs.text_to_dialogue.convert_with_timestamps(inputs=inputs, seed=3)
    assert [(each.voice_id, each.dialogue_input_index) for each in timed.voice_segments] == [(added, 0), (voice, 1)]
    assert timed.voice_segments[-1].end_time_seconds == pytest.approx(sum(alone) / 48000, abs=0.01)


def test_what_elevenlabs_apps_ask_beside(elevenlabs: ElevenLabs) -> None:
    models = elevenlabs.models.list()
    assert models and all(each.can_do_text_to_speech and each.languages for each in models)
    assert elevenlabs.user.subscription.get().status == "active"
    assert elevenlabs.user.get().subscription.tier == "self-hosted"
    assert not elevenlabs.history.list().history and not elevenlabs.pronunciation_dictionaries.list().has_more


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/text-to-speech/Nobody", {"text": TEXT}, 404, "Nobody"),
        ("/v1/text-to-speech/Ada", {}, 400, "text"),
        ("/v1/text-to-speech/Ada", {"text": 3}, 400, "text"),
        ("/v1/text-to-speech/Ada", {"text": TEXT, "voice_settings": {"speed": 99}}, 400, "voice_settings"),
        ("/v1/text-to-speech/Ada?output_format=mp3_1_2_3", {"text": TEXT}, 400, "mp3_44100_128"),
        ("/v1/text-to-speech/Ada?output_format=pcm_1", {"text": TEXT}, 400, "sample_rate"),
        ("/v1/text-to-dialogue", {"inputs": []}, 400, "inputs"),
        ("/v1/text-to-dialogue", {"inputs": [{"text": TEXT, "voice_id": "x" * 9999}]}, 400, "voice_id"),
        ("/v1/sound-generation", {"text": "boom"}, 400, "no model"),
        ("/v1/text-to-speech/Ada/whisper", {}, 404, "no such path"),
    ],
)
def test_errors_have_the_shape_of_elevenlabs(
    adapted: Gateway, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    answer = httpx.post(adapted.url + path, json=body, headers={"xi-api-key": "unused"})
    detail = answer.json()["detail"]
    assert answer.status_code == status and word in detail["message"] and detail["status"]


def test_voices_of_openai(adapted: Gateway, reference_clip: bytes) -> None:
    with closing(OpenAI(base_url=f"{adapted.url}/v1", api_key="unused", max_retries=0)) as openai:
        voice = openai.audio.voices.create(name="Cora", audio_sample=("a.wav", reference_clip), consent="by mail")
        assert (voice.object, voice.type, voice.name) == ("audio.voice", "audio_sample", "Cora")
        seconds = [
            heard(
                openai.audio.speech.create(
                    model="tts-1", voice=named, input=TEXT, response_format="wav", extra_body={"seed": 3}
                ).content,
                24000,
            )
            for named in ({"id": voice.id}, voice.id, "Cora")
        ]
        assert len(set(seconds)) == 1 and seconds[0] > 0.3
        gone = openai.audio.voices.delete(voice.id)
        assert (gone.id, gone.deleted, gone.object) == (voice.id, True, "audio.voice.deleted")
        with pytest.raises(NotFoundError):
            openai.audio.voices.delete(voice.id)


@pytest.mark.filterwarnings("ignore:ConnectionClosed.* is deprecated:DeprecationWarning")  # which the client uses
def test_by_tls(server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voice: str) -> None:
    """ElevenLabs' client opens its WebSocket by TLS alone."""
    authority, certificate = tmp_path / "authority.pem", tmp_path / "certificate.pem"
    made = trustme.CA()
    made.cert_pem.write_to_path(str(authority))
    made.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    options = ("--tls-certificate", str(certificate), "--allow-partial", "true")
    with Gateway(server.url, tmp_path / "log", *options) as gateway, httpx.Client() as http:
        elevenlabs = ElevenLabs(base_url=gateway.url, api_key="unused", httpx_client=http)
        pieces = elevenlabs.text_to_speech.convert_realtime(voice, text=iter([TEXT]), output_format="pcm_24000")
        samples = np.frombuffer(b"".join(pieces), "<i2")
        assert len(samples) > 1920 and samples.std() > 10


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/v1/audio/speech", {}, {"input": TEXT, "model": "{model}", "voice": "{voice}"}),
        ("/v1/text-to-speech/{voice}", {"xi-api-key": "unused"}, {"text": TEXT, "model_id": "{model}"}),
        ("/v1/speak?model={voice}", {"authorization": "Token unused"}, {"text": TEXT}),
        (
            "/tts/bytes",
            {"x-api-key": "unused", "cartesia-version": "2026-08-14"},
            {
                "model_id": "{model}",
                "transcript": TEXT,
                "voice": {"mode": "id", "id": "{voice}"},
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
            },
        ),
    ],
    ids=["openai", "elevenlabs", "deepgram", "cartesia"],
)
def test_what_is_unknown_is_answered_with_what_helps(
    adapted: Gateway, voice: str, path: str, headers: dict[str, str], body: dict[str, Any]
) -> None:
    """In the text that their clients show: they hide all else."""

    def asked(voice: str, model: str) -> httpx.Response:
        def filled(text: str) -> str:
            return text.replace("{voice}", voice).replace("{model}", model)

        content = filled(json.dumps(body))
        kind = {"content-type": "application/json"}
        return httpx.post(adapted.url + filled(path), content=content, headers={**headers, **kind}, timeout=60.0)

    nobody, nothing = asked("Rachel", "qwen3_tts"), asked(voice, "nothing")
    assert nobody.status_code == 404 and "voice-clone aliases set Rachel=VOICE" in nobody.text
    if "model" in json.dumps(body):  # Deepgram's model is the voice
        assert nothing.status_code == 404 and "this gateway has qwen3_tts" in nothing.text


def test_names_that_openai_s_apps_send_stand_for_voices(adapted: Gateway, client: Client, voice: str) -> None:
    client.set_alias("onyx", voice)
    try:
        order = {"model": "tts-1", "input": TEXT, "response_format": "wav", "seed": 3}
        spoken = [
            httpx.post(f"{adapted.url}/v1/audio/speech", json={**order, "voice": name}, timeout=60.0)
            for name in ("onyx", "ONYX", voice)
        ]
        assert [answer.status_code for answer in spoken] == [200] * 3
        assert len({len(answer.content) for answer in spoken}) == 1
        assert "x-speech-warning" not in spoken[0].headers, "it is not the default voice"
        assert httpx.get(f"{adapted.url}/v1/audio/voices").json()["voice_aliases"] == {"onyx": voice}
    finally:
        client.remove_alias("onyx")
