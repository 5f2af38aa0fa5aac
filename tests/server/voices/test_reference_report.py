"""The report on a reference clip, on the real server: warnings, `strict`, `trim_silence`."""

from __future__ import annotations

import io

import grpc
import numpy as np
import pytest
import soundfile
from safetensors.numpy import load
from voice_clone_client import Client, InvalidArgument, VoiceNotFound

from tests.support.official.phone_clips import PADDED, RATE, SAMPLES, phone_clip, wav
from tests.support.servers.raw_calls import infer
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

CLIPPED = wav(np.clip(SAMPLES, -0.2, 0.2))


def stored(client: Client, name: str) -> bytes:
    """The clip that the server keeps."""
    return load(load(client.export(name))["0"].tobytes())["audio"].tobytes()


def test_a_good_clip_has_a_report_and_passes_strict(client: Client, reference_clip: bytes, reference_text: str) -> None:
    voice = client.upload("Good", reference_clip, reference_text=reference_text, strict=True, wait=True)
    assert voice.warnings == () and voice.report is not None and voice.report["snr_db"] == 60.0
    assert 3.0 < voice.report["speaking_rate"] < 6.0
    client.delete("Good")


def test_a_bad_clip_is_reported_and_strict_refuses_it(client: Client, reference_text: str) -> None:
    voice = client.upload("Bad", CLIPPED, reference_text=reference_text * 5, wait=True)
    assert [warning.code for warning in voice.warnings] == ["clipping", "transcript_too_long"]
    [listed] = [each for each in client.list() if each.name == "Bad"]
    assert client.get("Bad").warnings == listed.warnings == voice.warnings
    with pytest.raises(InvalidArgument, match=r"strict.*clipping: .*transcript_too_long: "):
        client.upload("Bad", CLIPPED, reference_text=reference_text * 5, strict=True)
    assert client.get("Bad").generation == voice.generation
    with pytest.raises(InvalidArgument, match="strict"):
        client.upload("Worse", CLIPPED, strict=True)
    with pytest.raises(VoiceNotFound):
        client.get("Worse")
    client.delete("Bad")


def test_a_silent_clip_and_a_phones_clip_are_refused_with_the_reason(server: TritonServer, client: Client) -> None:
    silent = wav(np.zeros(2 * RATE))
    for call in (lambda: client.upload("Mute", silent), lambda: client.speak("Hi.", reference_audio=silent).read()):
        with pytest.raises(InvalidArgument, match="is silent: every sample is 0"):
            call()
    # The client would decode it: this is what another caller of Triton reads.
    hidden = b"data:audio/mp4;base64," + b"AAAAGGZ0eXBNNEEgAAAA"
    with pytest.raises(grpc.RpcError, match=r"an MP4 file .* this server takes WAV, FLAC, OGG and MP3"):
        infer(server.url, "speaker_cache", {"operation": "upload", "name": "Phone", "audio": hidden})


def test_a_phones_clip_through_the_client(client: Client) -> None:
    voice = client.upload("Phone", phone_clip("voice.m4a"), wait=True, strict=True)
    assert voice.mime_type == "audio/wav" and voice.sample_rate == 44_100
    assert [each.state for each in voice.artifacts] == ["ready"]
    samples, _ = client.speak("Hello.", reference_audio=phone_clip("browser.webm"), max_frames=3).read()
    assert len(samples) == 3 * 1920
    client.delete("Phone")


def test_a_clip_is_cut_to_what_is_spoken(client: Client, reference_text: str) -> None:
    whole = client.upload("Whole", PADDED, reference_text=reference_text, wait=True)
    cut = client.upload("Cut", PADDED, reference_text=reference_text, trim_silence=True, wait=True)
    assert [warning.code for warning in whole.warnings] == ["leading_silence", "trailing_silence"]
    assert cut.warnings == () and cut.report is not None and cut.duration is not None
    assert stored(client, "Whole") == PADDED
    clip, embedding = stored(client, "Cut"), client.speaker_embedding("Cut")
    assert not np.array_equal(embedding, client.speaker_embedding("Whole"))
    # Who has the stored clip has the voice, to the bit.
    client.upload("Copy", clip, reference_text=reference_text, wait=True)
    np.testing.assert_array_equal(client.speaker_embedding("Copy"), embedding)
    first = round(cut.report["trimmed_start"] * RATE)
    kept, _ = soundfile.read(io.BytesIO(clip), dtype="float32")
    given, _ = soundfile.read(io.BytesIO(PADDED), dtype="float32")
    np.testing.assert_array_equal(kept, given[first : first + len(kept)])
    for name in ("Whole", "Cut", "Copy"):
        client.delete(name)
