"""The prompt and talker stages of OmniVoice: modes, chunks, options, what is refused, and what the decoder gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.omnivoice_talkers import BareTalker, make_omnivoice_talker, settings_of, some_voice
from tests.support.pretend_gpu import pretend_gpu
from voice_clone import compute
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.omnivoice.config import CODEBOOKS
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.families.omnivoice.instruct import MOST_HINTS, instruction
from voice_clone.families.omnivoice.prompt import Prompt
from voice_clone.families.omnivoice.talker import load_talker
from voice_clone.native import packed_file
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared

pytestmark = pytest.mark.thorough

LONG = "We read the same story twice, aloud. Then we asked which one they liked; nobody knew! So we read it again."
CUT: dict[str, Any] = {"audio_chunk_duration": 2.0, "audio_chunk_threshold": 3.0, "num_step": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_omnivoice_talker(tmp_path_factory.mktemp("omnivoice") / "checkpoint")


@pytest.fixture(scope="module")
def bare(folder: Path) -> BareTalker:
    return BareTalker(folder)


def prepared(
    bare: BareTalker, voice: ResolvedVoice | None = None, text: str = "Good morning.", **asked: Any
) -> Prepared:
    speech = SpeechRequest(text, voiceless=True, **asked)
    return bare.prompt.prepare(speech, bare.prompt.draft(speech), voice)


def test_the_mode_says_where_the_voice_comes_from(bare: BareTalker) -> None:
    words: dict[str, Any] = {"options": {"instruct": "female"}}
    found = [prepared(bare).info, prepared(bare, **words).info, prepared(bare, some_voice(30), **words).info]
    assert [info["mode"] for info in found] == ["auto", "instruct", "icl"]
    assert [info["reference_frames"] for info in found] == [0, 0, 30]
    assert found[0]["planned_frames"] > 0 and found[0]["text_chunks"] == 1 and found[0]["text_tokens"] > 2


def test_a_short_text_without_a_voice_is_warned_of(bare: BareTalker) -> None:
    short: dict[str, Any] = {"options": {"duration": 1.0}}
    assert [each["code"] for each in prepared(bare, **short).info["warnings"]] == ["short_text"]
    assert "warnings" not in prepared(bare, some_voice(30), **short).info
    assert "warnings" not in prepared(bare, text=LONG).info


def test_a_long_text_is_spoken_in_chunks_that_hear_the_same_voice(bare: BareTalker) -> None:
    plan = bare.plan(LONG, some_voice(40), **CUT)
    chunks = plan.request.prompt.lengths
    assert len(chunks) > 2 and plan.voice["text_chunks"].tolist() == [frames for _, frames in chunks]
    [runs] = bare.runs([plan.request])
    assert [len(run) for run in runs] == [frames for _, frames in chunks]
    auto = bare.plan(LONG, **CUT).request.prompt
    before = [positions - len(ids) for (positions, _), ids in zip(auto.lengths, auto.chunks, strict=True)]
    assert before == [0, *[auto.frames[0]] * (len(before) - 1)]


def test_the_language_is_read(bare: BareTalker) -> None:
    ids = [prepared(bare, language=each).tensors["ids"].tolist() for each in ("English", "en-US", "de", "auto", None)]
    assert ids[0] == ids[1] != ids[2] and ids[3] == ids[4] != ids[0]


def test_the_decoder_gets_the_level_and_the_joints(bare: BareTalker) -> None:
    assert FinishPlan.of(bare.plan("Good morning.").voice).ref_rms == 0
    plan = bare.plan(LONG, some_voice(40, rms=0.25), remove_silence=False, **CUT)
    frames = tuple(plan.request.prompt.frames.tolist())
    finish = FinishPlan.of(plan.voice)
    assert finish == FinishPlan(0.25, frames, False)
    assert FinishPlan.of(bare.plan(LONG).voice).remove_silence
    assert plan.context.shape == (0, CODEBOOKS) and plan.context.dtype == np.uint16


def test_a_stream_is_cut_behind_max_frames(bare: BareTalker) -> None:
    tensors = prepared(bare, some_voice(40), LONG, options=CUT).tensors
    first = tensors["frames"].tolist()[0]
    plan = bare.stage.plan(tensors, {"seed": 0, "max_frames": first + 3}, CUT)
    assert FinishPlan.of(plan.voice).text_chunks == (first, 3)
    [runs] = bare.runs([plan.request])
    assert [len(run) for run in runs] == [first, 3]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"options": {"instruct": "mael"}}, InvalidArgument, "did you mean 'male'"),
    ({"options": {"instruct": "male, female"}}, InvalidArgument, "contradict each other"),
    ({"language": "Klingon"}, Unsupported, "does not know the language 'Klingon'"),
    ({"reference_audio": b"x", "reference_text": "<|denoise|> a"}, InvalidArgument, "the reference_text holds"),
]


@pytest.mark.parametrize(("asked", "kind", "what"), REFUSED, ids=[what for *_, what in REFUSED])
def test_what_is_refused_before_the_voice_is_known(
    bare: BareTalker, asked: dict[str, Any], kind: type[Exception], what: str
) -> None:
    speech = SpeechRequest(**{"text": "Good morning.", "voiceless": True, **asked})
    with pytest.raises(kind, match=what.replace("|", r"\|")):
        bare.prompt.draft(speech)


def test_an_instruction_may_be_long() -> None:
    """One request must not hold up the others: a look for each blank behind each blank would take hours."""
    blanks = " " * 1_000_000
    assert instruction(f"male{blanks},{blanks}low pitch", "Good morning.") == "male, low pitch"
    with pytest.raises(InvalidArgument, match=r"unknown 'male +', 'x'") as caught:
        instruction(f"male{blanks}low pitch," + "x, " * 100_000, "Good morning.")
    assert str(caught.value).count("'x'") == MOST_HINTS - 1


WRONG: list[tuple[str, Any, str]] = [
    ("ids", np.zeros(4, np.int64), "ids must be INT32"),
    ("ids", np.zeros(0, np.int32), "not empty"),
    ("id_counts", np.array([3], np.int32), "the sum of id_counts"),
    ("id_counts", np.array([2, 2], np.int32), "the same length"),
    ("frames", np.array([0], np.int32), "above 0"),
    ("codec_codes", np.full((2, 8), 1024, np.uint16), "codec_codes must be UINT16"),
    ("codec_codes", np.zeros((2, 7), np.uint16), "codec_codes must be UINT16"),
]


@pytest.mark.parametrize(("name", "value", "what"), WRONG)
def test_wrong_prompts_are_refused(name: str, value: Any, what: str) -> None:
    right = {
        "ids": np.zeros(4, np.int32),
        "id_counts": np.array([4], np.int32),
        "frames": np.array([2], np.int32),
        "codec_codes": np.zeros((0, 8), np.uint16),
    }
    with pytest.raises(InvalidArgument, match=what):
        Prompt(**{**right, name: value})


def test_ids_beyond_the_vocabulary_are_refused(bare: BareTalker) -> None:
    tensors = prepared(bare).tensors
    ids = {**tensors, "ids": np.full_like(tensors["ids"], 1280)}
    with pytest.raises(InvalidArgument, match=r"ids must lie in 0\.\.1279"):
        bare.source.start(0, bare.stage.plan(ids, {"seed": 0}, {}).request)


def test_a_warm_up_fits_any_length(folder: Path) -> None:
    talker = load_talker(settings_of(folder, MAX_LENGTH="100"))
    assert talker.source.warm_up(talker.example, 32, 10.0) > 0


@pytest.mark.parametrize(("precision", "least"), [("bf16", 0.95), ("int8", 0.9), ("int4", 0.7)])
def test_smaller_weights_speak_almost_the_same_and_are_found_by_the_next_start(
    folder: Path, bare: BareTalker, precision: str, least: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packed_file, "WORTH", 0)
    monkeypatch.setattr(compute, "writable_folder", lambda name: tmp_path)
    plan = bare.plan("A voice is known before the first word ends.", some_voice(30), 1, num_step=4).request
    made = [BareTalker(folder, PRECISION=precision) for _ in range(2)]
    [exact], *found = bare.speak(plan), *(each.speak(plan)[0] for each in made)
    np.testing.assert_array_equal(*found)
    assert len(list(tmp_path.glob("*.packed"))) == 1
    rows = [each.network.embed(torch.zeros(8, 20, dtype=torch.long)) for each in (bare, made[0])]
    likely = [each.network.logits([row], [20])[0].argmax(-1) for each, row in zip((bare, made[0]), rows, strict=True)]
    assert (likely[0] == likely[1]).float().mean() > least
    assert found[0].shape == exact.shape and not np.array_equal(found[0], exact)


def test_a_gpu_makes_the_codes_of_a_cpu(folder: Path, bare: BareTalker) -> None:
    """One that is pretended, in fp32: streams run together."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("Good morning.", {"num_step": 4}),
        ("So long a day.", {"num_step": 6, "class_temperature": 0.5}),
    ]
    plans = [bare.plan(text, some_voice(20), 3, **options).request for text, options in asked]
    expected = [bare.speak(plan)[0] for plan in plans]
    with pretend_gpu():
        assert not load_talker(settings_of(folder, DEVICE="cuda")).source.deterministic
        found = BareTalker(folder, together=True, DEVICE="cuda").speak(*plans)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
