"""The report on a voice's clip: in answers, on the disk, in bundles; `strict` and `trim_silence`."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load

from tests.support.doubles.fakes import Voices, clip
from voice_clone.audio import decode
from voice_clone.errors import InvalidArgument, SpeakerNotFound
from voice_clone.speakers import voice_file
from voice_clone.speakers.record import SpeakerRecord

Make = Callable[..., Voices]
CLEAN = (Path(__file__).resolve().parents[3] / "tools" / "data" / "reference.wav").read_bytes()
SPEECH, RATE = soundfile.read(io.BytesIO(CLEAN), dtype="float32")


def wav(samples: np.ndarray[Any, Any], rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


PADDED = wav(np.concatenate([np.zeros(2 * RATE), SPEECH, np.zeros(3 * RATE)]))
BAD = wav(np.concatenate([np.zeros(2 * RATE), 0.05 * SPEECH]))


def codes(speaker: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in speaker["warnings"]]


def stored(voices: Voices, name: str = "Ada") -> bytes:
    """The clip as a bundle carries it."""
    bundle = voices.call("export", name=name).artifacts
    assert bundle is not None
    return load(load(bundle)["0"].tobytes())["audio"].tobytes()


def test_an_upload_answers_its_report_and_so_do_get_list_and_the_next_server(voices: Voices) -> None:
    answer = voices.upload(audio=BAD, reference_text="The harbour was quiet in the morning.")
    assert codes(answer) == ["quiet", "leading_silence"]
    assert answer["report"]["leading_silence"] == pytest.approx(2.0, abs=0.1) and answer["report"]["speaking_rate"] > 1
    assert all(set(warning) == {"code", "message"} for warning in answer["warnings"])
    [listed] = voices.call("list").result["speakers"]
    assert answer == voices.get() == listed
    voices.restart()
    assert voices.get() == answer
    json.dumps(answer, allow_nan=False)


def test_a_clean_clip_has_a_report_and_no_warning(voices: Voices) -> None:
    answer = voices.upload(audio=CLEAN)
    assert answer["warnings"] == [] and answer["report"]["snr_db"] == 60.0
    assert "speaking_rate" not in answer["report"]  # there is no transcript
    assert answer["report"]["trimmed_start"] == answer["report"]["trimmed_end"] == 0.0


OUT_OF_PHASE = wav(np.stack([SPEECH, -0.9 * SPEECH], axis=1))


@pytest.mark.parametrize(
    ("audio", "code", "measured"),
    [
        (OUT_OF_PHASE, "out_of_phase", {"channel": 1}),
        (CLEAN[:-22_050], "truncated", {"missing_seconds": 0.5}),
        (CLEAN + b"\0\1" * 2_000_000, "undecoded", {"undecoded_bytes": 4_000_000}),
    ],
)
def test_what_is_not_in_the_clip_is_in_the_report(
    audio: bytes, code: str, measured: dict[str, float], make_voices: Make
) -> None:
    voices = make_voices()
    answer = voices.upload(audio=audio)
    assert codes(answer) == [code] and measured.items() <= answer["report"].items()
    with pytest.raises(InvalidArgument, match=rf"strict.*{code}: "):
        voices.call("upload", {"strict": True}, name="Other", audio=audio)
    voices.restart()
    assert voices.get() == answer
    [warning] = voices.call("resolve", audio=audio).result["warnings"]
    assert warning == answer["warnings"][0]
    assert voices.call("resolve", audio=CLEAN).result["warnings"] == []

    voices.call("upload", {"trim_silence": True, "wait": True}, name="Cut", audio=_padded(audio))
    cut = voices.get("Cut")
    bundle = voices.call("export", name="Cut").artifacts
    other = make_voices("other")
    other.call("import", audio=bundle)
    assert other.get("Cut")["report"] == cut["report"]
    assert code in codes(other.get("Cut"))


def _padded(audio: bytes) -> bytes:
    """The clip with silence before it, and with the same fault."""
    at = audio.index(b"data") + 8
    silence = bytes(2 * RATE * 4)
    (size,) = struct.unpack_from("<I", audio, at - 4)
    return audio[: at - 4] + struct.pack("<I", size + len(silence)) + silence + audio[at:]


def test_an_embedding_has_no_report(voices: Voices) -> None:
    answer = voices.upload(audio=None, speaker_embedding=np.zeros(1024, np.float32))
    assert not {"report", "warnings"} & set(answer)


def test_strict_refuses_a_clip_with_warnings_and_reports_all(voices: Voices) -> None:
    with pytest.raises(InvalidArgument, match=r"strict.*quiet: the speech is at.*; leading_silence: 2\.0 s"):
        voices.call("upload", {"strict": True}, name="Ada", audio=BAD)
    with pytest.raises(SpeakerNotFound):
        voices.get()
    assert voices.call("upload", {"strict": True, "wait": True}, name="Ada", audio=CLEAN).result["warnings"] == []
    voices.call("upload", {"strict": False, "replace": True}, name="Ada", audio=BAD)


def test_strict_leaves_the_older_voice(voices: Voices) -> None:
    before = voices.upload(audio=CLEAN)
    with pytest.raises(InvalidArgument, match="strict"):
        voices.call("upload", {"strict": True}, name="Ada", audio=BAD)
    assert voices.get() == before and voices.resolve().result["status"] == "hit"


def test_a_silent_clip_is_refused_registered_or_not(voices: Voices) -> None:
    for samples, words in ((np.zeros(RATE), "every sample is 0"), (0.0005 * np.ones(RATE), "-66 dBFS")):
        with pytest.raises(InvalidArgument, match=f"the audio is silent: .*{words}"):
            voices.upload(audio=wav(samples))
        with pytest.raises(InvalidArgument, match="the audio is silent"):
            voices.call("resolve", audio=wav(samples))


@pytest.mark.parametrize("option", ["strict", "trim_silence"])
def test_options_of_a_clip_are_no_options_of_an_embedding_or_of_other_operations(voices: Voices, option: str) -> None:
    with pytest.raises(InvalidArgument, match=f"no option {option}"):
        voices.call("upload", {option: True}, name="Ada", speaker_embedding=np.zeros(1024, np.float32))
    with pytest.raises(InvalidArgument, match=f"unknown option '{option}'"):
        voices.call("resolve", {option: True}, audio=CLEAN)
    with pytest.raises(InvalidArgument, match="must be true or false"):
        voices.call("upload", {option: 1}, name="Ada", audio=CLEAN)


def test_without_trim_silence_the_clip_is_kept_as_it_was_uploaded(voices: Voices) -> None:
    assert codes(voices.upload(audio=PADDED)) == ["leading_silence", "trailing_silence"]
    assert stored(voices) == PADDED


def test_what_was_trimmed_is_reported_and_what_is_left_is_the_voice(voices: Voices) -> None:
    answer = voices.call("upload", {"trim_silence": True, "wait": True}, name="Ada", audio=PADDED).result
    report = answer["report"]
    assert answer["warnings"] == [] and 1.5 < report["trimmed_start"] < 2.0 and 2.5 < report["trimmed_end"] < 3.0
    whole = decode(PADDED)
    assert answer["duration"] == pytest.approx(
        whole.seconds - report["trimmed_start"] - report["trimmed_end"], abs=0.01
    )
    kept = stored(voices)
    first = round(report["trimmed_start"] * RATE)
    np.testing.assert_array_equal(
        decode(kept).waveform, whole.waveform[first : first + round(answer["duration"] * RATE)]
    )
    assert (answer["mime_type"], answer["file_size"]) == ("audio/wav", len(kept))
    # Whoever has the stored clip has the same voice: another name, another extraction, the inline clip.
    artifacts = voices.resolve().artifacts
    assert voices.call("resolve", {"cache": False}, audio=kept).artifacts == artifacts
    voices.upload("Copy", audio=kept)
    assert voices.resolve("Copy").artifacts == artifacts
    voices.call("prepare", {"force": True}, name="Ada")
    assert voices.resolve().artifacts == artifacts
    assert voices.get()["report"] == report


def test_trimming_where_there_is_nothing_to_trim_keeps_the_file(voices: Voices) -> None:
    voices.call("upload", {"trim_silence": True, "wait": True}, name="Ada", audio=CLEAN)
    assert stored(voices) == CLEAN


def test_strict_judges_what_trimming_left(voices: Voices) -> None:
    voices.call("upload", {"strict": True, "trim_silence": True}, name="Ada", audio=PADDED)
    with pytest.raises(InvalidArgument, match=r"quiet: [^;]*; -30[^;]*$"):  # no word of the silence that was cut
        voices.call("upload", {"strict": True, "trim_silence": True}, name="Ben", audio=BAD)


def test_a_bundle_brings_its_report(make_voices: Make) -> None:
    here, there = make_voices("here"), make_voices("there")
    voice = here.call("upload", {"trim_silence": True, "wait": True}, name="Ada", audio=PADDED).result
    here.upload("Bad", audio=BAD)
    there.call("import", audio=here.call("export").artifacts)
    assert there.get("Ada")["report"] == voice["report"]
    assert codes(there.get("Bad")) == ["quiet", "leading_silence"]
    without_audio = make_voices("without")
    without_audio.call("import", audio=here.call("export", {"include_audio": False}).artifacts)
    assert without_audio.get("Ada")["report"] == voice["report"]


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record in a voice's file, as another version of the server would have written it."""
    header, tensors = voice_file.read(path, lambda name: True)

    class Other(SpeakerRecord):
        def to_json(self) -> str:
            values = json.loads(header.record.to_json())
            change(values)
            return json.dumps(values)

    path.write_bytes(voice_file.pack(Other(**vars(header.record)), tensors, header.digests))


def test_a_voice_of_an_older_server_loads_as_before(voices: Voices) -> None:
    answer = voices.upload(audio=BAD)
    [path] = voices.on_disk()
    voices.cache.close()
    rewritten(path, lambda values: values.pop("report"))
    voices.restart()
    old = {name: value for name, value in answer.items() if name not in ("report", "warnings")}
    assert voices.get() == old and voices.resolve().result["status"] == "restored"


def test_a_voice_of_a_newer_server_loads_without_what_is_not_known(voices: Voices) -> None:
    answer = voices.upload(audio=BAD)
    [path] = voices.on_disk()
    voices.cache.close()
    rewritten(path, lambda values: (values.update(mood="calm"), values["report"].update(echo=0.3)))
    voices.restart()
    assert voices.get() == answer


def test_noise_is_no_speech(voices: Voices) -> None:
    assert codes(voices.upload(audio=clip(0))) == ["no_speech"]
