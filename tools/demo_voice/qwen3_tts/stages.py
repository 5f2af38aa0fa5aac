"""The stages that make the demo's checkpoint out of nothing, in order. Each continues where it was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from tools.demo_voice.dataset import make_data, read_shard, sentence_of, shard_path
from tools.demo_voice.options import Options
from tools.demo_voice.qwen3_tts import decoder_training, encoder_training, speaker_training, talker_training
from tools.demo_voice.qwen3_tts.aligned_codes import make_aligned_codes
from tools.demo_voice.qwen3_tts.alignment import pronounce
from tools.demo_voice.qwen3_tts.analysis import BOOKS, Analysis, fit
from tools.demo_voice.qwen3_tts.corpus import Corpus, Kind, Recordings, codes_path, part_of
from tools.demo_voice.qwen3_tts.export import WEIGHTS, export
from tools.demo_voice.qwen3_tts.shape import GENERATION, SHAPE, codec_shape
from tools.demo_voice.qwen3_tts.talker_data import TalkerCorpus
from tools.demo_voice.qwen3_tts.variations import make_codes
from tools.demo_voice.qwen3_tts.vocabulary import token_lengths, train_merges
from tools.demo_voice.side_by_side import each_done
from tools.demo_voice.speakers import speakers
from tools.demo_voice.training import Run, averaged
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, load_config
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.prompt import Tokenizer

FITTED_SHARDS = 15  # the analysis is fitted to
TOKENIZER_TEXTS = 12000  # the tokenizer is learned from
NARROW = 8  # rows or columns; AdamW trains a matrix with fewer
CODEC_SHARDS = 20  # the codec hears; it needs many sounds, not many words
ALIGNED_SHARDS = 6  # the talker says for it


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
        found.save(analysis_path(work))
        yield "power left after each book: " + " ".join(f"{share:.3f}" for share in left)


def encoder(work: Path, options: Options) -> Iterator[str]:
    """The codec's encoder. A base's is kept: it was trained with an analysis that the checkpoint does not hold."""
    device = options.device
    found = Analysis.load(analysis_path(work))
    network = encoder_training.new_encoder(found, options.seed)
    _begin(network, options.base, "encoder.")
    plan = options.plan("encoder", encoder_training.PLAN)
    if options.base is not None:
        plan = replace(plan, steps=0)
    run = Run(network.to(device), plan, work / "encoder.pt", _wide(network))
    if run.step < run.plan.steps or not run.path.exists():
        recordings = Recordings(work, min(CODEC_SHARDS, options.shards), options.seed)
        run.finish(encoder_training.EncoderTask(network, recordings, found, options.seed, device).loss)
    yield f"{run.step} steps"


def codes(work: Path, options: Options) -> Iterator[str]:
    """The codes of all variations of the data, as the codec's encoder finds them."""
    wanted: list[tuple[Kind, int]] = [("test_codes", 0), *(("codes", shard) for shard in range(options.shards))]
    missing = [(kind, shard) for kind, shard in wanted if not codes_path(work, shard, kind).exists()]
    calls = [(work, options.seed, *each) for each in missing]
    for (kind, shard), _ in zip(missing, each_done(options.jobs, _make_codes, calls), strict=True):
        yield f"shard {shard} of {part_of(kind)}"


def _make_codes(work: Path, seed: int, kind: Kind, shard: int) -> None:
    torch.set_num_threads(1)
    network = CodecEncoder(codec_shape().encoder_config, BOOKS)
    network.load_state_dict(averaged(work / "encoder.pt"))
    source = shard_path(work, part_of(kind), shard)
    make_codes(source, codes_path(work, shard, kind), network, seed, shard)


def decoder(work: Path, options: Options) -> Iterator[str]:
    """code2wav."""
    network = _decoder(work, options)
    _begin(network, options.base, "decoder.")
    run = Run(network, options.plan("decoder", decoder_training.PLAN), work / "decoder.pt", _wide(network))
    if run.step < run.plan.steps:
        corpus = Corpus(work, min(CODEC_SHARDS, options.shards), options.seed)
        run.finish(decoder_training.DecoderTask(network, [corpus], options.seed, options.device).loss)
    yield f"{run.step} steps"


def aligned_codes(work: Path, options: Options) -> Iterator[str]:
    """What the talker says where it reads the true codes."""
    shards = range(min(ALIGNED_SHARDS, options.shards))
    missing = [shard for shard in shards if not codes_path(work, shard, "aligned_codes").exists()]
    if missing:
        config = load_config(configuration_path(work))
        model = talker_training.TalkerModel(config)
        model.load_state_dict(averaged(work / "talker.pt"))
        model.to(options.device).eval()
        corpus = talker_corpus(work, options)
        role = Tokenizer(configuration_path(work)).role_ids
    for shard in missing:
        utterances = range(shard * options.shard_size, (shard + 1) * options.shard_size)
        path = codes_path(work, shard, "aligned_codes")
        make_aligned_codes(path, model, corpus, config, role, options.seed, utterances)
        yield f"shard {shard}"


def polish(work: Path, options: Options) -> Iterator[str]:
    """code2wav, trained on, mostly with the talker's codes: those are what it reads when it is used."""
    network = _decoder(work, options)
    network.load_state_dict(averaged(work / "decoder.pt"))
    run = Run(network, options.plan("polish", decoder_training.POLISH), work / "polish.pt", _wide(network))
    if run.step < run.plan.steps:
        true = Corpus(work, min(CODEC_SHARDS, options.shards), options.seed)
        aligned = Corpus(work, min(ALIGNED_SHARDS, options.shards), options.seed, "aligned_codes")
        run.finish(decoder_training.DecoderTask(network, [true, *3 * [aligned]], options.seed, options.device).loss)
    yield f"{run.step} steps"


def _wide(codec: CodecEncoder | CodecDecoder) -> list[str]:
    """Names of the matrices and convolutions that Muon trains. AdamW does not learn the smaller components."""
    trained = {name: each for name, each in codec.named_parameters() if each.requires_grad and each.ndim > 1}
    wide = [name for name, each in trained.items() if min(each.flatten(1).shape) >= NARROW]
    return [name for name in wide if not name.startswith("quantizer.")]


def _decoder(work: Path, options: Options) -> CodecDecoder:
    return decoder_training.new_decoder(Analysis.load(analysis_path(work)), options.seed).to(options.device)


def checkpoint(work: Path, options: Options) -> Iterator[str]:
    """The checkpoint, of the runs' averaged weights as they are now."""
    talker, decoder, encoder = (averaged(work / f"{name}.pt") for name in ("talker", "polish", "encoder"))
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
    _begin(model, options.base)
    if options.base is not None:
        model.speaker_encoder.requires_grad_(False)  # only what reads its embeddings is new
    run = Run(model.to(options.device), options.plan("speaker", speaker_training.PLAN), work / "speaker.pt")
    if run.step < run.plan.steps:
        recordings = Recordings(work, min(CODEC_SHARDS, options.shards), options.seed)
        run.finish(speaker_training.SpeakerTask(model, recordings, config, options.seed, options.device).loss)
    yield f"{run.step} steps"


def talker(work: Path, options: Options) -> Iterator[str]:
    """Talker, code predictor and speaker encoder."""
    config = load_config(configuration_path(work))
    torch.manual_seed(options.seed)
    model = talker_training.TalkerModel(config)
    model.load_state_dict(averaged(work / "speaker.pt"), strict=False)
    _begin(model, options.base)
    model.to(options.device)
    plan = options.plan("talker", talker_training.PLAN)
    run = Run(model, plan, work / "talker.pt", model.hidden(), "speaker_encoder.")
    if run.step < run.plan.steps:
        role = Tokenizer(configuration_path(work)).role_ids
        learned, tested = (
            talker_training.TalkerTask(model, corpus, config, role, options.seed, options.device)
            for corpus in (talker_corpus(work, options), talker_corpus(work, options, "test_codes"))
        )
        run.finish(learned.loss, tested.loss)
    yield f"{run.step} steps"


def _begin(model: nn.Module, base: Path | None, part: str = "") -> None:
    """Give a model the weights of a checkpoint.

    Args:
        base: the checkpoint's folder; None: the model stays as it is.
        part: how the names of a part of the codec begin; without it, the weights are those of talker and speaker
            encoder, and what the checkpoint does not hold stays as it is.
    """
    if base is None:
        return
    found = load_file(base / CODEC_FOLDER / WEIGHTS if part else base / WEIGHTS)
    own = {name: found[part + name] for name in model.state_dict() if part + name in found}
    model.load_state_dict(own, strict=bool(part))


def talker_corpus(work: Path, options: Options, kind: Kind = "codes") -> TalkerCorpus:
    """All data of a kind, with tokens and pronunciations."""
    corpus = Corpus(work, 1 if kind == "test_codes" else options.shards, options.seed, kind)
    folder = configuration_path(work)
    known = pronounce(work / "pronunciations.json", corpus.texts)
    return TalkerCorpus(corpus, Tokenizer(folder), token_lengths(folder), known)


STAGES = {
    "data": data,
    "analysis": analysis,
    "encoder": encoder,
    "codes": codes,
    "tokenizer": tokenizer,
    "decoder": decoder,
    "speaker": speaker,
    "talker": talker,
    "aligned_codes": aligned_codes,
    "polish": polish,
    "checkpoint": checkpoint,
}
