"""Voices over HTTP: their life, and the JSON that clients of the earlier systems expect."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from voice_clone_client import Client

from tests.support.official.phone_clips import is_same_sound, phone_clip
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

VOICES = "/v1/audio/voices"


def upload(http: httpx2.Client, clip: bytes | None, **fields: str) -> httpx2.Response:
    files = None if clip is None else {"audio_sample": ("clip.wav", clip, "audio/wav")}
    return http.post(VOICES, data={"consent": "consent_001", **fields}, files=files)


def remove(http: httpx2.Client, name: str) -> None:
    """Delete a voice when its clip was encoded, else other tests would count that."""
    http.post(f"{VOICES}/{name}/cache")
    http.delete(f"{VOICES}/{name}")


def test_the_session_of_the_prompt_cache(
    http: httpx2.Client, client: Client, server: TritonServer, reference_clip: bytes, reference_text: str
) -> None:
    """Upload, cache, cache again, speak, move the audio away, speak."""
    name = "voicecachee2e"
    answer = upload(http, reference_clip, name=name, ref_text=reference_text)
    assert answer.status_code == 200
    voice = answer.json()["voice"]
    created, id = voice["created_at"], voice["id"]
    shape = {"id": id, "object": "audio.voice", "type": "audio_sample", "name": name, "created_at": created}
    assert answer.json() == {"success": True, "voice": voice, **shape} and id.startswith("voice_")
    del voice["created_at"], voice["id"]
    assert voice.pop("report")["snr_db"] == 60.0
    assert isinstance(created, int) and created > 1_700_000_000
    assert voice == {
        "name": name,
        "consent": "consent_001",
        "mime_type": "audio/wav",
        "file_size": len(reference_clip),
        "reference_text": reference_text,
        "ref_text": reference_text,
        "warnings": [],
    }
    http.post(f"{VOICES}/{name}/cache")
    extractions = client.stats()["extractions"]
    again = http.post(f"{VOICES}/{name}/cache")
    assert again.json() == {
        "voice": name,
        "cache_status": "ready",
        "message": "Cache already exists and is valid",
    }
    assert client.stats()["extractions"] == extractions
    forced = http.post(f"{VOICES}/{name}/cache", params={"force": "true"})
    assert forced.json() == {"voice": name, "cache_status": "ready"}
    assert client.stats()["extractions"] == extractions + 1

    def speak() -> dict[str, Any]:
        asked = {"input": "This runs from the cache.", "voice": name, "response_format": "wav", "max_new_tokens": 5}
        answer = http.post("/v1/audio/speech", json=asked)
        assert answer.status_code == 200 and answer.headers["content-type"] == "audio/wav"
        assert answer.content[:4] == b"RIFF" and len(answer.content) > 44
        return dict(json.loads(answer.headers["x-speech-info"]))

    spoken = speak()
    assert spoken["cache"] == "hit"
    assert spoken["voice_digest"] == http.get(f"{VOICES}/{name}").json()["digest"] == client.get(name).digest
    files = set(server.voices.rglob("*.safetensors"))
    away = {file: file.rename(file.with_suffix(".bak")) for file in files}
    try:
        info = speak()
    finally:
        for file, moved in away.items():
            moved.rename(file)
    assert away and info["cache"] == "hit" and info["mode"] == "icl"
    assert http.delete(f"{VOICES}/{id}").json() == {
        "success": True,
        "message": f"Voice '{name}' deleted successfully",
        "id": id,
        "object": "audio.voice.deleted",
        "deleted": True,
    }
    assert http.delete(f"{VOICES}/{name}").status_code == 404


def test_list_and_show(http: httpx2.Client, reference_clip: bytes) -> None:
    answer = upload(http, reference_clip, name="Listed One", speaker_description="a test")
    assert "ref_text" not in answer.json()["voice"] and answer.json()["voice"]["speaker_description"] == "a test"
    listed = http.get(VOICES).json()
    assert "Listed One" in listed["voices"] and listed["voices"] == sorted(listed["voices"])
    [entry] = [voice for voice in listed["uploaded_voices"] if voice["name"] == "Listed One"]
    assert entry["embedding_source"] == "audio" and entry["cache_status"] in ("pending", "processing", "ready")
    http.post(f"{VOICES}/Listed One/cache")
    shown = http.get(f"{VOICES}/listed%20one").json()
    assert shown["cache_status"] == "ready" and shown["generation"] >= 1 and shown["sample_rate"] == 22050
    assert shown["artifacts"][0]["state"] == "ready"
    assert not any("path" in key for key in shown)
    http.delete(f"{VOICES}/Listed One")


@pytest.mark.parametrize("name", ["voice.m4a", "browser.webm", "call.3gp"])
def test_a_phones_clip_becomes_a_voice_and_a_reference(http: httpx2.Client, name: str) -> None:
    clip = phone_clip(name)
    answer = http.post(VOICES, data={"consent": "c", "name": "Phone"}, files={"audio_sample": (name, clip, "audio/x")})
    assert answer.status_code == 200 and answer.json()["voice"]["mime_type"] == "audio/wav"
    assert [each["code"] for each in answer.json()["voice"]["warnings"]] == (
        ["low_sample_rate"] if name == "call.3gp" else []
    )
    heard = http.get(f"{VOICES}/Phone/audio").content
    samples, rate = soundfile.read(io.BytesIO(heard), dtype="float32")
    assert is_same_sound(samples, rate)
    remove(http, "Phone")
    url = "data:audio/mp4;base64," + base64.b64encode(clip).decode()
    asked = {"input": "Hello.", "ref_audio": url, "max_new_tokens": 3, "response_format": "wav"}
    assert http.post("/v1/audio/speech", json=asked).status_code == 200


def test_strict_and_trimming(http: httpx2.Client, reference_clip: bytes) -> None:
    samples, rate = soundfile.read(io.BytesIO(reference_clip))
    padded = io.BytesIO()
    soundfile.write(padded, np.concatenate([np.zeros(2 * rate), samples]), rate, format="WAV")
    refused = upload(http, padded.getvalue(), name="Padded", strict="true")
    assert refused.status_code == 400 and "leading_silence: 2.0 s" in refused.json()["error"]["message"]
    [warning] = upload(http, padded.getvalue(), name="Padded").json()["voice"]["warnings"]
    assert warning["code"] == "leading_silence" and warning["message"].startswith("2.0 s of silence before the speech")
    assert http.get(f"{VOICES}/Padded").json()["warnings"] == [warning]
    trimmed = upload(http, padded.getvalue(), name="Padded", strict="true", trim_silence="true", replace="true").json()[
        "voice"
    ]
    assert trimmed["warnings"] == [] and trimmed["report"]["trimmed_start"] == pytest.approx(1.7, abs=0.1)
    remove(http, "Padded")


def test_the_clip_comes_back(http: httpx2.Client, reference_clip: bytes) -> None:
    upload(http, reference_clip, name="Clip")
    answer = http.get(f"{VOICES}/Clip/audio")
    assert answer.content == reference_clip and answer.headers["content-type"] == "audio/wav"
    remove(http, "Clip")


def test_a_ready_embedding(http: httpx2.Client, client: Client, voice: str) -> None:
    values = [float(value) for value in client.speaker_embedding(voice)]
    answer = upload(http, None, name="Direct", speaker_embedding=json.dumps(values))
    assert answer.status_code == 200 and "file_size" not in answer.json()["voice"]
    shown = http.get(f"{VOICES}/Direct").json()
    assert shown["embedding_source"] == "direct" and shown["embedding_dim"] == 64
    missing = http.get(f"{VOICES}/Direct/audio")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "audio_not_found"
    asked = {"input": "Hello.", "voice": "Direct", "max_new_tokens": 3}
    assert http.post("/v1/audio/speech", json=asked).status_code == 200
    np.testing.assert_array_equal(client.speaker_embedding("Direct"), np.array(values, np.float32))
    http.delete(f"{VOICES}/Direct")


def test_export_and_import(
    http: httpx2.Client, client: Client, voice: str, reference_clip: bytes, reference_text: str
) -> None:
    upload(http, reference_clip, name="Traveller", ref_text=reference_text)
    http.post(f"{VOICES}/Traveller/cache")
    one = http.get(f"{VOICES}/Traveller/export").content
    everything = http.get("/v1/audio/bundle").content
    assert len(everything) > len(one)
    http.delete(f"{VOICES}/Traveller")
    extractions = client.stats()["extractions"]
    binary = {"Content-Type": "application/octet-stream"}
    answer = http.post("/v1/audio/bundle", content=one, headers=binary)
    assert answer.json() == {"success": True, "voices": ["Traveller"]}
    http.post(f"{VOICES}/Traveller/cache")
    assert client.stats()["extractions"] == extractions
    assert http.get(f"{VOICES}/Traveller").json()["ref_text"] == reference_text
    broken = http.post("/v1/audio/bundle", content=one[:-10], headers=binary)
    assert broken.status_code == 400 and "bundle" in broken.json()["error"]["message"]
    http.delete(f"{VOICES}/Traveller")


@pytest.mark.parametrize("action", ["", "/cache", "/audio", "/export"])
def test_an_unknown_voice(http: httpx2.Client, action: str) -> None:
    answer = http.request("POST" if action == "/cache" else "GET", f"{VOICES}/Nobody{action}")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "voice_not_found"
    assert "Nobody" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "with_clip"),
    [
        ({"name": "a/b"}, True),
        ({"name": ""}, True),
        ({}, True),
        ({"name": "Bad"}, False),
        ({"name": "Bad", "speaker_embedding": "[1.0]"}, True),
        ({"name": "Bad", "speaker_embedding": "[1.0]"}, False),
        ({"name": "Bad", "speaker_embedding": "[1.0, NaN]"}, False),
        ({"name": "Bad", "speaker_embedding": "nonsense"}, False),
        ({"name": "Bad", "ref_text": "  "}, True),
    ],
)
def test_a_wrong_upload(http: httpx2.Client, reference_clip: bytes, fields: dict[str, str], with_clip: bool) -> None:
    answer = upload(http, reference_clip if with_clip else None, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    assert "Bad" not in http.get(VOICES).json()["voices"]


def test_an_upload_needs_consent_and_audio(http: httpx2.Client, reference_clip: bytes) -> None:
    files = {"audio_sample": ("clip.wav", reference_clip, "audio/wav")}
    answer = http.post(VOICES, data={"name": "Bad"}, files=files)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "consent"
    answer = upload(http, b"this is no audio", name="Bad")
    assert answer.status_code == 400 and "audio" in answer.json()["error"]["message"]
    unknown = upload(http, reference_clip, name="Bad", ref_txt="typo")
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "ref_txt"
