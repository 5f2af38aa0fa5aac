"""OmniVoice's codec and its rules of sound against the official code: transformers 5.24.0, omnivoice 0.2.1, pydub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.families.omnivoice_codec import (
    cut_at_random,
    heard,
    load_omnivoice_codec,
    make_omnivoice_codec,
    some_frames,
)
from tests.support.families.speech_like import speech_like
from tests.support.oracles.omnivoice import official_module
from tests.support.oracles.omnivoice_codec import codec_of_transformers, resample
from voice_clone.families.omnivoice.codec import FORM
from voice_clone.families.omnivoice.codec_streams import CodecStreams
from voice_clone.families.omnivoice.encoder import prepare_clip
from voice_clone.families.omnivoice.finish import Finish, FinishPlan
from voice_clone.families.omnivoice.networks.codec_decoder import CodecDecoder
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder, to_semantic_rate
from voice_clone.families.omnivoice.silence import remove_silence

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

RATE, FRAME = 24000, 960
LENGTHS = (1, 2, 3, 7, 25, 61, 125, 250)  # frames
TOLERANCE = 1e-5  # of the waveform's peak
CASES = 240


@pytest.fixture(
    scope="module",
    params=[
        ("tiny", 0),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in (("tiny", 1), ("released-2", 0), ("released", 0))),
    ],
    ids=str,
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape, seed = request.param
    return make_omnivoice_codec(tmp_path_factory.mktemp("omnivoice") / "checkpoint", shape, seed)


@pytest.fixture(scope="module")
def codec(folder: Path) -> tuple[VoiceEncoder, CodecDecoder]:
    return load_omnivoice_codec(folder)


def test_codes_and_waveforms(folder: Path, codec: tuple[VoiceEncoder, CodecDecoder], tmp_path: Path) -> None:
    encoder, decoder = codec
    clips = [speech_like(frames * FRAME, RATE).numpy() for frames in LENGTHS]
    codes = [some_frames(frames, frames).T.astype(np.int64) for frames in LENGTHS]
    expected = codec_of_transformers(folder / "audio_tokenizer", tmp_path, clips, codes)
    for clip, official in zip(clips, expected, strict=False):
        ours = encoder.encode(torch.from_numpy(clip)).numpy().T
        assert np.array_equal(ours, official), f"{len(clip)} samples: {(ours != official).sum()} codes differ"
    assert len(np.unique(expected[len(LENGTHS) - 1])) > 100
    for frames, official in zip(codes, expected[len(LENGTHS) :], strict=True):
        whole = decoder(torch.from_numpy(frames)[None])[0].numpy()
        assert whole.shape == official.shape
        assert np.abs(whole - official).max() < TOLERANCE * np.abs(official).max()


def test_a_stream_equals_the_official_speech(
    folder: Path, codec: tuple[VoiceEncoder, CodecDecoder], tmp_path: Path
) -> None:
    """All of it: each chunk of the text decoded by transformers, joined and finished by omnivoice."""
    chunks = (61, 1, 40)
    frames = some_frames(sum(chunks))
    pieces = np.split(frames.astype(np.int64), np.cumsum(chunks)[:-1])
    waveforms = codec_of_transformers(folder / "audio_tokenizer", tmp_path, [], [piece.T for piece in pieces])
    for rms, removes in ((0.04, True), (0.2, False)):
        plan = FinishPlan(rms, chunks, removes)
        ours = heard(CodecStreams(codec[1], FORM, together=False), plan, frames, cut_at_random(len(frames), 30, 0))
        expected = official_finish(plan, waveforms)
        assert ours.shape == expected.shape
        # Cutting silence rounds to 16 bit, where a last bit may fall to the other side.
        assert np.abs(ours - expected).max() < (1.1 / 32768 if removes else 1e-5)


def test_resampling() -> None:
    waveform = speech_like(10 * FRAME + 17, RATE)[None]
    assert (to_semantic_rate(waveform) - resample(waveform, RATE, 16000)).abs().max() < 1e-6


def some_waveform(case: int, whole: bool) -> NDArray[np.float32]:
    """Silence, noise and clicks of lengths and levels around the limits; `whole`: a multiple of 40 ms."""
    draw = np.random.default_rng(case)
    parts = []
    for _ in range(draw.integers(1, 9)):
        ms = int(draw.choice([0, 5, 30, 90, 190, 200, 210, 400, 490, 500, 510, 900, 1000, 1100, 2300]))
        level = draw.choice([0, 1e-4, 0.003, 0.0032, 0.05, 0.5, 2])
        parts.append(level * draw.standard_normal(24 * ms + int(draw.integers(0, 40))))
        if draw.random() < 0.3:
            parts.append(0.2 * draw.standard_normal(240))
    joined = np.concatenate([*parts, 0.05 * draw.standard_normal(2 * FRAME)]).astype(np.float32)
    return joined[: len(joined) // FRAME * FRAME] if whole else joined


@pytest.mark.parametrize("limits", [(200, 100, 200), (500, 100, 100)])
def test_what_is_silent(limits: tuple[int, int, int]) -> None:
    official = official_module("omnivoice.utils.audio").remove_silence
    shorter = 0
    for case in range(CASES):
        waveform = some_waveform(case, whole=False)
        expected = official(waveform[None], RATE, *limits)[0]
        assert np.array_equal(remove_silence(waveform, RATE, *limits), expected), case
        shorter += len(expected) < len(waveform) - RATE // 10
    assert CASES / 4 < shorter < CASES


def test_what_is_heard_of_a_clip() -> None:
    """`create_voice_clone_prompt` with a codec that gives back what it is given."""
    model = official_module("omnivoice.models.omnivoice").OmniVoice

    class Codec:
        device = "cpu"
        config = SimpleNamespace(hop_length=FRAME)

        def encode(self, waveform: torch.Tensor) -> Any:
            return SimpleNamespace(audio_codes=waveform)

    owner = SimpleNamespace(audio_tokenizer=Codec(), sampling_rate=RATE)
    for case in range(CASES):
        clip = some_waveform(case, whole=False) * np.float32((0.3, 1.0)[case % 2])
        prompt = model.create_voice_clone_prompt(owner, (torch.from_numpy(clip), RATE), "Good morning.")
        ours, rms = prepare_clip(clip)
        assert rms == np.float32(prompt.ref_rms)
        assert np.array_equal(ours, prompt.ref_audio_tokens[0].numpy()), case


def official_finish(plan: FinishPlan, chunks: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """`_decode_and_post_process` with the chunks' waveforms for their codes."""
    model = official_module("omnivoice.models.omnivoice")
    owner = SimpleNamespace(sampling_rate=RATE)
    config = model.OmniVoiceGenerationConfig(postprocess_output=plan.remove_silence)
    joined = official_module("omnivoice.utils.audio").cross_fade_chunks([each[None] for each in chunks], RATE)
    rms = plan.ref_rms or None
    made: NDArray[np.float32] = model.OmniVoice._post_process_audio(owner, joined, rms, config)[0]
    return made


@pytest.mark.parametrize("removes", [False, True])
def test_joints_level_and_ends(removes: bool) -> None:
    """In random cuts, bit for bit; of a voice without reference the official peak is that of all chunks."""
    empty = 0
    for case in range(CASES):
        draw = np.random.default_rng(case)
        rms = float(np.float32(draw.choice([0.0, 0.02, 0.09, 0.3])))
        chunks = [some_waveform(10 * case + each, whole=True) for each in range(1 if not rms else draw.integers(1, 5))]
        chunks[0] = chunks[0][: FRAME * int(draw.integers(1, 4))] if case % 7 == 0 else chunks[0]
        plan = FinishPlan(rms, tuple(len(each) // FRAME for each in chunks), removes)
        finish, samples, done, made = Finish(plan, RATE, FRAME), np.concatenate(chunks), 0, []
        for size in cut_at_random(len(samples), 20_000, case):
            made.append(finish.push(samples[done : done + size]))
            done += size
        ours = np.concatenate([*made, finish.end()])
        expected = official_finish(plan, chunks)
        assert ours.dtype == np.float32 and np.array_equal(ours, expected), case
        empty += not len(ours)
    assert empty < CASES / 10
