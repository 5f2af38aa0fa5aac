"""Several recordings of one speaker: one averaged embedding, and one clip for all else."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load

from tests.support.doubles.fakes import Voices, clip
from voice_clone.audio import decode
from voice_clone.errors import InvalidArgument, SpeakerExists
from voice_clone.speakers.take import MAX_TAKES
from voice_clone.speakers.takes import average, weight

STORES = ("files", "postgresql")  # all tests of this file run on both
FAMILY, WITHOUT_EMBEDDING = "qwen3_tts", "fish_speech"
RATE = 24_000

Make = Callable[..., Voices]


def speech(seed: int, seconds: float = 2.0, gaps: float = 0.0) -> bytes:
    """A WAV file of noise that comes and goes, as speech does, for so long; then silence."""
    rng, times = np.random.default_rng(seed), np.arange(int(seconds * RATE)) / RATE
    sound = rng.uniform(-0.5, 0.5, len(times)) * (0.5 + 0.5 * np.sin(2 * np.pi * 4 * times))
    samples = np.concatenate([sound, rng.uniform(-1e-4, 1e-4, int(gaps * RATE))])
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def upload(voices: Voices, files: Sequence[bytes], text: str | None = None, **options: Any) -> dict[str, Any]:
    given = {} if text is None else {"reference_text": text}
    sizes = {"takes": [len(file) for file in files]} if len(files) > 1 else {}
    made = voices.call("upload", {"wait": True, **sizes, **options}, name="Ada", audio=b"".join(files), **given)
    result: dict[str, Any] = made.result
    return result


def made_of(voices: Voices, file: bytes, mode: str, family: str = FAMILY) -> Any:
    sound = decode(file)
    return voices.encoder.encode(family, sound.waveform, sound.sample_rate, mode).artifacts


def resolved(voices: Voices, family: str = FAMILY, **options: Any) -> Any:
    return load(voices.call("resolve", options, name="Ada", model_type=family).artifacts)


def mean_of(voices: Voices, files: Sequence[bytes], modes: Sequence[str]) -> Any:
    embeddings = [made_of(voices, file, mode)["speaker_embedding"] for file, mode in zip(files, modes, strict=True)]
    return average(embeddings, [weight(decode(file)) for file in files])


def test_an_average_has_the_direction_and_length_of_its_parts() -> None:
    a, b = np.float32([3.0, 0.0]), np.float32([0.0, 1.0])
    mean, cosines = average([a, b], [1.0, 3.0])
    assert np.linalg.norm(mean) == pytest.approx(0.25 * 3.0 + 0.75 * 1.0) and mean[0] == pytest.approx(mean[1])
    assert cosines == (0.0, 0.0)
    rng = np.random.default_rng(0)
    speaker, other = rng.normal(size=(2, 64))
    vectors = [np.float32(speaker + 0.3 * rng.normal(size=64)) for _ in range(4)] + [np.float32(other)]
    mean, cosines = average(vectors, [5.0, 4.0, 6.0, 5.0, 1.0])
    assert min(cosines[:4]) > 0.8 > 0.5 > cosines[4] and mean.dtype == np.float32
    same, ones = average([a, a, a], [1.0, 2.0, 9.0])
    assert np.allclose(same, a) and ones == (1.0, 1.0, 1.0)
    assert average([np.zeros(2, np.float32)] * 2, [1.0, 1.0])[1] == (0.0, 0.0)


def test_the_embedding_is_averaged_and_all_else_is_of_the_best(make_voices: Make) -> None:
    voices = make_voices()
    files = [speech(1, 2.0, gaps=3.0), speech(2, 4.0), speech(3, 3.5)]
    shown = upload(voices, files)
    assert [take["number"] for take in shown["takes"]] == [1, 3], "the second has most speech and no warning"
    assert shown["file_size"] == len(files[1]) and shown["duration"] == pytest.approx(4.0)
    mean, cosines = mean_of(voices, [files[1], files[0], files[2]], ["x_vector"] * 3)
    assert np.array_equal(resolved(voices)["speaker_embedding"], mean)
    (artifact,) = shown["artifacts"]
    assert list(artifact["cosines"].values()) == [cosines[1], cosines[0], cosines[2]]
    before = voices.encoder.extractions
    voices.restart()
    assert np.array_equal(resolved(voices)["speaker_embedding"], mean) and voices.encoder.extractions <= before
    assert voices.call("get", {}, name="Ada").result == shown


def test_the_first_is_the_clip_if_it_has_a_transcript(make_voices: Make) -> None:
    voices = make_voices()
    files = [speech(1, 2.0), speech(2, 4.0)]
    shown = upload(voices, files, "Good morning to you all.")
    assert [take["number"] for take in shown["takes"]] == [2]
    found = resolved(voices)
    assert np.array_equal(found["codec_codes"], made_of(voices, files[0], "icl")["codec_codes"])
    assert np.array_equal(found["speaker_embedding"], mean_of(voices, files, ["icl", "x_vector"])[0])


def test_a_family_without_an_embedding_has_the_clip_alone(make_voices: Make) -> None:
    voices = make_voices(defaults=(WITHOUT_EMBEDDING,))
    files = [speech(1, 2.0), speech(2, 4.0)]
    upload(voices, files, "Good morning to you all.")
    (mode,) = {each["mode"] for each in voices.call("get", {}, name="Ada").result["artifacts"]}
    for name, tensor in made_of(voices, files[0], mode, WITHOUT_EMBEDDING).items():
        assert np.array_equal(resolved(voices, WITHOUT_EMBEDDING)[name], tensor)
    assert voices.encoder.calls[WITHOUT_EMBEDDING, mode] == 2, "of the upload and of this test"


def test_one_file_is_as_ever(make_voices: Make) -> None:
    voices = make_voices()
    shown = upload(voices, [clip(1)])
    assert "takes" not in shown and "cosines" not in shown["artifacts"][0]
    sized = voices.call("upload", {"takes": [len(clip(1))]}, name="Ada", audio=clip(1)).result
    assert sized["generation"] == shown["generation"], "the same upload"


def test_the_same_files_are_the_same_upload_and_others_are_not(make_voices: Make) -> None:
    voices = make_voices()
    files = [speech(1), speech(2), speech(3)]
    first = upload(voices, files)
    assert upload(voices, files)["generation"] == first["generation"]
    with pytest.raises(SpeakerExists):
        upload(voices, files[:2])
    assert upload(voices, files[:2], replace=True)["generation"] > first["generation"]


def test_a_style_may_have_several_and_a_bundle_brings_them(make_voices: Make) -> None:
    voices, other = make_voices(), make_voices("other")
    upload(voices, [speech(1)])
    files = [speech(2, 3.0), speech(3, 2.0), speech(4, 2.5)]
    upload(voices, files, style="happy")
    mean, _ = mean_of(voices, [files[0], files[1], files[2]], ["x_vector"] * 3)
    assert np.array_equal(resolved(voices, style="happy")["speaker_embedding"], mean)
    shown = voices.call("get", {}, name="Ada").result["styles"]["happy"]
    other.call("import", {}, audio=voices.call("export", {}, name="Ada").artifacts)
    assert np.array_equal(resolved(other, style="happy")["speaker_embedding"], mean)
    brought = other.call("get", {}, name="Ada").result["styles"]["happy"]
    assert brought["takes"] == shown["takes"] and brought["artifacts"] == shown["artifacts"]
    other.call("prepare", {"force": True, "style": "happy"}, name="Ada", model_type=FAMILY)
    assert np.array_equal(resolved(other, style="happy")["speaker_embedding"], mean), "made again of the stored files"


def test_deletion_forgets_each_recording(make_voices: Make) -> None:
    voices = make_voices()
    files = [speech(1, 3.0), speech(2)]
    upload(voices, files)
    voices.call("resolve", {}, audio=files[1], model_type=FAMILY)
    assert voices.stats()["pools"]["inline"]["entries"] == 1
    voices.call("delete", {}, name="Ada")
    assert voices.stats()["pools"]["inline"]["entries"] == 0


def test_what_is_wrong_with_one_file_names_it(make_voices: Make) -> None:
    voices = make_voices()
    with pytest.raises(InvalidArgument, match="file 2 of 3"):
        upload(voices, [speech(1), b"no sound", speech(3)])
    with pytest.raises(InvalidArgument, match="file 2 of 2"):
        upload(voices, [speech(1, 4.0), speech(2, 1.0, gaps=5.0)], strict=True)
    with pytest.raises(InvalidArgument, match=f"at most {MAX_TAKES}"):
        upload(voices, [clip(1)] * (MAX_TAKES + 1))
    for sizes in ([1, 2], [len(clip(1)), 0], [True], ["1"], [len(clip(1)) + 1, -1]):
        with pytest.raises(InvalidArgument, match="takes"):
            voices.call("upload", {"takes": sizes}, name="Ada", audio=clip(1))
    with pytest.raises(InvalidArgument, match="takes"):
        voices.call("upload", {"takes": [4]}, name="Ada", speaker_embedding=np.zeros(4, np.float32))
    assert voices.call("list", {}).result["count"] == 0
