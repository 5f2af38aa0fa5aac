"""The stages of Voxtral TTS: presets and clips, what is refused, and that a seed means something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.families.voxtral import make_voxtral
from tools.families.voxtral.checkpoint_config import VOICES
from tools.families.voxtral.checkpoint_maker import make_checkpoint
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.philox import NormalDraws
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.voxtral.config import MODEL, NO_ENCODER, has_encoder
from voice_clone.families.voxtral.encoder_stage import load_encoder
from voice_clone.families.voxtral.prompt import CODES, Prompt
from voice_clone.families.voxtral.prompt_stage import VoxtralPrompt, load_prompt
from voice_clone.families.voxtral.talker_stage import VoxtralTalker, load_talker
from voice_clone.native import compilation, packed_file
from voice_clone.settings import PRECISIONS, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Arrays

pytestmark = pytest.mark.thorough

FRAMES = 12


def settings(folder: Path, **more: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "MAX_LENGTH": "256", "MAX_STREAMS": "3", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "voxtral")


@pytest.fixture(scope="module")
def presets_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint", "tiny")


@pytest.fixture(scope="module")
def prompt(folder: Path) -> VoxtralPrompt:
    return load_prompt(settings(folder))


@pytest.fixture(scope="module")
def talker(folder: Path) -> VoxtralTalker:
    made = load_talker(settings(folder))
    made.source.prepare()
    return made


def tensors(prompt: VoxtralPrompt, text: str = "Good morning.", voice: str = "casual_male") -> Arrays:
    speech = SpeechRequest(text, voice=voice)
    return prompt.prepare(speech, prompt.draft(speech), None).tensors


def clip() -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(0).standard_normal(30000)).astype(np.float32)


def spoken(generator: Generator[Prompt], *requests: TalkerRequest[Prompt]) -> list[NDArray[Any]]:
    """The frames of streams side by side."""
    for slot, request in enumerate(requests):
        generator.start(slot, request)
    made: list[list[NDArray[Any]]] = [[] for _ in requests]
    for _ in range(FRAMES):
        for slot, frame in enumerate(generator.step(range(len(requests)))):
            assert frame.payload is not None
            made[slot].append(frame.payload)
    for slot in range(len(requests)):
        generator.free(slot)
    return [np.stack(frames) for frames in made]


def request(talker: VoxtralTalker, given: Arrays, seed: int, **options: Any) -> TalkerRequest[Prompt]:
    plan = talker.plan(given, {"seed": seed, "max_frames": FRAMES}, options)
    return plan.request


def test_presets_and_clips_make_the_same_kind_of_prompt(folder: Path, prompt: VoxtralPrompt) -> None:
    encoder = load_encoder(settings(folder))
    assert encoder.modes == {"icl": ()}
    artifacts = encoder.encode(clip(), "icl")
    assert artifacts[CODES].shape == (17, 37) and artifacts[CODES].dtype == np.uint16
    speech = SpeechRequest("Good morning.", reference_audio=b"...")
    cloned = prompt.prepare(speech, prompt.draft(speech), ResolvedVoice(artifacts, None, "icl"))
    preset = tensors(prompt)
    assert prompt.presets == VOICES and preset["preset"] == VOICES.index("casual_male")
    assert cloned.tensors.keys() == preset.keys() and cloned.tensors["preset"] == -1
    assert cloned.info["reference_frames"] == 17


def test_without_encoder_weights_cloning_is_unsupported(presets_only: Path) -> None:
    encoder = load_encoder(settings(presets_only))
    assert encoder.modes == {"icl": NO_ENCODER}
    described = encoder.encode(np.zeros(0, np.float32), None)
    assert described[CODES].shape == (0, 37) and described[CODES].dtype == np.uint16


@pytest.mark.parametrize(
    "asked", [{"speaker_embedding": np.ones(64, np.float32)}, {"voice": "casual_male", "x_vector_only": True}]
)
def test_an_embedding_is_refused_with_what_would_be_right(
    presets_only: Path, prompt: VoxtralPrompt, asked: dict[str, Any]
) -> None:
    """A clip only where there are encoder weights."""
    with pytest.raises(Unsupported, match="no speaker embedding; give a voice or reference_audio"):
        prompt.draft(SpeechRequest("Good morning.", **asked))
    with pytest.raises(Unsupported) as refused:
        load_prompt(settings(presets_only)).draft(SpeechRequest("Good morning.", **asked))
    assert str(refused.value) == NO_ENCODER


def test_encoder_weights_are_found_in_shards(tmp_path: Path) -> None:
    for shape, found in (("tiny", True), ("tiny-presets", False)):
        make_checkpoint(shape, 0, tmp_path / shape, shards=3)
        assert not (tmp_path / shape / f"{MODEL}.safetensors").exists()
        assert has_encoder(tmp_path / shape) == found


def test_a_seed_determines_a_speech(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    given = tensors(prompt)
    [first] = spoken(talker.source, request(talker, given, 7))
    [again] = spoken(talker.source, request(talker, given, 7))
    np.testing.assert_array_equal(first, again)
    [other] = spoken(talker.source, request(talker, given, 8))
    assert (first != other).mean() > 0.3


def test_company_changes_no_speech(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    one, two = request(talker, tensors(prompt), 7), request(talker, tensors(prompt, "Bonjour.", "fr_female"), 9)
    [alone] = spoken(talker.source, one)
    beside, _, _ = spoken(talker.source, one, two, one)
    np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_packed_weights_speak_as_those_that_were_just_packed(
    folder: Path, prompt: VoxtralPrompt, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next start maps them, in any precision."""
    monkeypatch.setattr(packed_file, "WORTH", 0)
    monkeypatch.setattr(compilation, "writable_folder", lambda name: tmp_path)
    made = []
    for _ in range(2):
        talker = load_talker(settings(folder, PRECISION=precision))
        made += spoken(talker.source, request(talker, tensors(prompt), 7))
    np.testing.assert_array_equal(*made)
    assert len(list(tmp_path.glob("*.packed"))) == 1
    assert len(np.unique(made[0][:, 0])) > FRAMES / 2


def test_a_prefix_is_of_its_voice(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    """A voice that was read is found again, and no other voice in its place, whatever the ids of both are."""
    uncached: Generator[Prompt] = Generator(talker.source.talker, slots=1, max_length=256)
    for voice in ("it_male", "it_female", "it_male"):  # of equal numbers of positions
        given = tensors(prompt, "Buongiorno.", voice)
        [got] = spoken(talker.source, request(talker, given, 3))
        [expected] = spoken(uncached, request(talker, given, 3))
        np.testing.assert_array_equal(got, expected)


def test_guidance_is_an_option(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    given = tensors(prompt)
    default, same, other = (
        spoken(talker.source, request(talker, given, 7, **options))[0]
        for options in ({}, {"guidance": 1.2}, {"guidance": 3})
    )
    np.testing.assert_array_equal(default, same)
    assert (default != other).any()
    for value in (-0.1, 11, float("nan"), 10**400):
        with pytest.raises(InvalidArgument, match=r"guidance is .*; it must lie in 0"):
            request(talker, given, 7, guidance=value)
    with pytest.raises(InvalidArgument, match="guidance is '1'; it must be of type float"):
        request(talker, given, 7, guidance="1")


@pytest.mark.parametrize(
    "knob", [{"temperature": 0.9}, {"top_k": 5}, {"top_p": 0.9}, {"repetition_penalty": 1.1}, {"do_sample": False}]
)
def test_knobs_that_the_model_lacks_are_refused(
    talker: VoxtralTalker, prompt: VoxtralPrompt, knob: dict[str, Any]
) -> None:
    with pytest.raises(Unsupported, match=f"this model has no {next(iter(knob))}"):
        talker.plan(tensors(prompt), {"seed": 1, **knob}, {})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"language": "Chinese"}, r"speaks English \(en\), .*; the language 'Chinese' is none of them"),
        ({"speaker_embedding": np.zeros(64, np.float32), "voice": None}, "no speaker embedding"),
        ({"x_vector_only": True}, "no speaker embedding"),
        ({"options": {"speed": 2.0}}, "'speed' is unknown; this model has guidance"),
        ({"text": "a " * 2000}, "at most 1024 are allowed, split it"),
        ({"text": "a" * 70000}, "70000 characters"),
    ],
)
def test_speeches_that_are_refused(prompt: VoxtralPrompt, asked: dict[str, Any], message: str) -> None:
    speech = SpeechRequest(**{"text": "Good morning.", "voice": "casual_male", **asked})
    with pytest.raises((InvalidArgument, Unsupported), match=message):
        prompt.draft(speech)


def test_a_language_that_it_speaks_may_be_named(prompt: VoxtralPrompt) -> None:
    for language in ("Auto", "german", "pt-BR", None):
        prompt.draft(SpeechRequest("Good morning.", voice="casual_male", language=language))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("preset", np.array([20], np.int32), "preset must lie in -1..19"),
        ("preset", np.array([-1], np.int32), "either a preset or codec_codes"),
        ("preset", np.array([1, 2], np.int32), r"preset must be INT32 \[1\]"),
        (CODES, np.zeros((3, 37), np.uint16), "either a preset or codec_codes"),
        ("text_ids", np.array([10**6], np.int32), "text_ids must lie in 0.."),
        ("before_voice", np.zeros(0, np.int32), "before_voice must be INT32"),
    ],
)
def test_prompts_that_are_refused(
    talker: VoxtralTalker, prompt: VoxtralPrompt, name: str, value: NDArray[Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        request(talker, {**tensors(prompt), name: value}, 1)


def test_codes_beyond_a_codebook_are_refused(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    given = {**tensors(prompt), "preset": np.array([-1], np.int32)}
    ids = np.full((4, 37), 22, np.uint16)
    request(talker, {**given, CODES: ids}, 1)
    ids[2, 5] = 23
    with pytest.raises(InvalidArgument, match=r"codec_codes must lie in 0..22 or more, by codebook"):
        request(talker, {**given, CODES: ids}, 1)


def test_noise_is_normal_and_that_of_its_seed() -> None:
    draws = np.concatenate([NormalDraws(seed, 36).of(frame) for seed in range(40) for frame in range(40)])
    assert np.isfinite(draws).all()
    assert abs(draws.mean()) < 0.02 and abs(draws.std() - 1) < 0.02
    np.testing.assert_array_equal(NormalDraws(5, 36).of(33), NormalDraws(5, 36).of(33))
    assert len(np.unique(draws)) == draws.size
