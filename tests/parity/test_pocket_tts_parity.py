"""Pocket TTS against pocket-tts 4.0.1: random weights, fp32, our noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.doubles.fakes import clip
from tests.support.families.trials import bare
from tests.support.oracles.pocket_tts import official_latents, official_model, official_speech, prepared_texts
from tools.families.byte_level_bpe import CORPUS
from tools.families.pocket_tts.checkpoint_maker import make_checkpoint
from voice_clone.audio import decode
from voice_clone.checkpoint_folder import read_tokenizer
from voice_clone.families.pocket_tts.encoder import end_on_pause
from voice_clone.families.pocket_tts.prompt import ended, prepared
from voice_clone.speech import ResolvedVoice
from voice_clone_server.families.pocket_tts.sentencepiece import convert

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

TOLERANCE = 1e-4  # of the spread of latents and frames, of the RMS of waveforms
TEXTS = ("Good morning to all of you.", "no mark, but words; and more \u2019tis", "It is -")
RELEASED = "100m", "100m-2026-01", "336m", "18m", "7m", "2m"
SHAPES = ["tiny", "tiny-drifting", "tiny-pointwise"] + [pytest.param(each, marks=pytest.mark.long) for each in RELEASED]


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pocket") / "checkpoint"
    make_checkpoint(request.param, 1, folder, "fp32")
    return folder


@pytest.fixture(scope="module")
def official(checkpoint: Path) -> Any:
    return official_model(checkpoint)


def off(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / wanted.std())


WAVEFORM = decode(clip(3, 4.3, 24000)).waveform


def test_latents_of_a_clip(checkpoint: Path, official: Any) -> None:
    """Ours are made piece by piece; 4.3 s are more than one."""
    from pocket_tts.data.audio_utils import end_on_pause as official_pause

    ended_clip = official_pause(torch.from_numpy(WAVEFORM)[None], 24000)[0].numpy()
    np.testing.assert_allclose(end_on_pause(WAVEFORM, 24000), ended_clip, atol=1e-6)
    [encoder] = bare("pocket_tts", checkpoint).encoders
    assert off(encoder.encode(WAVEFORM, None)["latents"], official_latents(official, ended_clip)) < TOLERANCE


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("steps", [1, 4])
def test_frames_and_samples(checkpoint: Path, official: Any, native: bool, steps: int, monkeypatch: Any) -> None:
    """Free-running, to the same end."""
    if not native:
        from voice_clone.families.pocket_tts.codec import PocketDecoder
        from voice_clone.families.pocket_tts.talker import PocketTalker

        monkeypatch.setattr(PocketTalker, "fill_network", PocketTalker.torch_network)
        monkeypatch.setattr(PocketDecoder, "load", lambda given: PocketDecoder(*PocketDecoder.load_torch(given)))
    own = bare("pocket_tts", checkpoint)
    lsd = own.prompt.config.flow_lm.flow.type == "lsd"
    official.sampler_decode_steps = steps if lsd else 1
    voice = ResolvedVoice({"latents": own.encoders[0].encode(WAVEFORM, None)["latents"]}, None, "reference")
    options = {"steps": steps} if lsd else {}
    spoken = own.speak(TEXTS[0], voice, seed=5, max_frames=60, options=options)
    frames, samples = official_speech(official, WAVEFORM, TEXTS[0], 5)
    frames, samples = frames[: len(spoken.codes)], samples[: len(spoken.samples)]
    assert off(spoken.codes, frames) < TOLERANCE and off(spoken.samples, samples) < TOLERANCE
    assert (spoken.finish == "stop") == (len(frames) < 60)


def test_prepared_texts(checkpoint: Path, official: Any) -> None:
    tokenizer, config = (getattr(bare("pocket_tts", checkpoint).prompt, name) for name in ("tokenizer", "config"))
    for text, (wanted, ids, after) in zip(TEXTS, prepared_texts(official, TEXTS), strict=True):
        assert ended(prepared(text, config)) == wanted.strip()
        assert tokenizer.text_ids(text).tolist() == ids and tokenizer.frames_after_end(text) == after


def test_a_sentencepiece_model_becomes_json(official: Any, tmp_path: Path) -> None:
    """With the options of the released ones: equal tokens for any text that spells none."""
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text(CORPUS, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=500,
        model_type="unigram",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    convert(tmp_path / "tokenizer.model", tmp_path / "tokenizer.json")
    theirs = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    ours = read_tokenizer(tmp_path, "tokenizer.json")
    letters = [*"abcdefgh  ,.!?'\u00e9\u4e2d\U0001f600\t", "the ", "voice ", "    "]
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = "".join(rng.choice(letters, rng.integers(1, 30)))
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
