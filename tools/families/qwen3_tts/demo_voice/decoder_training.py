"""Trains code2wav on fixed codes: spectra and mel spectra at four resolutions, no adversary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import librosa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_voice.training import Plan, generator_of
from tools.families.qwen3_tts.checkpoint_weights import fill_random
from tools.families.qwen3_tts.demo_voice.analysis import Analysis
from tools.families.qwen3_tts.demo_voice.corpus import CodedClip, Corpus
from tools.families.qwen3_tts.demo_voice.decoder_forward import decode
from tools.families.qwen3_tts.demo_voice.features import FRAME, SAMPLE_RATE
from tools.families.qwen3_tts.demo_voice.shape import codec_shape
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.rvq import DecoderCodebook

BATCH = 6
CONTEXT = 32  # frames that the transformer sees
HEARD = 12  # frames at the end of them whose audio is compared
WARM = 2  # frames before those, decoded but not compared: the convolutions start with nothing
OPENING = 2  # the first frames of a clip, all compared: so begins a speech, and an untrained start is a click
OPENINGS = 0.2  # share of the batches that are such
QUIET = 0.1  # mean magnitude; speech has about 1
RESOLUTIONS = ((2048, 480), (1024, 240), (512, 120), (256, 60))  # window and hop
MELS = ((2048, 512, 120), (1024, 256, 80), (512, 128, 40), (256, 64, 20))  # window, hop and bands
MEL_FLOOR = 3e-4  # added to each band before the logarithm: what is far quieter does not count
# The weights of the losses. Words are told apart below 4 kHz, where most mel bands are. Most lines of a spectrum are
# above 4 kHz and hold noise.
LOG, SHAPE, MEL = 0.3, 0.5, 6.0
PLAN = Plan(steps=8000, rate=2e-3, cool_down=0.6)
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

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`, and its part from the spectra's logarithms."""
        chance = generator_of(self._seed, step)
        opening = float(torch.rand((), generator=chance)) < OPENINGS
        corpus = self._corpora[int(torch.randint(len(self._corpora), (), generator=chance))]
        drawn = draw_openings(corpus, chance) if opening else draw(corpus, chance)
        codes, audio = (tensor.to(self._device) for tensor in drawn)
        heard = OPENING if opening else HEARD + WARM
        said = decode(self._decoder, codes, heard)[:, -audio.shape[1] :]
        logs, shapes = spectral_loss(said, audio)
        mels = mel_loss(said, audio)
        figures = {"log": logs.item(), "shape": shapes.item(), "mel": mels.item()}
        return LOG * logs + SHAPE * shapes + MEL * mels, figures


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
    audio = np.stack([clip.play().samples[: OPENING * FRAME] for clip in clips])
    return torch.from_numpy(codes), torch.from_numpy(audio)


def _cut(clip: CodedClip, end: int) -> tuple[Tensor, Tensor]:
    samples = clip.play().samples[(end - HEARD) * FRAME : end * FRAME]
    samples = np.pad(samples, (0, HEARD * FRAME - len(samples)))
    codes = clip.codes[max(0, end - CONTEXT) : end]
    # A clip that is shorter than the context begins with its own silence, repeated.
    codes = np.concatenate([np.repeat(codes[:1], CONTEXT - len(codes), axis=0), codes])
    return torch.from_numpy(codes.T.astype(np.int64)), torch.from_numpy(samples)


def spectral_loss(said: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
    """Mean difference of the logarithms, and relative difference, of magnitudes (Yamamoto et al. 2020). [B, T] each.

    What is quieter than `QUIET` counts as being as loud: relative to silence every difference is large.
    """
    logs: list[Tensor] = []
    shapes: list[Tensor] = []
    for mine, theirs in _magnitudes(said, audio):
        logs.append(F.l1_loss(mine.log(), theirs.log()))
        size = torch.linalg.vector_norm(theirs).clamp(min=QUIET * theirs.numel() ** 0.5)
        shapes.append(torch.linalg.vector_norm(theirs - mine) / size)
    return torch.stack(logs).mean(), torch.stack(shapes).mean()


def mel_loss(said: Tensor, audio: Tensor) -> Tensor:
    """Mean difference of the logarithms of mel spectra, at several resolutions (Kumar et al. 2023). [B, T] each."""
    found: list[Tensor] = []
    for size, hop, bands in MELS:
        bank = _mel_bank(size, bands).to(audio.device)
        mine, theirs = ((bank @ _spectrum(wave, size, hop, least=1e-7) + MEL_FLOOR).log() for wave in (said, audio))
        found.append(F.l1_loss(mine, theirs))
    return torch.stack(found).mean()


@cache
def _mel_bank(size: int, bands: int) -> Tensor:
    """From a spectrum of `size` samples to mel bands: [bands, size / 2 + 1]."""
    bank: NDArray[np.float32] = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=size, n_mels=bands, fmin=40, htk=True)
    return torch.from_numpy(bank)


def _magnitudes(*waves: Tensor) -> Iterable[list[Tensor]]:
    for size, hop in RESOLUTIONS:
        yield [_spectrum(wave, size, hop) for wave in waves]


def _spectrum(wave: Tensor, size: int, hop: int, least: float = 1e-5) -> Tensor:
    """Magnitudes [B, size / 2 + 1, windows]; `least` is added to the power, for finite gradients."""
    window = torch.hann_window(size, device=wave.device)
    spectrum = torch.stft(wave, size, hop, window=window, center=True, return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1)
    return (power + least).sqrt()
