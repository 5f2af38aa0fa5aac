"""VoxCPM2's voice encoder and code2wav: frames of latents, what is refused, and streams side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.families.in_torch import InTorch
from tests.support.families.speech_like import speech_like
from tests.support.families.voxcpm2_audio import load_audio_vae, make_audio_vae_folder
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import load_code2wav
from voice_clone.codec.decoder import StreamState
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.families.voxcpm2.codec import VoxCPM2Decoder, load_decoder
from voice_clone.families.voxcpm2.encoder import VoxCPM2Encoder, load_encoder
from voice_clone.families.voxcpm2.networks import audio_encoder, native_audio_encoder
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.native_audio_encoder import NativeAudioEncoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.stages.protocols import Limit

pytestmark = pytest.mark.thorough

RATE, CLIP, FRAME = 16000, 2560, 7680


def settings(folder: Path, **more: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "MAX_DECODE_BATCH": "2", "CHUNK_FRAMES": "1,2", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "voxcpm2")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> AudioVAECheckpoint:
    return make_audio_vae_folder(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.fixture(scope="module")
def encoder(checkpoint: AudioVAECheckpoint) -> VoxCPM2Encoder:
    return load_encoder(settings(checkpoint.folder))


@pytest.fixture(scope="module")
def decoder(checkpoint: AudioVAECheckpoint) -> AudioDecoder:
    return load_audio_vae(checkpoint)[1]


def clip(samples: int) -> NDArray[np.float32]:
    return speech_like(samples, RATE).numpy()


def some_frames(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def batched(*frames: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.stack([each.T for each in frames]))


def assert_same(
    got: NDArray[np.float32] | Tensor, expected: NDArray[np.float32] | Tensor, within: float = 2e-5
) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < within * np.sqrt(np.square(expected).mean())


def test_a_reference_is_filled_behind_and_a_prompt_before(encoder: VoxCPM2Encoder) -> None:
    waveform = clip(3 * CLIP + 1000)
    found = encoder.encode(waveform, "icl")
    assert {name: array.shape for name, array in found.items()} == {
        REFERENCE_LATENTS: (4, WIDTH),
        PROMPT_LATENTS: (4, WIDTH),
    }
    silence = np.zeros(CLIP - 1000, np.float32)
    behind, before = (
        encoder.encode(np.concatenate(parts), "icl") for parts in ([waveform, silence], [silence, waveform])
    )
    np.testing.assert_array_equal(found[REFERENCE_LATENTS], behind[REFERENCE_LATENTS])
    np.testing.assert_array_equal(found[PROMPT_LATENTS], before[REFERENCE_LATENTS])
    assert np.abs(found[REFERENCE_LATENTS] - found[PROMPT_LATENTS]).mean() > 0.1 * found[PROMPT_LATENTS].std()
    np.testing.assert_array_equal(behind[REFERENCE_LATENTS], behind[PROMPT_LATENTS])  # nothing was missing


def test_a_voice_without_a_transcript_has_no_prompt(encoder: VoxCPM2Encoder) -> None:
    waveform = clip(2 * CLIP)
    found = encoder.encode(waveform, "reference")
    assert found[PROMPT_LATENTS].shape == (0, WIDTH) and found[PROMPT_LATENTS].dtype == np.float32
    np.testing.assert_array_equal(found[REFERENCE_LATENTS], encoder.encode(waveform, None)[REFERENCE_LATENTS])
    assert encoder.limits("reference") == {
        REFERENCE_LATENTS: Limit(None, (1, 768)),
        PROMPT_LATENTS: Limit(None, (0, 0)),
    }
    assert encoder.limits("icl")[PROMPT_LATENTS] == Limit(None, (1, 768))
    assert {name: array.shape for name, array in encoder.encode(clip(0), "icl").items()} == {
        REFERENCE_LATENTS: (0, WIDTH),
        PROMPT_LATENTS: (0, WIDTH),
    }


@pytest.mark.parametrize("native", [False, True])
def test_pieces_of_a_clip_are_one_piece(
    checkpoint: AudioVAECheckpoint, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Natively bit for bit."""
    network = load_audio_vae(checkpoint)[0]
    encoder, found = InTorch(NativeAudioEncoder(lambda: network)) if native else network, []
    for frames in (20, 1):
        monkeypatch.setattr(native_audio_encoder if native else audio_encoder, "PIECE_FRAMES", frames)
        found.append(encoder.encode(torch.from_numpy(clip(20 * CLIP))))
    assert_same(found[1], found[0])
    assert torch.equal(*found) or not native


def test_streams_of_a_batch_are_those_alone(decoder: AudioDecoder) -> None:
    """Behind unequal pasts, and with unequal numbers of frames."""
    frames, lengths = [some_frames(9, seed) for seed in range(3)], [1, 4, 2]
    expected = [decoder(batched(each))[0] for each in frames]
    states = [decoder.new_state(1) for _ in frames]
    for past, (each, state) in enumerate(zip(frames, states, strict=True)):
        if past:
            decoder.decode_chunk(batched(each[:past]), state)
    together = StreamState.stack(states)
    chunks = [
        np.pad(each[past : past + n], ((0, 4 - n), (0, 0)))
        for past, (each, n) in enumerate(zip(frames, lengths, strict=True))
    ]
    got = decoder.decode_chunk(batched(*chunks), together, torch.tensor(lengths))
    for past, (samples, whole, n) in enumerate(zip(got, expected, lengths, strict=True)):
        assert_same(samples[: n * FRAME], whole[past * FRAME : (past + n) * FRAME])
    ends = [past + n for past, n in enumerate(lengths)]
    assert together.position.tolist() == ends
    for each, state, end, whole in zip(frames, together.split(), ends, expected, strict=True):
        assert_same(decoder.decode_chunk(batched(each[end:]), state)[0], whole[end * FRAME :])


def sound(given: Settings) -> NDArray[np.float32]:
    """Chunks of two streams in one batch, one of them behind a prompt: [streams, samples]."""
    stage = load_decoder(given)
    decoding = DecoderSettings.of(given)
    code2wav = load_code2wav(decoding, stage.streams(decoding, (1, 2)), stage.form)
    code2wav.warm_up((1,), (1, 2), 60.0)
    none, pieces = some_frames(0), []
    for index, (begin, end) in enumerate([(3, 4), (4, 6)]):
        contexts = [some_frames(3, 0) if index == 0 else none, none]
        chunks = [
            CodecChunk(str(row), index, some_frames(6, row)[begin:end], contexts[row], final=end == 6)
            for row in range(2)
        ]
        decoded = code2wav.decode(chunks)
        pieces.append(np.stack([each.waveform for each in decoded if isinstance(each, Decoded)]))
    return np.concatenate(pieces, axis=1)


def test_the_last_frames_of_a_prompt_are_heard_before_a_stream(
    checkpoint: AudioVAECheckpoint, decoder: AudioDecoder
) -> None:
    got = sound(settings(checkpoint.folder))
    assert_same(got[0], decoder(batched(np.concatenate([some_frames(3, 0), some_frames(6, 0)[3:]])))[0, 3 * FRAME :])
    assert_same(got[1], decoder(batched(some_frames(6, 1)[3:]))[0])


@pytest.mark.parametrize(("precision", "graphs"), [("auto", "false"), ("auto", "true"), ("bf16", "true")])
def test_decoder_on_a_pretended_gpu(
    checkpoint: AudioVAECheckpoint, precision: str, graphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphRunner, "on", lambda device: GraphRunner())
    with pretend_gpu():
        got = sound(settings(checkpoint.folder, DEVICE="cuda", PRECISION=precision, CUDA_GRAPHS=graphs))
    assert_same(got, sound(settings(checkpoint.folder)), within=1e-4 if precision == "auto" else 0.5)


def test_encoder_on_a_pretended_gpu(checkpoint: AudioVAECheckpoint, encoder: VoxCPM2Encoder) -> None:
    with pretend_gpu() as gpu:
        got = load_encoder(settings(checkpoint.folder, DEVICE="cuda")).encode(clip(RATE), "icl")
    assert gpu.waits == 2, "once for each artifact"
    for name, array in encoder.encode(clip(RATE), "icl").items():
        assert_same(got[name], array)


@dataclass
class Record:
    origin: str


@dataclass
class StoredVoices:
    found: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def latest(self, artifact: Any) -> Iterator[tuple[Record, dict[str, NDArray[Any]]]]:
        assert (artifact.model_type, artifact.mode) == ("voxcpm2", "icl")
        yield from ((Record(str(number)), each) for number, each in enumerate(self.found))


def test_a_starting_server_knows_the_last_frames_of_prompts() -> None:
    frames = some_frames(8)
    voices = StoredVoices([{PROMPT_LATENTS: frames}, {"codes": frames}, {PROMPT_LATENTS: frames[:2]}])
    [first, second] = VoxCPM2Decoder(None, cast(Any, None)).known_references(cast(Any, voices))
    np.testing.assert_array_equal(first.context, frames[5:])
    np.testing.assert_array_equal(second.context, frames[:2])
    assert (cast(Any, first.origin), cast(Any, second.origin)) == ("0", "2")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("depthwise", False, "depthwise is False; only True is known"),
        ("use_noise_block", True, "use_noise_block is True"),
        ("cond_out_layer", True, "cond_out_layer is True"),
        ("cond_type", "concat", "cond_type is 'concat'"),
        ("latent_dim", 32, "latent_dim is 32; only 64 is known"),
        ("encoder_rates", [2, 5, 8, 4], "a frame has 1280 samples at 16000 Hz; expected 0.16 s"),
        ("decoder_rates", [8, 6, 5, 2, 2], "a frame has 3840 samples at 48000 Hz"),
        ("decoder_dim", 100, "are not those of such a network"),
        ("encoder_dim", "wide", "encoder_dim: unexpected value 'wide'"),
    ],
)
def test_networks_of_another_kind_are_refused(tmp_path: Path, name: str, value: Any, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"audio_vae_config": {name: value}}))
    with pytest.raises(CheckpointError, match=message):
        AudioVAECheckpoint(tmp_path)


def test_keys_that_are_missing_have_the_official_values(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = AudioVAECheckpoint(tmp_path).config
    assert (config.encoder_dim, config.decoder_dim, config.rate_bucket) == (128, 2048, 3)


@pytest.mark.parametrize("load", [load_encoder, load_decoder])
def test_tensors_that_are_missing_or_strange_are_refused(load: Callable[[Settings], Any], tmp_path: Path) -> None:
    folder = make_audio_vae_folder(tmp_path / "checkpoint").folder
    file = folder / "audiovae.safetensors"
    known = load_file(file)
    boundaries = {"decoder.sr_bin_boundaries": torch.zeros(3, dtype=torch.int32)}
    save_file(known | boundaries, file)
    load(settings(folder))
    save_file(known | {"decoder.model.11.alpha": torch.ones(1)}, file)
    with pytest.raises(
        CheckpointError, match=r"audiovae.safetensors: tensor decoder.model.11.alpha belongs to no such"
    ):
        load(settings(folder))
    part = "encoder.fc_mu.bias" if load is load_encoder else "decoder.sr_cond_model.4.bias_embed.weight"
    save_file({name: tensor for name, tensor in known.items() if name != part}, file)
    with pytest.raises(CheckpointError, match=f"tensor {part} is missing"):
        load(settings(folder))
    file.unlink()
    with pytest.raises(CheckpointError, match="convert-pickles"):
        load(settings(folder))
