"""Speech through the whole ensemble, on the real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client, VoiceCloneError

from tests.support.same_audio import is_same_audio

pytestmark = pytest.mark.share("servers")

FRAME = 1920
TEXT = "Every evening the boats came home."


def speak(client: Client, text: str = TEXT, **given: Any) -> tuple[np.ndarray, list[Any], dict[str, Any]]:
    """Samples, chunks and the last info of one speech, checked for what holds of every speech."""
    speech = client.speak(text, **{"max_frames": 30, "seed": 7, **given})
    chunks = list(speech)
    info = dict(chunks[-1].info or {})
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.sample_rate for chunk in chunks} == {24000}
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert samples.dtype == np.float32 and len(samples) == info["frames"] * FRAME
    assert np.isfinite(samples).all() and np.abs(samples).max() <= 1.0
    assert np.sqrt((samples**2).mean()) > 0.01, "the tiny checkpoint's audio is never silence"
    assert info["finish_reason"] in ("stop", "length")
    return samples, chunks, info


@pytest.mark.parametrize("non_streaming_mode", [False, True])
@pytest.mark.parametrize("x_vector_only", [None, True, False])
def test_a_registered_voice(client: Client, voice: str, x_vector_only: bool | None, non_streaming_mode: bool) -> None:
    _, _, info = speak(client, voice=voice, x_vector_only=x_vector_only, non_streaming_mode=non_streaming_mode)
    assert info["mode"] == ("x_vector" if x_vector_only else "icl")
    assert info["voice"] == voice and info["generation"] >= 1
    assert (info["reference_frames"] > 0) == (info["mode"] == "icl")


@pytest.mark.parametrize("with_text", [False, True])
def test_an_inline_clip_speaks_as_the_registered_voice(
    client: Client, voice: str, reference_clip: bytes, reference_text: str, with_text: bool
) -> None:
    transcript = reference_text if with_text else None
    inline, _, info = speak(client, reference_audio=reference_clip, reference_text=transcript)
    named, _, _ = speak(client, voice=voice, x_vector_only=not with_text)
    assert info["mode"] == ("icl" if with_text else "x_vector")
    assert is_same_audio(inline, named)
    _, _, again = speak(client, reference_audio=reference_clip, reference_text=transcript)
    assert again["cache"] == "hit"


def test_a_ready_embedding(client: Client) -> None:
    embedding = np.random.default_rng(3).normal(size=_dimension(client)).astype(np.float32)
    samples, _, info = speak(client, speaker_embedding=embedding)
    assert info["mode"] == "x_vector"
    other, _, _ = speak(client, speaker_embedding=-embedding)
    assert not is_same_audio(other, samples)


def _dimension(client: Client) -> int:
    with pytest.raises(VoiceCloneError, match="needs") as failure:
        list(client.speak(TEXT, speaker_embedding=np.ones(3, np.float32)))
    return int(str(failure.value).split("needs ")[1].split()[0])


def test_a_seed_repeats_the_audio_and_another_changes_it(client: Client, voice: str) -> None:
    first, _, info = speak(client, voice=voice, seed=11)
    again, _, _ = speak(client, voice=voice, seed=11)
    assert is_same_audio(first, again)
    other, _, _ = speak(client, voice=voice, seed=12)
    assert not is_same_audio(first, other)
    assert info["seed"] == 11
    _, _, unseeded = speak(client, voice=voice, seed=None)
    repeated, _, _ = speak(client, voice=voice, seed=unseeded["seed"])
    assert is_same_audio(repeated, speak(client, voice=voice, seed=unseeded["seed"])[0])


def test_greedy_needs_no_seed(client: Client, voice: str) -> None:
    greedy = {"do_sample": False, "options": {"subtalker_do_sample": False}, "seed": None}
    assert is_same_audio(speak(client, voice=voice, **greedy)[0], speak(client, voice=voice, **greedy)[0])


@pytest.mark.parametrize(
    ("language", "same"),
    [("English", "en"), ("chinese", "zh-CN"), ("GERMAN", "german"), ("pt-BR", "Portuguese"), ("Auto", None)],
)
def test_languages(client: Client, voice: str, language: str, same: str | None) -> None:
    samples, _, _ = speak(client, voice=voice, language=language)
    assert is_same_audio(speak(client, voice=voice, language=same)[0], samples)
    assert not is_same_audio(speak(client, voice=voice, language="French")[0], samples)


@pytest.mark.parametrize("text", ["a", "你好，世界。", "Zwölf Boxkämpfer 🥊", "  padded \n text\t", "x" * 400])
def test_texts(client: Client, voice: str, text: str) -> None:
    samples, _, _ = speak(client, text, voice=voice)
    assert not is_same_audio(speak(client, "b", voice=voice)[0], samples)


def test_the_first_chunk_is_one_frame_and_the_frame_limit_is_exact(client: Client, voice: str) -> None:
    # The end of speech is unlikely within 20 frames of random weights, so some seed gets to the limit.
    for seed in range(20):
        samples, chunks, info = speak(client, voice=voice, max_frames=20, seed=seed)
        assert len(chunks[0].samples) == FRAME
        assert info["frames"] <= 20
        if info["finish_reason"] == "length":
            assert len(samples) == 20 * FRAME
            return
    pytest.fail("no stream reached its limit")


def test_streams_at_once_do_not_mix(client: Client, voice: str) -> None:
    wanted = [{"voice": voice, "seed": n, "text": f"Sentence {n}.", "max_frames": 12 + n} for n in range(8)]
    alone = [speak(client, **each)[0] for each in wanted]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: speak(client, **each), wanted))
    assert len({info["stream_id"] for _, _, info in together}) == 8
    for samples, (heard, _, _) in zip(alone, together, strict=True):
        assert is_same_audio(heard, samples)


def test_closing_a_stream_early_leaves_the_server_well(client: Client, voice: str) -> None:
    for _ in range(5):
        speech = client.speak("A long story. " * 20, voice=voice, max_frames=1000)
        next(iter(speech))
        speech.close()
    speak(client, voice=voice)


def test_saved_audio_is_a_valid_wav(client: Client, voice: str, tmp_path: Path) -> None:
    import soundfile
    from voice_clone_client.wav import WavWriter

    samples, chunks, _ = speak(client, voice=voice)
    with (tmp_path / "out.wav").open("wb") as file, WavWriter(file, 24000) as wav:
        for chunk in chunks:
            wav.write(chunk.samples)
    read, rate = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert rate == 24000 and len(read) == len(samples)
    np.testing.assert_allclose(read, samples, atol=2.0 / 32767)
