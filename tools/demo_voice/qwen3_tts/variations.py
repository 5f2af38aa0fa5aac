"""Further clips out of each utterance: played a little faster or slower, begun a little later.

Playing faster raises pitch and formants, so each factor makes other speakers out of the same ones; the delay, below a
frame, moves the sounds against the frames.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.demo_voice.dataset import Record, read_shard
from tools.demo_voice.files import save_arrays
from tools.demo_voice.qwen3_tts.analysis import Analysis, pitch_of
from tools.demo_voice.qwen3_tts.features import FRAME, frame_features
from tools.demo_voice.speakers import speakers
from tools.demo_voice.synthesis import SAMPLE_RATE, Utterance, to_pcm
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder

FACTORS = (1.0, 0.95)


@dataclass(frozen=True)
class Variation:
    """How a clip is played: `factor` times as fast, after `delay` samples of silence."""

    factor: float
    delay: int


def variation_of(seed: int, shard: int, place: int, copy: int) -> Variation:
    """The variation of copy `copy` of an utterance."""
    return Variation(FACTORS[copy], random.Random(f"{seed} {shard} {place} {copy}").randrange(FRAME))


def vary(utterance: Utterance, variation: Variation) -> Utterance:
    """The utterance as it is played."""
    samples = utterance.samples
    if variation.factor != 1.0:
        samples = soxr.resample(samples, SAMPLE_RATE * variation.factor, SAMPLE_RATE, quality="MQ")
    silence = np.zeros(variation.delay, np.int16)
    ends = utterance.ends / variation.factor + variation.delay / SAMPLE_RATE
    return Utterance(np.concatenate([silence, to_pcm(samples)]), utterance.phones, ends.astype(np.float32))


def make_codes(source: Path, target: Path, encoder: CodecEncoder, seed: int, shard: int) -> None:
    """Write the codes that the codec's encoder finds in all variations of all utterances of a shard.

    The file holds `codes` uint8 [all frames, 16] and `lengths` int64 [utterances, copies], utterance by utterance.
    """
    records = read_shard(source)
    found = []
    for place, record in enumerate(records):
        for copy in range(len(FACTORS)):
            played = vary(record.utterance, variation_of(seed, shard, place, copy))
            found.append(encoder.encode(torch.from_numpy(played.samples)).numpy().astype(np.uint8))
    lengths = np.array([len(codes) for codes in found]).reshape(len(records), len(FACTORS))
    save_arrays(target, codes=np.concatenate(found), lengths=lengths)


@torch.inference_mode()
def vectors_of(record: Record, variation: Variation, analysis: Analysis) -> tuple[Tensor, Tensor]:
    """What is quantised of an utterance as it is played: phone vectors [frames, 24], components [frames, 64]."""
    pitch = pitch_of(speakers()[record.speaker], variation.factor)
    return analysis.vectors(frame_features(vary(record.utterance, variation).samples, pitch))


def read_codes(path: Path) -> list[list[NDArray[np.uint8]]]:
    """The codes of a shard: by utterance, then by copy, uint8 [frames, 16]."""
    with np.load(path) as file:
        codes, lengths = file["codes"], file["lengths"]
    flat = np.split(codes, np.cumsum(lengths.ravel())[:-1])
    copies = lengths.shape[1]
    return [flat[start : start + copies] for start in range(0, len(flat), copies)]
