"""Clips as phones and browsers make them: decoded into WAV, or refused with the exact reason."""

from __future__ import annotations

import asyncio
import base64
import builtins
import io
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from voice_clone_client import AsyncClient, Client, InvalidArgument, Unsupported
from voice_clone_client.clips import Kind, foreign_kind, readable, to_wav

from tests.support.doubles.command_line import VOICE, answer
from tests.support.doubles.triton_double import Server
from tests.support.official.phone_clips import CLIP, FORMATS, RATE, SAMPLES, is_same_sound, long_clip, made, phone_clip
from voice_clone.audio import Losses, decode
from voice_clone.errors import InvalidArgument as InvalidClip

FFMPEG = pytest.mark.skipif(
    shutil.which("ffmpeg") is None, reason="no ffmpeg, which makes the clips (apt-get install ffmpeg)"
)


def read(wav: bytes) -> tuple[np.ndarray[Any, Any], int]:
    assert soundfile.info(io.BytesIO(wav)).format == "WAV"
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32", always_2d=True)
    assert samples.shape[1] in (1, 2)
    return samples.mean(axis=1), rate


@pytest.mark.parametrize("name", FORMATS)
def test_a_recording_becomes_a_wav_file_of_the_same_sound(name: str, tmp_path: Path) -> None:
    clip = phone_clip(name)
    (tmp_path / name).write_bytes(clip)
    wav = readable(clip)
    assert readable(tmp_path / name) == readable(str(tmp_path / name)) == wav
    assert readable(b"data:audio/mp4;base64," + base64.b64encode(clip)) == wav
    samples, rate = read(wav)
    assert rate == FORMATS[name][2] and is_same_sound(samples, rate)


@FFMPEG
@pytest.mark.parametrize("codec", ["adpcm_g726", "g722", "g723_1", "mp2", "adpcm_yamaha", "flac"])
def test_a_wav_file_with_a_rare_codec(codec: str) -> None:
    slow = codec in ("adpcm_g726", "g722", "g723_1", "adpcm_yamaha")
    bits = ["-b:a", "6300"] if codec == "g723_1" else []
    command = ["ffmpeg", "-v", "error", "-i", str(CLIP), "-ac", "1", "-ar", "8000" if slow else "24000"]
    made = subprocess.run([*command, "-c:a", codec, *bits, "-f", "wav", "-"], capture_output=True, check=True)
    assert foreign_kind(made.stdout) is not None
    with pytest.raises(InvalidClip, match=r"a WAV file with the codec [A-Z]"):
        decode(made.stdout)
    samples, rate = read(readable(made.stdout))
    assert is_same_sound(samples, rate)


def test_a_header_that_promises_more_than_a_clip_may_have_is_not_believed() -> None:
    """The clip is cloned, and the server knows that some of it is missing."""
    clip = bytearray(phone_clip("recorder.aiff"))
    at = clip.index(b"COMM") + 10
    assert struct.unpack_from(">I", clip, at)[0] == round(5.1757812 * 44_100)
    struct.pack_into(">I", clip, at, 44_100 * 60)
    struct.pack_into(">I", clip, clip.index(b"SSND") + 4, 44_100 * 120 + 8)
    decoded = decode(readable(bytes(clip)))
    assert decoded.seconds == pytest.approx(5.18, abs=0.02)
    assert decoded.losses.missing_seconds == pytest.approx(60 - 5.18, abs=0.1)


@pytest.mark.parametrize("name", ["browser.webm", "browser.mkv", "recorder.aiff"])
def test_a_clip_that_is_cut_off_is_known_as_such_to_the_server(name: str) -> None:
    clip = phone_clip(name)
    assert decode(readable(clip)).losses == Losses()
    cut = decode(readable(clip[: len(clip) * 2 // 3 // 2 * 2]))
    assert 3.0 < cut.seconds < 4.0
    assert cut.losses.missing_seconds == pytest.approx(5.2 - cut.seconds, abs=0.1)


def test_the_server_gets_channels_that_cancel_each_other_out() -> None:
    left = (0.9 * 32767 * SAMPLES).astype("<i2")
    stereo = io.BytesIO()
    soundfile.write(stereo, np.stack([left // 2, -left], axis=1), RATE, format="AIFF")
    decoded = decode(readable(stereo.getvalue()))
    assert decoded.losses.channel == 2
    assert is_same_sound(decoded.waveform, decoded.sample_rate)


def test_more_channels_or_a_higher_rate_than_the_server_takes_become_two_at_48_khz() -> None:
    surround = io.BytesIO()
    soundfile.write(surround, np.repeat(SAMPLES[:, None], 6, axis=1), 96_000, format="AIFF")
    clip = readable(surround.getvalue())
    info = soundfile.info(io.BytesIO(clip))
    assert (info.channels, info.samplerate) == (2, 48_000)
    assert abs(info.frames - len(SAMPLES) / 2) < 10


def test_a_file_of_packets_of_one_sample_is_given_up() -> None:
    """Each of them costs as much as one of a thousand."""
    caf = bytearray(phone_clip("recorder.caf"))
    at = caf.index(b"lpcm") + 8  # bytes and samples of a packet
    assert struct.unpack_from(">II", caf, at) == (2, 1)
    struct.pack_into(">I", caf, at + 4, 0xD401)
    with pytest.raises(InvalidArgument, match=r"a CAF file, but damaged after 0\.5 s"):
        readable(bytes(caf))


@FFMPEG
@pytest.mark.parametrize("other", [["-ac", "2"], ["-ar", "16000"], ["-ac", "2", "-ar", "48000"]])
def test_joined_recordings_may_differ(other: list[str]) -> None:
    def adts(*form: str) -> bytes:
        command = ["ffmpeg", "-v", "error", "-i", str(CLIP), *form, "-c:a", "aac", "-f", "adts", "-"]
        return subprocess.run(command, capture_output=True, check=True).stdout

    first = adts("-ac", "1", "-ar", "24000")
    (one, _), (both, rate) = read(readable(first)), read(readable(first + adts(*other)))
    assert (len(both) / len(one), rate) == (pytest.approx(2.0, abs=0.05), 24_000)
    assert np.abs(both[len(one) :]).max() == pytest.approx(np.abs(one).max(), rel=0.2)


def test_a_video_is_its_sound() -> None:
    samples, rate = read(readable(made("video.mp4", picture=True)))
    assert is_same_sound(samples, rate)


def test_what_the_server_reads_is_left_as_it_is(tmp_path: Path) -> None:
    for form in ("WAV", "FLAC", "OGG", "MP3"):
        out = io.BytesIO()
        soundfile.write(out, SAMPLES, 24_000, format=form)
        url = b"data:audio/x;base64," + base64.b64encode(out.getvalue())
        assert readable(out.getvalue()) == out.getvalue() and readable(url) == url
        assert foreign_kind(out.getvalue()) is None is foreign_kind(url)
    assert readable(CLIP) == CLIP.read_bytes()
    for other in (b"", b"text", b"data:", b"data:audio/mp4;base64,@@@@", b"data:audio/mp4;base64", bytes(99)):
        assert readable(other) == other  # the server says what is wrong with it
    with pytest.raises(OSError):
        readable(tmp_path / "absent.m4a")


def protected(mp4: bytes) -> bytes:
    """The file as a shop encrypts it: its audio track has the type of a protected one."""
    assert mp4.count(b"mp4a") == 1
    return mp4.replace(b"mp4a", b"drms")


def encrypted(mp4: bytes) -> bytes:
    """The file with the boxes of common encryption in its sample description, and noise for samples."""
    at = mp4.index(b"mdat") + 4
    scheme = struct.pack(">I4s4s", 12, b"frma", b"mp4a") + struct.pack(">I4sI4sI", 20, b"schm", 0, b"cenc", 0x10000)
    box = struct.pack(">I4s", 8 + len(scheme), b"sinf") + scheme
    noise = np.random.default_rng(0).bytes(2000)
    return mp4[:at] + noise + mp4[at + 2000 :] + struct.pack(">I4s", 8 + len(box), b"free") + box


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: made("video.mp4", sound=False, picture=True), "the clip is a video without sound"),
        (lambda: made("browser.webm", sound=False, picture=True), "the clip is a video without sound"),
        (lambda: phone_clip("voice.m4a")[:9000], "the audio is an MP4 file, but damaged; record or convert it again"),
        (lambda: phone_clip("voice.m4a")[:40], "an MP4 file, but damaged"),
        (lambda: phone_clip("browser.webm")[:60], "a WebM or Matroska file, but damaged|without an audio track"),
        (lambda: protected(phone_clip("voice.m4a")), r"an MP4 file that is protected \(DRM or a password\)"),
        (lambda: encrypted(phone_clip("voice.m4a")), r"an MP4 file that is protected \(DRM or a password\)"),
        (lambda: long_clip("voice.m4a", 65.0), r"the audio is 65\.\d s long; it must be 1 to 30 s"),
        (lambda: long_clip("browser.webm", 31.0), r"the audio is 31\.\d s long; it must be 1 to 30 s"),
        (lambda: long_clip("call.amr", 40.0), "the audio is more than 30 s long; it must be 1 to 30 s"),
        (lambda: long_clip("raw.aac", 40.0), "the audio is more than 30 s long; it must be 1 to 30 s"),
        (lambda: b"#!AMR\n", "an AMR file whose audio track is empty|an AMR file, but damaged"),
        (lambda: b"\0\0\0\x18ftypM4A " + bytes(500), "an MP4 file, but damaged"),
    ],
)
def test_what_is_wrong_is_reported(make: Callable[[], bytes], words: str) -> None:
    clip = make()
    with pytest.raises(InvalidArgument, match=words):
        readable(clip)


def test_damage_in_the_middle_says_where() -> None:
    clip = phone_clip("raw.aac")
    half = len(clip) // 2
    broken = clip[:half] + bytes(len(clip) // 4) + np.random.default_rng(0).bytes(len(clip) // 4)
    with pytest.raises(InvalidArgument, match=r"an AAC file, but damaged after 2\.\d s"):
        readable(broken)


def test_thirty_seconds_are_allowed_though_a_codec_fills_its_last_frame_up() -> None:
    for name in ("voice.m4a", "browser.webm", "call.amr"):
        samples, rate = read(readable(long_clip(name, 30.0)))
        assert 29.9 * rate < len(samples) <= 30 * rate


@settings(max_examples=60)
@given(
    st.sampled_from(["voice.m4a", "browser.webm", "call.amr", "raw.aac"]), st.binary(max_size=99), st.integers(0, 4000)
)
def test_damaged_files_give_a_clip_or_an_error_of_ours(name: str, junk: bytes, at: int) -> None:
    clip = phone_clip(name)
    try:
        wav = readable(clip[:at] + junk + clip[at + len(junk) :])
    except InvalidArgument:
        return
    assert isinstance(wav, bytes)


def test_a_clip_opens_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.aac").write_bytes(phone_clip("raw.aac"))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:5,\n{tmp_path.as_uri()}/secret.aac\n#EXT-X-ENDLIST\n"
    assert readable(playlist.encode()) == playlist.encode()  # no kind of ours: the server refuses it
    with av.open(io.BytesIO(playlist.encode()), format="hls") as opened:  # what FFmpeg alone would do
        assert opened.streams.audio
    with pytest.raises(InvalidArgument, match="a playlist, but damaged"):
        to_wav(io.BytesIO(playlist.encode()), Kind("a playlist", "hls"))


def test_without_pyav_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = phone_clip("voice.m4a")
    real = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "av":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "av", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(Unsupported, match=r"an MP4 file, and PyAV.*pip install av, or send"):
        readable(clip)
    assert readable(CLIP) == CLIP.read_bytes()


@pytest.mark.parametrize("name", ["voice.m4a", "browser.webm", "call.amr"])
def test_the_client_sends_a_wav_file(name: str, triton: Server, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(phone_clip(name))
    wav = readable(phone_clip(name))
    answer(triton, VOICE)
    with Client(triton.url) as client:
        client.upload("Ada", tmp_path / name)
        assert triton.calls[-1][1]["audio"] == wav
        client.upload("Ada", phone_clip(name))
        assert triton.calls[-1][1]["audio"] == wav
        answer(triton, {"speakers": []})
        client.import_(phone_clip(name))
        assert triton.calls[-1][1]["audio"] == phone_clip(name)  # a bundle is no clip


def test_the_asynchronous_client_does_so_too(triton: Server) -> None:
    answer(triton, VOICE)

    async def run() -> None:
        async with AsyncClient(triton.url) as client:
            await client.upload("Ada", phone_clip("voice.m4a"), strict=True, trim_silence=True)

    asyncio.run(run())
    assert triton.calls[-1][1]["audio"] == readable(phone_clip("voice.m4a"))
    assert triton.calls[-1][1]["options"] == b'{"strict": true, "trim_silence": true}'
