"""OmniVoice's codec: streams in any chunks and any company equal a decode at once; encoder; refused configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
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
    open_stream,
    some_frames,
)
from tests.support.families.speech_like import speech_like
from voice_clone.codec.chunk import CodecChunk, Decoded, Reference
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.omnivoice.codec import FORM, load_decoder
from voice_clone.families.omnivoice.codec_config import CONFIG_FILE, load_codec_config
from voice_clone.families.omnivoice.codec_streams import PIECE, CodecStreams
from voice_clone.families.omnivoice.config import CODEC_CODES, ICL, REF_RMS
from voice_clone.families.omnivoice.encoder import OmniVoiceEncoder, load_encoder, prepare_clip
from voice_clone.families.omnivoice.finish import Finish, FinishPlan
from voice_clone.families.omnivoice.networks.codec_decoder import REACH, CodecDecoder
from voice_clone.settings import DecoderSettings, Settings

pytestmark = pytest.mark.thorough

RATE, FRAME = 24000, 960
TOLERANCE = 1e-5  # of the peak
PLANS = [FinishPlan(0.05, chunks, remove_silence=False) for chunks in ((150,), (9, 1, 70, 70), (10, 11, 129))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_omnivoice_codec(tmp_path_factory.mktemp("omnivoice") / "checkpoint")


@pytest.fixture(scope="module")
def decoder(folder: Path) -> CodecDecoder:
    return load_omnivoice_codec(folder)[1]


@pytest.fixture(scope="module")
def encoder(folder: Path) -> OmniVoiceEncoder:
    return load_encoder(settings_of(folder))


def settings_of(folder: Path, **values: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", **values}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "omnivoice")


def at_once(decoder: CodecDecoder, plan: FinishPlan, frames: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Each chunk of the text in one piece, then the finish of all."""
    pieces = np.split(frames.astype(np.int64), np.cumsum(plan.text_chunks)[:-1])
    finish = Finish(plan, RATE, FRAME)
    made = [finish.push(decoder(torch.from_numpy(piece.T)[None])[0].numpy()) for piece in pieces]
    return np.concatenate([*made, finish.end()])


def assert_near(ours: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.text_chunks))
def test_any_chunks_equal_a_decode_at_once(decoder: CodecDecoder, plan: FinishPlan, together: bool) -> None:
    frames = some_frames(sum(plan.text_chunks))
    expected = at_once(decoder, plan, frames)
    streams = CodecStreams(decoder, FORM, together=together)
    for seed, most in enumerate((1, 7, 30, 200)):
        assert_near(heard(streams, plan, frames, cut_at_random(len(frames), most, seed)), expected)


def test_the_look_ahead_is_needed_and_enough(decoder: CodecDecoder) -> None:
    frames = some_frames(4 * REACH)
    codes = torch.from_numpy(frames.T.astype(np.int64))[None]
    whole, place = decoder(codes)[0], 2 * REACH
    samples = slice(place * FRAME, (place + 1) * FRAME)

    def window(reach: int) -> float:
        around = decoder.latents(codes[..., place - reach : place + reach + 1])
        return float((decoder.waveform(around, reach, reach)[0] - whole[samples]).abs().max())

    assert window(REACH) < 1e-6 < 1e-4 < window(REACH - 4)


def test_streams_beside_each_other(decoder: CodecDecoder) -> None:
    """At different places, some without frames, in batches where windows have one shape."""
    plans, lengths = [*PLANS, PLANS[0]], [150, 40, 150, 150]
    frames = [some_frames(length, seed) for seed, length in enumerate(lengths)]
    streams = CodecStreams(decoder, FORM, together=True)
    numbers = [open_stream(streams, plan) for plan in plans]
    made: list[list[NDArray[np.float32]]] = [[] for _ in plans]
    done = [0] * len(plans)
    for sizes in ([25, 25, 0, 25], [25, 15, 25, 25], *[[50, 0, 50, 50]] * 3):
        chunks = [each[at : at + size] for each, at, size in zip(frames, done, sizes, strict=True)]
        done = [at + len(chunk) for at, chunk in zip(done, chunks, strict=True)]
        for own, samples in zip(made, streams.decode(numbers, chunks), strict=True):
            own.append(samples)
    alone = CodecStreams(decoder, FORM, together=False)
    for number, plan, own, each in zip(numbers, plans, made, frames, strict=True):
        own.append(streams.flush(number))
        assert_near(np.concatenate(own), heard(alone, plan, each, [len(each)]))


def test_a_long_chunk_is_decoded_in_pieces(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    waveform = CodecDecoder.waveform

    def watched(self: CodecDecoder, latents: torch.Tensor, before: int, after: int) -> torch.Tensor:
        seen.append(latents.shape[2])
        return waveform(self, latents, before, after)

    monkeypatch.setattr(CodecDecoder, "waveform", watched)
    heard(CodecStreams(decoder, FORM, together=False), PLANS[0], some_frames(150), [150])
    assert max(seen) <= PIECE + 2 * REACH


def test_through_code2wav(folder: Path, decoder: CodecDecoder) -> None:
    """Chunks with the plan as their voice; without it, or with a wrong one, the stream is refused."""
    stage = load_decoder(settings_of(folder))
    code2wav = Code2Wav(stage.streams(DecoderSettings.of(settings_of(folder)), [25]), stage.form)
    code2wav.warm_up([25, 50], [1], 30)
    plan, frames = PLANS[1], some_frames(150)
    none = FORM.payload.zeros(0)
    made = []
    for index, begin in enumerate(range(0, 150, 50)):
        voice: dict[str, Any] = plan.arrays if index == 0 else {}
        chunk = CodecChunk("a", index, frames[begin : begin + 50], none, begin == 100, voice=voice)
        [decoded] = code2wav.decode([chunk])
        assert isinstance(decoded, Decoded) and decoded.primed == "none"
        made.append(decoded.waveform)
    assert_near(np.concatenate(made), at_once(decoder, plan, frames))
    assert code2wav.streams == 0
    code2wav.prepare(Reference(none, plan.arrays))
    assert code2wav.restore([Reference(none, plan.arrays)], 1) == 0 and code2wav.primed_bytes == 0
    for wrong in ({}, {**plan.arrays, REF_RMS: np.zeros(2, np.float32)}):
        [error] = code2wav.decode([CodecChunk("b", 0, frames, none, True, voice=wrong)])
        assert isinstance(error, InvalidArgument) and "voice" in str(error)


def test_the_artifacts_of_a_clip(encoder: OmniVoiceEncoder) -> None:
    clip = 0.4 * speech_like(3 * RATE + 77, RATE).numpy()
    made = encoder.encode(clip, ICL)
    prepared, rms = prepare_clip(clip)
    assert made[REF_RMS].dtype == np.float32 and made[REF_RMS].tolist() == [rms]
    assert np.isclose(rms, np.sqrt(np.mean(clip.astype(np.float64) ** 2)), rtol=1e-5)
    codes = made[CODEC_CODES]
    assert codes.dtype == np.uint16 and codes.shape == (len(prepared) // FRAME, 8)
    assert len(np.unique(codes)) > 20
    empty = encoder.encode(np.zeros(0, np.float32), ICL)
    assert {name: (array.dtype, array.ndim) for name, array in empty.items()} == {
        name: (array.dtype, array.ndim) for name, array in made.items()
    }
    assert encoder.modes == {ICL: ("reference_text",)}


def test_clips_that_cannot_be(folder: Path, encoder: OmniVoiceEncoder) -> None:
    for silent in (np.zeros(RATE, np.float32), np.full(30, 0.1, np.float32)):
        with pytest.raises(Unsupported, match="a clip with speech in it"):
            encoder.encode(silent, ICL)
    short = load_encoder(settings_of(folder, MAX_CHUNK_FRAMES="40"))
    with pytest.raises(Unsupported, match="at most 40"):
        short.encode(0.1 * np.ones(2 * RATE, np.float32), ICL)
    assert short.limits(ICL)[CODEC_CODES].rows == (1, 40)
    assert short.fingerprints == encoder.fingerprints


def _set(name: str, value: Any, *parts: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for part in parts:
            content = content[part]
        if value is None:
            del content[name]
        else:
            content[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("sample_rate", 44100), "only 24000 is supported"),
        (_set("codebook_size", 2048), "only 1024 is supported"),
        (_set("codebook_dim", None), "the key 'codebook_dim' is missing"),
        (_set("codebook_dim", 0), "must be above 0"),
        (_set("target_bandwidths", [0.5, 1]), "make 4 codebooks"),
        (_set("target_bandwidths", None), "expected a list of numbers"),
        (_set("downsample_factor", 160), "must make downsample_factor"),
        (_set("downsampling_ratios", [8, 5, 4, 2], "acoustic_model_config"), "make 320 samples a frame"),
        (_set("upsampling_ratios", [960], "acoustic_model_config"), None),
        (_set("decoder_hidden_size", 48, "acoustic_model_config"), "must halve"),
        (_set("feat_extract_norm", "layer", "semantic_model_config"), "only 'group' is supported"),
        (_set("num_attention_heads", 3, "semantic_model_config"), "must divide hidden_size"),
        (_set("conv_dim", [16], "semantic_model_config"), "of one length"),
    ],
)
def test_other_configurations(
    change: Callable[[dict[str, Any]], None], message: str | None, folder: Path, tmp_path: Path
) -> None:
    content = json.loads((folder / CONFIG_FILE).read_text())
    change(content)
    (tmp_path / CONFIG_FILE).parent.mkdir()
    (tmp_path / CONFIG_FILE).write_text(json.dumps(content))
    if message is None:
        load_codec_config(tmp_path)
        return
    with pytest.raises(CheckpointError, match=message):
        load_codec_config(tmp_path)
