"""The ONNX graphs of Qwen3-TTS: how they are written, and compared with their torch modules at five lengths each."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tools.families.toolkit import Row
from tools.steps import step
from voice_clone.audio import decode, resample
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks import onnx_graphs
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.onnx_engines import OnnxCodecEncoder, OnnxSpeakerEncoder
from voice_clone.families.qwen3_tts.networks.onnx_graphs import CODEC_ENCODER, SPEAKER_ENCODER
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.onnx.export import export
from voice_clone.onnx.session import Graph, Runtime
from voice_clone.settings import Settings

TOLERANCE = 1e-4  # of a difference, relative to the root mean square of what torch gives
TIE = 1e-6  # relative difference below which two distances are equal in fp32
CLIP = Path(__file__).parents[2] / "data" / "reference.wav"
SECONDS = (0.5, 1.23457, 3.0, 7.7, 12.0)


@dataclass(frozen=True)
class Loaded:
    """The torch modules of a checkpoint, on the CPU in float32, and their fingerprints."""

    config: Qwen3TTSConfig
    speaker_encoder: SpeakerEncoder
    speaker_fingerprint: str
    codec_encoder: CodecEncoder
    codec_fingerprint: str

    @staticmethod
    def of(checkpoint: Path) -> Loaded:
        """Read them.

        Raises:
            CheckpointError: the checkpoint cannot be served.
        """
        given = {"CHECKPOINT_DIR": str(checkpoint), "DEVICE": "cpu", "PRECISION": "fp32", "ENGINE": "torch"}
        settings = Settings({}, environ={f"VOICE_CLONE_{name}": value for name, value in given.items()})
        speaker_encoder, config, speaker_fingerprint = encoder_stage.load_torch_speaker_encoder(settings)
        codec_encoder, _, codec_fingerprint = encoder_stage.load_torch_codec_encoder(settings)
        return Loaded(config, speaker_encoder, speaker_fingerprint, codec_encoder, codec_fingerprint)


load = Loaded.of


def graphs(loaded: Loaded) -> dict[str, tuple[Graph, str]]:
    """Every graph of a checkpoint by its name, and the fingerprint of the stage that it is made from."""
    made = [
        (onnx_graphs.speaker_encoder(loaded.speaker_encoder), loaded.speaker_fingerprint),
        (onnx_graphs.codec_encoder(loaded.codec_encoder), loaded.codec_fingerprint),
    ]
    return {graph.name: (graph, fingerprint) for graph, fingerprint in made}


def export_all(loaded: Loaded, folder: Path) -> list[Path]:
    """Write all graphs of a checkpoint; `folder` is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return [export_one(graph, folder, fingerprint) for graph, fingerprint in graphs(loaded).values()]


def export_one(graph: Graph, folder: Path, fingerprint: str) -> Path:
    """As `export`, and says so."""
    with step(f"exporting {graph.name}"):
        return export(graph, folder, fingerprint)


def compare(loaded: Loaded, runtime: Runtime, *names: str) -> Iterator[Row]:
    """The named graphs, or all of them, at five lengths."""
    comparisons = {SPEAKER_ENCODER: speaker_encoder, CODEC_ENCODER: codec_encoder}
    for name in names or comparisons:
        with step(f"comparing {name}"):
            yield from comparisons[name](loaded, runtime)


def speaker_encoder(loaded: Loaded, runtime: Runtime) -> Iterator[Row]:
    encoder = OnnxSpeakerEncoder(runtime, loaded.speaker_fingerprint, loaded.config.speaker_encoder)
    for seconds in SECONDS:
        clip = speech(seconds, loaded.config.speaker_encoder.sample_rate)
        yield _signal(SPEAKER_ENCODER, f"{seconds:g} s", encoder.embed(clip), loaded.speaker_encoder.embed(clip))


def codec_encoder(loaded: Loaded, runtime: Runtime) -> Iterator[Row]:
    encoder = OnnxCodecEncoder(runtime, loaded.codec_fingerprint, loaded.config.codec)
    for seconds in SECONDS:
        clip = speech(seconds, loaded.config.codec.input_sample_rate)
        actual, expected = encoder.encode(clip), loaded.codec_encoder.encode(clip)
        differ = expected.numel() if actual.shape != expected.shape else int((actual != expected).sum())
        right = differ == 0 or (differ < expected.numel() and only_ties(loaded.codec_encoder, clip, actual, expected))
        yield Row(CODEC_ENCODER, f"{seconds:g} s", "codes", differ, right)


@torch.inference_mode()
def only_ties(encoder: CodecEncoder, clip: Tensor, actual: Tensor, expected: Tensor) -> bool:
    """Whether the first code that differs in each frame of codes [frames, K] is a tie: both vectors are equally near.

    The later codes of that frame encode another residual and cannot be compared.
    """
    exact = deepcopy(encoder).double()
    latent = exact.latent(clip[None].double())
    first = 0
    for quantizer in (
        exact.quantizer.semantic_residual_vector_quantizer,
        exact.quantizer.acoustic_residual_vector_quantizer,
    ):
        residual = quantizer.input_proj(latent).transpose(1, 2)[0]  # [frames, D]
        equal = torch.ones(len(residual), dtype=torch.bool)
        for book, codebook in enumerate(quantizer.codebooks, first):
            ours, theirs = (residual - codebook.vectors[codes[:, book]] for codes in (actual, expected))
            distance = theirs.norm(dim=-1)
            if ((ours.norm(dim=-1) - distance).abs() > TIE * distance)[equal].any():
                return False
            equal &= actual[:, book] == expected[:, book]
            residual = theirs
        first += len(quantizer.codebooks)
    return True


def _signal(graph: str, length: str, actual: Tensor, expected: Tensor) -> Row:
    error = ((actual - expected).abs().max() / expected.square().mean().sqrt()).item()
    return Row(graph, length, "signal", error, error <= TOLERANCE)


def speech(seconds: float, rate: int) -> Tensor:
    """The shipped clip of speech, repeated or cut to a length: float32 [T]."""
    clip = decode(CLIP.read_bytes())
    return torch.from_numpy(np.resize(resample(clip.waveform, clip.sample_rate, rate), round(seconds * rate)))
