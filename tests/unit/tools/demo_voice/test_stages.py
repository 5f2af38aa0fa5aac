"""All stages on very little data: what they make is whole, and the package loads it as it was trained."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from tests.support.families.qwen3_bare import BareQwen3
from tests.support.judges.served import as_file
from tools.demo_voice.dataset import read_shard, shard_path
from tools.demo_voice.options import Options
from tools.demo_voice.qwen3_tts import decoder_training, encoder_training, stages, talker_training
from tools.demo_voice.qwen3_tts.analysis import Analysis
from tools.demo_voice.qwen3_tts.corpus import Corpus, Recordings
from tools.demo_voice.qwen3_tts.talker_batch import Layout
from tools.demo_voice.qwen3_tts.talker_data import Spoken
from tools.demo_voice.qwen3_tts.variations import variation_of, vectors_of
from tools.demo_voice.training import averaged, generator_of
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

pytestmark = pytest.mark.long  # all stages take minutes

STEPS = {"encoder": 2, "decoder": 2, "speaker": 2, "talker": 2, "polish": 2}
OPTIONS = Options(shards=1, shard_size=24, jobs=1, steps=STEPS)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage, run on very little."""
    if shutil.which("flite") is None:
        pytest.skip("no flite, which speaks the data (Debian: apt-get install flite)")
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # few sentences have fewer sounds than a book has codes
        patch.setattr(stages, "TOKENIZER_TEXTS", 300)
        for stage in stages.STAGES.values():
            list(stage(folder, OPTIONS))
    return folder


def test_the_stages_end_and_have_nothing_left_to_do(work: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*.*") if "checkpoint" not in str(path)}
    for name, stage in stages.STAGES.items():
        if name != "checkpoint":
            list(stage(work, OPTIONS))
    assert files == {path: path.stat().st_mtime_ns for path in files}
    assert not list(work.rglob(".*"))  # nothing half written


def test_the_analysis_finds_its_sounds_again(work: Path) -> None:
    analysis = Analysis.load(stages.analysis_path(work))
    clip = Recordings(work, 1, OPTIONS.seed).clip(5, 0)
    phone, sound = vectors_of(clip.record, clip.variation, analysis)
    codes = analysis.codes(phone, sound)
    found = sum(book[codes[:, place + 1]] for place, book in enumerate(analysis.books))
    assert float((found - sound).square().sum() / sound.square().sum()) < 0.2  # fitted to few frames


def test_codes_are_those_of_the_encoder_that_is_served(work: Path) -> None:
    engine = BareQwen3(work / "checkpoint")
    corpus = Corpus(work, 1, OPTIONS.seed)
    for copy in range(corpus.copies):
        clip = corpus.clip(5, copy)
        assert clip.variation == variation_of(OPTIONS.seed, 0, 5, copy)
        assert np.array_equal(engine.encode(as_file(clip.play().samples)), clip.codes)


def test_aligned_codes_belong_to_the_same_frames(work: Path) -> None:
    true, aligned = (Corpus(work, 1, OPTIONS.seed, kind) for kind in ("codes", "aligned_codes"))
    assert np.array_equal(true.lengths(), aligned.lengths())
    pairs = [(each.clip(index, 0).codes for each in (true, aligned)) for index in range(len(true))]
    one, other = (np.concatenate(each) for each in zip(*pairs, strict=True))
    assert (one != other).mean() > 0  # an untrained talker guesses


def test_sentences_of_a_longer_text_have_its_tokens(work: Path) -> None:
    corpus = stages.talker_corpus(work, OPTIONS)
    first, later = corpus.spoken(3, 0), corpus.spoken(4, 0, follows=True)
    texts = [part.clip.record.text for part in (first, later)]
    whole = Tokenizer(stages.configuration_path(work)).text_ids(" ".join(texts))
    assert np.array_equal(np.concatenate([first.tokens, later.tokens]), whole)
    assert np.array_equal(later.codes, corpus.spoken(4, 0).codes)
    assert (np.diff(later.spoken) >= 0).all() and later.spoken[-1] == len(later.tokens) - 1


def test_texts_and_references_of_two_sentences_are_trained(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout begins with a text of its own; a sentence that follows begins with the space before it."""
    layouts, lay_out = set(), talker_training.lay_out
    tokenizer = Tokenizer(stages.configuration_path(work))

    def noted(parts: list[Spoken], *rest: Any) -> Layout:
        followers = [not np.array_equal(part.tokens, tokenizer.text_ids(part.clip.record.text)) for part in parts]
        layouts.add(tuple(followers))
        return lay_out(parts, *rest)

    monkeypatch.setattr(talker_training, "lay_out", noted)
    task = talker_task(talker_model(work), work)
    for step in range(40):
        task.draw(generator_of(1, step))
    one, later = False, True
    assert layouts == {(one,), (one, one), (one, later), (one, one, later), (one, later, one)}


def talker_model(work: Path) -> talker_training.TalkerModel:
    torch.manual_seed(0)
    return talker_training.TalkerModel(load_config(stages.configuration_path(work)))


def talker_task(model: talker_training.TalkerModel, work: Path) -> talker_training.TalkerTask:
    folder = stages.configuration_path(work)
    corpus, role = stages.talker_corpus(work, OPTIONS), Tokenizer(folder).role_ids
    return talker_training.TalkerTask(model, corpus, load_config(folder), role, 1, CPU)


def task_of(name: str, work: Path) -> tuple[nn.Module, Callable[[int], tuple[Tensor, dict[str, float]]]]:
    analysis = Analysis.load(stages.analysis_path(work))
    corpus = Corpus(work, 1, OPTIONS.seed)
    torch.manual_seed(0)
    if name == "decoder":
        decoder = decoder_training.new_decoder(analysis, 1)
        return decoder, decoder_training.DecoderTask(decoder, [corpus], 1, CPU).loss
    if name == "encoder":
        encoder = encoder_training.new_encoder(analysis, 1)
        return encoder, encoder_training.EncoderTask(encoder, corpus, analysis, 1, CPU).loss
    model = talker_model(work)
    return model, talker_task(model, work).loss


@pytest.mark.parametrize("name", ["decoder", "encoder", "talker"])
def test_gradients_reach_everything_that_is_trained(work: Path, name: str) -> None:
    model, loss_of = task_of(name, work)
    loss, _ = loss_of(0)
    again, _ = loss_of(0)
    assert loss.item() == again.item()  # the step decides all chance
    loss.backward()  # type: ignore[no-untyped-call]
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    without = [name for name, each in trained.items() if each.grad is None or not each.grad.any()]
    assert without == []


def test_openings_are_the_first_frames_of_clips_and_their_sound_a_little_later(work: Path) -> None:
    corpus = Corpus(work, 1, OPTIONS.seed)
    codes, audio = decoder_training.draw_openings(corpus, torch.Generator().manual_seed(0))
    frames, lag = decoder_training.OPENING, decoder_training.LAG
    assert codes.shape[1:] == (16, frames) and audio.shape == (len(codes), frames * 1920)
    clips = [corpus.clip(index, copy) for index in range(len(corpus)) for copy in range(corpus.copies)]
    heard = {clip: clip.play().samples[: frames * 1920 - lag] for clip in clips}
    begins = {clip.codes[:frames].T.tobytes() + bytes(4 * lag) + samples.tobytes() for clip, samples in heard.items()}
    drawn = zip(codes.numpy().astype(np.uint8), audio.numpy(), strict=True)
    assert all(each.tobytes() + samples.tobytes() in begins for each, samples in drawn)


def test_the_sound_of_excerpts_is_as_much_later(work: Path) -> None:
    corpus = Corpus(work, 1, OPTIONS.seed)
    codes, audio = decoder_training.draw(corpus, torch.Generator().manual_seed(0))
    frames, lag = decoder_training.HEARD, decoder_training.LAG
    assert codes.shape[1:] == (16, decoder_training.CONTEXT) and audio.shape == (len(codes), frames * 1920)
    clips = [corpus.clip(index, copy) for index in range(len(corpus)) for copy in range(corpus.copies)]
    said = [(clip.codes, np.pad(clip.play().samples, (0, 3840))) for clip in clips]
    excerpts = {
        every[end - frames : end].T.tobytes() + samples[(end - frames) * 1920 : end * 1920 - lag].tobytes()
        for every, samples in said
        for end in range(frames, len(every) + 1)
    }
    drawn = zip(codes[..., -frames:].numpy().astype(np.uint8), audio.numpy(), strict=True)
    assert all(each.tobytes() + samples[lag:].tobytes() in excerpts for each, samples in drawn)


def test_the_checkpoint_holds_what_was_trained(work: Path) -> None:
    model = load_file(work / "checkpoint" / "model.safetensors")
    trained = averaged(work / "talker.pt")
    assert model and all(torch.equal(tensor, trained[name].bfloat16()) for name, tensor in model.items())
    assert {name for name in trained if name not in model} == {"reader.weight", "reader.bias"}
    codec = load_file(work / "checkpoint" / "speech_tokenizer" / "model.safetensors")
    for part, run in (("decoder", "polish"), ("encoder", "encoder")):
        weights = averaged(work / f"{run}.pt")
        assert all(torch.equal(codec[f"{part}.{name}"], tensor) for name, tensor in weights.items())


def test_the_checkpoint_is_small(work: Path) -> None:
    assert sum(file.stat().st_size for file in (work / "checkpoint").rglob("*")) < 24_000_000


@pytest.mark.parametrize("in_context", [False, True])
def test_the_package_speaks_it(work: Path, in_context: bool) -> None:
    engine = BareQwen3(work / "checkpoint")
    record = read_shard(shard_path(work, "seen", 0))[0]
    clip, transcript = as_file(record.utterance.samples), record.text if in_context else None
    said = engine.speak(engine.prompt("The boat came home.", clip, transcript), 4, SamplingParameters(seed=3))
    assert said.shape == (4 * 1920,) and np.isfinite(said).all()


def test_guidance_is_the_attention_on_the_token_and_its_neighbours() -> None:
    seen = torch.full((1, 4, 4), -torch.inf)
    seen[0, 3] = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    seen[0, 2] = torch.tensor([0.2, 0.3, 0.5, 0.0]).log()
    nothing = talker_training.NOTHING
    found = talker_training.guidance(seen, torch.tensor([[nothing, nothing, nothing, 1]]))
    torch.testing.assert_close(found, -torch.tensor(0.6).log())
    found = talker_training.guidance(seen, torch.tensor([[nothing, nothing, 2, nothing]]))
    torch.testing.assert_close(found, -torch.tensor(0.8).log())


def test_training_goes_on_from_a_checkpoint(work: Path, tmp_path: Path) -> None:
    base = work / "checkpoint"
    for name in ("data", "configuration"):
        (tmp_path / name).symlink_to(work / name)
    options = replace(OPTIONS, base=base, steps=dict.fromkeys(STEPS, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for stage in stages.STAGES.values():
            list(stage(tmp_path, options))
    for file in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        before, after = (load_file(folder / file) for folder in (base, tmp_path / "checkpoint"))
        moved = [float((after[name].float() - tensor.float()).abs().max()) for name, tensor in before.items()]
        assert 0 < max(moved) < 0.01, file  # a step of the first rate, which is small
    before, after = (averaged(folder / "encoder.pt") for folder in (work, tmp_path))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
