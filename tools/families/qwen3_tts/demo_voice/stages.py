"""The stages that make the demo's checkpoint out of nothing, in order. Each continues where it was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from tools.demo_voice.dataset import make_data, read_shard, sentence_of, shard_path
from tools.demo_voice.options import Options
from tools.demo_voice.speakers import speakers
from tools.demo_voice.training import Run, averaged
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from tools.families.qwen3_tts.demo_voice import decoder_training, encoder_training, speaker_training, talker_training
from tools.families.qwen3_tts.demo_voice.alignment import pronounce
from tools.families.qwen3_tts.demo_voice.analysis import Analysis, fit
from tools.families.qwen3_tts.demo_voice.base import begin, with_books_of
from tools.families.qwen3_tts.demo_voice.corpus import Corpus, codes_path
from tools.families.qwen3_tts.demo_voice.export import export
from tools.families.qwen3_tts.demo_voice.shape import GENERATION, SHAPE
from tools.families.qwen3_tts.demo_voice.talker_data import TalkerCorpus
from tools.families.qwen3_tts.demo_voice.variations import FACTORS, make_codes
from tools.families.qwen3_tts.demo_voice.vocabulary import token_lengths, train_merges
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.text import Tokenizer

FITTED_SHARDS = 15  # the analysis is fitted to
TOKENIZER_TEXTS = 12000  # the tokenizer is learned from
CODEC_SHARDS = 20  # the codec hears; it needs many sounds, not many words


def analysis_path(work: Path) -> Path:
    """Where the fitted analysis lies."""
    return work / "analysis.npz"


def configuration_path(work: Path) -> Path:
    """Where the checkpoint's configuration and tokenizer lie."""
    return work / "configuration"


def data(work: Path, options: Options) -> Iterator[str]:
    """Sentences, spoken."""
    yield from make_data(work, options.seed, options.shards, options.shard_size, options.jobs)


def analysis(work: Path, options: Options) -> Iterator[str]:
    """Codes without a network."""
    if not analysis_path(work).exists():
        count = min(FITTED_SHARDS, options.shards)
        records = [each for shard in range(count) for each in read_shard(shard_path(work, "train", shard))]
        cast = speakers()
        found, left = fit([(cast[each.speaker], each.utterance) for each in records], options.seed)
        if options.base is not None:
            found = with_books_of(found, options.base)
        found.save(analysis_path(work))
        yield "power left after each book: " + " ".join(f"{share:.3f}" for share in left)


def codes(work: Path, options: Options) -> Iterator[str]:
    """The codes of all variations of the data."""
    missing = [shard for shard in range(options.shards) if not codes_path(work, shard).exists()]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_make_codes, work, options.seed, shard) for shard in missing]
        for shard, future in zip(missing, waiting, strict=True):
            future.result()
            yield f"shard {shard}"


def _make_codes(work: Path, seed: int, shard: int) -> None:
    torch.set_num_threads(1)
    source, target = shard_path(work, "train", shard), codes_path(work, shard)
    make_codes(source, target, Analysis.load(analysis_path(work)), seed, shard, len(FACTORS))


def decoder(work: Path, options: Options) -> Iterator[str]:
    """code2wav."""
    device = options.device
    network = decoder_training.new_decoder(Analysis.load(analysis_path(work)), options.seed)
    begin(network, options.base, "decoder.")
    run = Run(network.to(device), options.plan("decoder", decoder_training.PLAN), work / "decoder.pt")
    if run.step < run.plan.steps:
        task = decoder_training.DecoderTask(
            network, Corpus(work, min(CODEC_SHARDS, options.shards), options.seed), options.seed, device
        )
        run.finish(task.loss)
    yield f"{run.step} steps"


def encoder(work: Path, options: Options) -> Iterator[str]:
    """The codec's encoder."""
    device = options.device
    found = Analysis.load(analysis_path(work))
    network = encoder_training.new_encoder(found, options.seed)
    begin(network, options.base, "encoder.")
    run = Run(network.to(device), options.plan("encoder", encoder_training.PLAN), work / "encoder.pt")
    if run.step < run.plan.steps:
        corpus = Corpus(work, min(CODEC_SHARDS, options.shards), options.seed)
        task = encoder_training.EncoderTask(network, corpus, found, options.seed, device)
        run.finish(task.loss)
    yield f"{run.step} steps"


def checkpoint(work: Path, options: Options) -> Iterator[str]:
    """The checkpoint, of the runs' averaged weights as they are now."""
    talker, decoder, encoder = (averaged(work / f"{name}.pt") for name in ("talker", "decoder", "encoder"))
    folder = work / "checkpoint"
    export(configuration_path(work), talker, decoder, encoder, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield f"{size / 1e6:.1f} MB in {folder}"


def tokenizer(work: Path, options: Options) -> Iterator[str]:
    """The configuration and the tokenizer, learned from the texts."""
    if not configuration_path(work).exists():
        texts = [sentence_of(options.seed, "train", number) for number in range(TOKENIZER_TEXTS)]
        partial = work / f".configuration.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_configuration(SHAPE, partial, train_merges(texts), GENERATION)
        partial.rename(configuration_path(work))
        yield "learned"


def speaker(work: Path, options: Options) -> Iterator[str]:
    """The speaker encoder by itself."""
    config = load_config(configuration_path(work)).speaker_encoder
    torch.manual_seed(options.seed)
    model = speaker_training.SpeakerModel(config)
    begin(model, options.base)
    if options.base is not None:
        model.speaker_encoder.requires_grad_(False)  # only what reads its embeddings is new
    run = Run(model.to(options.device), options.plan("speaker", speaker_training.PLAN), work / "speaker.pt")
    if run.step < run.plan.steps:
        corpus = Corpus(work, min(CODEC_SHARDS, options.shards), options.seed)
        run.finish(speaker_training.SpeakerTask(model, corpus, config, options.seed, options.device).loss)
    yield f"{run.step} steps"


def talker(work: Path, options: Options) -> Iterator[str]:
    """Talker, code predictor and speaker encoder."""
    config = load_config(configuration_path(work))
    torch.manual_seed(options.seed)
    model = talker_training.TalkerModel(config)
    model.load_state_dict(averaged(work / "speaker.pt"), strict=False)
    begin(model, options.base)
    model.to(options.device)
    # From random weights Muon needs fewer steps than AdamW; without fast bf16 products most of each step is its own.
    by_muon = options.base is None and talker_training.halves_pay(options.device)
    hidden = model.hidden() if by_muon else ()
    run = Run(model, options.plan("talker", talker_training.PLAN), work / "talker.pt", hidden, "speaker_encoder.")
    if run.step < run.plan.steps:
        corpus = talker_corpus(work, options)
        role = Tokenizer(configuration_path(work)).role_ids
        task = talker_training.TalkerTask(model, corpus, config, role, options.seed, options.device)
        run.finish(task.loss)
    yield f"{run.step} steps"


def talker_corpus(work: Path, options: Options) -> TalkerCorpus:
    """All data, with tokens and pronunciations."""
    corpus = Corpus(work, options.shards, options.seed)
    folder = configuration_path(work)
    known = pronounce(work / "pronunciations.json", corpus.texts)
    return TalkerCorpus(corpus, Tokenizer(folder), token_lengths(folder), known)


STAGES = {
    "data": data,
    "analysis": analysis,
    "codes": codes,
    "tokenizer": tokenizer,
    "decoder": decoder,
    "encoder": encoder,
    "speaker": speaker,
    "talker": talker,
    "checkpoint": checkpoint,
}
