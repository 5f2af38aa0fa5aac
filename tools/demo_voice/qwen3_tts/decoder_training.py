"""Trains code2wav on fixed codes, without an adversary; see `decoder_losses`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.demo_voice.qwen3_tts.analysis import Analysis
from tools.demo_voice.qwen3_tts.corpus import CodedClip, Corpus
from tools.demo_voice.qwen3_tts.decoder_forward import decode
from tools.demo_voice.qwen3_tts.decoder_losses import (
    LOUD,
    Cepstra,
    cepstra,
    cepstral_loss,
    mel_loss,
    spectral_loss,
    variance_loss,
)
from tools.demo_voice.qwen3_tts.features import FRAME
from tools.demo_voice.qwen3_tts.shape import codec_shape
from tools.demo_voice.training import Plan, generator_of
from tools.families.qwen3_tts.checkpoint_weights import fill_random
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.rvq import DecoderCodebook

BATCH = 6
CONTEXT = 32  # frames that the transformer sees
HEARD = 12  # frames at the end of them whose audio is compared
WARM = 2  # frames before those, decoded but not compared: the convolutions start with nothing
OPENING = 2  # the first frames of a clip, all compared: so begins a speech, and an untrained start is a click
OPENINGS = 0.2  # share of the batches that are such
# Samples by which the sound is later than its codes. They describe windows that end with the frame: what is near its
# end falls in the next frame's windows, which a causal network has not read.
LAG = FRAME // 4
LOG, SHAPE, MEL, CEPSTRA, VARIANCE = 0.3, 0.5, 6.0, 2.0, 8.0  # weights of the losses
MEASURED = range(0, 200, 5)  # the utterances that show how far cepstra spread
PLAN = Plan(steps=8000, rate=1.5e-3, cool_down=0.6)
POLISH = Plan(steps=2000, rate=1e-3, cool_down=1.0)


def new_decoder(analysis: Analysis, seed: int) -> CodecDecoder:
    """A decoder whose code tables are the analysis' own.

    The other weights are random and keep a signal's size: after torch's own initialisation, which shrinks it in each of
    a dozen layers, the codes make one part in a hundred of the sound, and the rest is bias.
    """
    decoder = CodecDecoder(codec_shape().decoder_config)
    fill_random(decoder, "decoder.", seed)
    # The components differ by a factor of twenty in size; at about one size the small ones are learned as soon.
    spread = analysis.books.var(dim=1).sum(dim=0).sqrt()
    scale = spread ** (3 / 4) * spread.mean() ** (1 / 4)
    with torch.no_grad():
        [first], rest = _codebooks(decoder.quantizer.rvq_first), _codebooks(decoder.quantizer.rvq_rest)
        for table, book in zip(rest, analysis.books, strict=True):
            table.embedding_sum.copy_(book / scale)
            table.cluster_usage.fill_(1.0)
        first.cluster_usage.fill_(1.0)
        first.embedding_sum.zero_()
        first.embedding_sum[:, : analysis.phone_book.shape[1]] = analysis.phone_book / analysis.phone_book.std()
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(not name.endswith("cluster_usage"))
    return decoder


def _codebooks(part: nn.Module) -> list[DecoderCodebook]:
    return [module for module in part.modules() if isinstance(module, DecoderCodebook)]


class DecoderTask:
    """The loss of a step.

    Args:
        corpora: a step draws from one of them.
    """

    def __init__(self, decoder: CodecDecoder, corpora: Sequence[Corpus], seed: int, device: torch.device) -> None:
        self._decoder, self._corpora, self._seed, self._device = decoder, corpora, seed, device
        self._spreads = [each.to(device) for each in spreads(corpora[0])]

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`, and its parts."""
        chance = generator_of(self._seed, step)
        opening = float(torch.rand((), generator=chance)) < OPENINGS
        corpus = self._corpora[int(torch.randint(len(self._corpora), (), generator=chance))]
        drawn = draw_openings(corpus, chance) if opening else draw(corpus, chance)
        codes, audio = (tensor.to(self._device) for tensor in drawn)
        heard = OPENING if opening else HEARD + WARM
        said = decode(self._decoder, codes, heard)[:, -audio.shape[1] :]
        logs, shapes = spectral_loss(said, audio)
        mels = mel_loss(said, audio)
        mine, theirs = cepstra(said), cepstra(audio)
        envelope = cepstral_loss(mine, theirs, self._spreads)
        variance = variance_loss(mine, theirs)
        parts = {"log": logs, "shape": shapes, "mel": mels, "cepstra": envelope, "variance": variance}
        total = LOG * logs + SHAPE * shapes + MEL * mels + CEPSTRA * envelope + VARIANCE * variance
        return total, {name: part.item() for name, part in parts.items()}


def spreads(corpus: Corpus) -> Cepstra:
    """Standard deviations [13, 1] of cepstra, their motion and its change where speech is not quiet."""
    found: list[list[Tensor]] = [[], [], []]
    for index in MEASURED:
        measured = cepstra(torch.from_numpy(corpus.clip(index % len(corpus), 0).play().samples))
        loud = measured[0][0] > measured[0][0].max() - LOUD
        for values, part in zip(found, measured, strict=True):
            values.append(part[:, loud[: part.shape[1]]])
    first, second, third = (torch.cat(values, dim=1).std(dim=1, keepdim=True) for values in found)
    return first, second, third


def draw(corpus: Corpus, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Codes int64 [B, 16, CONTEXT] and the audio of their last HEARD frames [B, HEARD * FRAME]."""
    batch: list[tuple[Tensor, Tensor]] = []
    while len(batch) < BATCH:
        index, copy = (int(torch.randint(size, (), generator=chance)) for size in (len(corpus), corpus.copies))
        clip = corpus.clip(index, copy)
        if len(clip.codes) >= HEARD + WARM:
            end = int(torch.randint(HEARD + WARM, len(clip.codes) + 1, (), generator=chance))
            batch.append(_cut(clip, end))
    codes, audio = zip(*batch, strict=True)
    return torch.stack(codes), torch.stack(audio)


def draw_openings(corpus: Corpus, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """The first frames of clips: codes int64 [B, 16, OPENING] and all of their audio [B, OPENING * FRAME]."""
    count = 2 * BATCH
    indices = torch.randint(len(corpus), (count,), generator=chance).tolist()
    copies = torch.randint(corpus.copies, (count,), generator=chance).tolist()
    clips = [corpus.clip(*each) for each in zip(indices, copies, strict=True)]
    codes = np.stack([clip.codes[:OPENING].T.astype(np.int64) for clip in clips])
    audio = np.stack([_late(clip)[: OPENING * FRAME] for clip in clips])
    return torch.from_numpy(codes), torch.from_numpy(audio)


def _cut(clip: CodedClip, end: int) -> tuple[Tensor, Tensor]:
    samples = _late(clip)[(end - HEARD) * FRAME : end * FRAME]
    codes = clip.codes[max(0, end - CONTEXT) : end]
    # A clip that is shorter than the context begins with its own silence, repeated.
    codes = np.concatenate([np.repeat(codes[:1], CONTEXT - len(codes), axis=0), codes])
    return torch.from_numpy(codes.T.astype(np.int64)), torch.from_numpy(samples)


def _late(clip: CodedClip) -> NDArray[np.float32]:
    """What a decoder is to make of the codes: the clip's audio, later by LAG, [frames * FRAME]."""
    size = len(clip.codes) * FRAME
    return np.pad(clip.play().samples, (LAG, FRAME))[:size]
