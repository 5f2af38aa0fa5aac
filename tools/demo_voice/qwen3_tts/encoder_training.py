"""Trains the codec's encoder to find by itself what the fixed analysis computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tools.demo_voice.qwen3_tts.analysis import BOOKS, Analysis
from tools.demo_voice.qwen3_tts.corpus import Recordings
from tools.demo_voice.qwen3_tts.features import FRAME
from tools.demo_voice.qwen3_tts.shape import codec_shape
from tools.demo_voice.qwen3_tts.variations import vectors_of
from tools.demo_voice.training import Plan, generator_of
from tools.families.qwen3_tts.checkpoint_weights import fill_random
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder

PLAN = Plan(steps=5000, rate=2e-3, cool_down=1.0)
BATCH = 3
SOUND = 10.0  # weight of the components
LONGEST = 2  # utterances of a speaker, one after the other: clips may be longer than a sentence


def new_encoder(analysis: Analysis, seed: int) -> CodecEncoder:
    """An encoder whose codebooks are the analysis' own, and stay so."""
    encoder = CodecEncoder(codec_shape().encoder_config, BOOKS)
    fill_random(encoder, "encoder.", seed)
    quantizer = encoder.quantizer
    semantic = quantizer.semantic_residual_vector_quantizer
    acoustic = quantizer.acoustic_residual_vector_quantizer
    with torch.no_grad():
        [phones] = semantic.codebooks
        phones.embed_sum.zero_()
        phones.embed_sum[:, : analysis.phone_book.shape[1]] = analysis.phone_book
        for codebook, book in zip(acoustic.codebooks, analysis.books, strict=True):
            codebook.embed_sum.copy_(book)
        for codebook in (phones, *acoustic.codebooks):
            codebook.cluster_usage.fill_(1.0)
        # From the start about as large as what is to be found.
        semantic.get_parameter("input_proj.weight").mul_(analysis.phone_book.std())
        spread = analysis.books.var(dim=1).sum(dim=0).sqrt()
        acoustic.get_parameter("input_proj.weight").mul_(spread[:, None, None])
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("codebook" not in name)
    return encoder


@dataclass(frozen=True, eq=False)
class Heard:
    """Waveforms [B, T] and what the analysis finds in them.

    `phone` [B, frames, 24], `sound` [B, frames, 64], `first` int64 [B, frames]: code 0; `valid` bool [B, frames].
    """

    waves: Tensor
    phone: Tensor
    sound: Tensor
    first: Tensor
    valid: Tensor


class EncoderTask:
    """The loss of a step."""

    def __init__(
        self, encoder: CodecEncoder, recordings: Recordings, analysis: Analysis, seed: int, device: torch.device
    ) -> None:
        self._encoder, self._recordings, self._analysis, self._device = encoder, recordings, analysis, device
        self._seed = seed
        self._power = float(analysis.books[0].square().sum(dim=1).mean())
        self._book = analysis.phone_book.to(device)

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`, and its parts."""
        heard = self.draw(generator_of(self._seed, step))
        phone, sound = vectors(self._encoder, heard.waves)
        valid = heard.valid
        phone = phone[valid][:, : heard.phone.shape[-1]]
        distances = torch.cdist(phone, self._book).square()
        code0 = F.cross_entropy(-0.5 * distances, heard.first[valid])
        errors = F.mse_loss(phone, heard.phone[valid])
        power = (sound[valid] - heard.sound[valid]).square().sum(dim=1).mean() / self._power
        right = (distances.argmin(dim=1) == heard.first[valid]).float().mean()
        figures = {"phone": errors.item(), "sound": power.item(), "code0": code0.item(), "right": right.item()}
        return errors + SOUND * power + 0.5 * code0, figures

    def draw(self, chance: torch.Generator) -> Heard:
        """Clips of one to LONGEST utterances, each at another loudness."""
        source = np.random.default_rng(int(torch.randint(2**62, (), generator=chance)))
        rows = [self._clip(source) for _ in range(BATCH)]
        size = max(len(phone) for _, phone, _, _ in rows)
        fill = [size - len(phone) for _, phone, _, _ in rows]
        waves = torch.stack([F.pad(row[0], (0, size * FRAME - len(row[0]))) for row in rows])
        phone, sound = (
            torch.stack([F.pad(row[place], (0, 0, 0, more)) for row, more in zip(rows, fill, strict=True)])
            for place in (1, 2)
        )
        first = torch.stack([F.pad(row[3], (0, more)) for row, more in zip(rows, fill, strict=True)])
        valid = torch.arange(size) < torch.tensor([len(row[1]) for row in rows])[:, None]
        return Heard(*(tensor.to(self._device) for tensor in (waves, phone, sound, first, valid)))

    def _clip(self, source: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        index, copy = int(source.integers(len(self._recordings))), int(source.integers(self._recordings.copies))
        speaker = self._recordings.clip(index, copy).record.speaker
        waves, phones, sounds, firsts = [], [], [], []
        for _ in range(int(source.integers(1, LONGEST + 1))):
            clip = self._recordings.clip(index, copy)
            phone, sound = vectors_of(clip.record, clip.variation, self._analysis)
            samples = clip.play().samples
            waves.append(torch.from_numpy(np.pad(samples, (0, len(phone) * FRAME - len(samples)))))
            phones.append(phone)
            sounds.append(sound)
            firsts.append(self._analysis.codes(phone, sound)[:, 0])
            index = int(source.choice(self._recordings.of_speaker(speaker)))
        return torch.cat(waves), torch.cat(phones), torch.cat(sounds), torch.cat(firsts)


def vectors(encoder: CodecEncoder, waves: Tensor) -> tuple[Tensor, Tensor]:
    """What the semantic and the acoustic books quantise: [B, T] -> [B, frames, 64] each."""
    latent = encoder.latent(waves)
    quantizer = encoder.quantizer
    semantic = quantizer.semantic_residual_vector_quantizer.input_proj(latent)
    acoustic = quantizer.acoustic_residual_vector_quantizer.input_proj(latent)
    return semantic.transpose(1, 2), acoustic.transpose(1, 2)
