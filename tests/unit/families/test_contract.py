"""What holds of the stages of every family, without a server."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.doubles.fakes import clip
from tests.support.families.bare import Bare, run
from tests.support.families.trials import (
    CARDS,
    CLONING,
    KNOBS,
    MUTE,
    TEXT,
    TRIALS,
    Way,
    bare,
    merged,
    other_value,
)
from tests.support.request_values import outside
from tests.support.same_audio import is_same_audio
from voice_clone import compute
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.family import Family
from voice_clone.native import packed_file
from voice_clone.request_fields import FIELDS
from voice_clone.settings import CPU_PRECISIONS
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Arrays

pytestmark = pytest.mark.thorough

SETTINGS = {"MAX_STREAMS": 4, "MAX_LENGTH": 1024}
TRANSCRIPT = "It's late, we're tired."
PACKED = [(name, precision) for name, trial in TRIALS.items() for precision in trial.precisions]


@pytest.fixture(scope="module")
def stages(checkpoint: Callable[[str], Path]) -> Callable[[str], Bare]:
    """The stages of a family, loaded once."""
    made: dict[str, Bare] = {}

    def of(family: str) -> Bare:
        if family not in made:
            made[family] = bare(family, checkpoint(family), **SETTINGS)
        return made[family]

    return of


@pytest.fixture(params=CARDS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def card(family: str) -> Family:
    return CARDS[family]


@pytest.fixture
def own(family: str, stages: Callable[[str], Bare]) -> Bare:
    return stages(family)


cloning = pytest.mark.parametrize("family", CLONING)


def voice_of(own: Bare, way: Way | None = None, seed: int = 1, seconds: float = 3.0) -> Any:
    """The voice of a way, by default of the first one."""
    trial = TRIALS[own.card.name]
    way = way or trial.ways[0]
    if way.voice is None or way.voice in trial.presets:
        return way.voice
    return own.voice(clip(seed, seconds, 24000), None if way.voice == MUTE else TRANSCRIPT)


def planned(own: Bare, way: Way | None = None, **asked: Any) -> Any:
    trial = TRIALS[own.card.name]
    way = way or trial.ways[0]
    return own.plan(
        asked.pop("text", TEXT), asked.pop("voice", voice_of(own, way)), **merged(trial.asked, way.asked, asked)
    )


def frames(own: Bare, *plans: Any) -> list[NDArray[Any]]:
    return [made for made, _ in run(own.talker.source, [plan.request for plan in plans])]


def test_a_seed_determines_a_speech(own: Bare) -> None:
    [first], [again], [other] = (frames(own, planned(own, seed=seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first[: len(other)] != other[: len(first)]).mean() > 0.3


def test_company_changes_no_frame(own: Bare) -> None:
    ways = TRIALS[own.card.name].ways
    plans = [planned(own, ways[number % len(ways)], seed=number) for number in range(4)]
    alone = [frames(own, plan)[0] for plan in plans]
    for one, beside in zip(alone, frames(own, *plans), strict=True):
        np.testing.assert_array_equal(one, beside)


def test_chunks_of_any_size_make_the_whole(own: Bare) -> None:
    plan = planned(own)
    [made] = frames(own, plan)
    whole, count = own.decode(made, plan), len(made)
    assert float(whole.std()) > 0.003
    if not TRIALS[own.card.name].finished:
        assert len(whole) == count * own.decoder.form.frame_samples
    for sizes in ([1] * count, [3, count - 3], [count - 1, 1], [2, 4, count - 6]):
        assert is_same_audio(own.decode(made, plan, sizes), whole), sizes


def test_the_decoder_keeps_streams_apart(own: Bare) -> None:
    from voice_clone.codec.chunk import Reference
    from voice_clone.lru_cache import Origin

    plans = [planned(own, seed=seed, voice=voice_of(own, seed=1 + seed)) for seed in range(3)]
    made, streams = frames(own, *plans), own.streams
    numbers = [streams.open(Reference(plan.context, plan.voice, Origin.unknown()))[0] for plan in plans]
    least = min(len(each) for each in made)
    parts = [streams.decode(numbers, [each[:least] for each in made])]
    parts.append([streams.flush(number) for number in numbers])
    for number in numbers:
        streams.close(number)
    for plan, each, *heard in zip(plans, made, *parts, strict=True):
        assert is_same_audio(np.concatenate(heard), own.decode(each[:least], plan))


@pytest.mark.parametrize(("family", "precision"), PACKED)
def test_weights_that_are_found_speak_as_those_that_were_just_packed(
    family: str,
    precision: str,
    checkpoint: Callable[[str], Path],
    stages: Callable[[str], Bare],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In any precision; the next start maps them. Company changes no frame either."""
    voice, given = voice_of(stages(family)), {**SETTINGS, "PRECISION": precision}
    [usual] = frames(stages(family), planned(stages(family), voice=voice, seed=0))
    monkeypatch.setattr(packed_file, "WORTH", 0)
    monkeypatch.setattr(compute, "writable_folder", lambda name: tmp_path)
    loaded = bare(family, checkpoint(family), **given)
    plans = [planned(loaded, voice=voice, seed=seed) for seed in range(3)]
    [first] = frames(loaded, plans[0])
    np.testing.assert_array_equal(frames(loaded, *plans)[0], first)
    assert [*tmp_path.glob("*.packed")]
    monkeypatch.setattr("voice_clone.autoregressive.stack.native_stack.pack", None)  # nothing is packed again
    if CARDS[family].autoregressive:
        with pytest.raises(TypeError):
            _ = bare(family, checkpoint(family), **given, PACKED_BYTES=0).talker
    again = bare(family, checkpoint(family), **given)
    np.testing.assert_array_equal(first, frames(again, planned(again, voice=voice, seed=0))[0])
    assert len(np.unique(first)) > 10
    if precision in CPU_PRECISIONS:
        assert first.shape != usual.shape or (first != usual).any(), "it is computed in another precision"


@pytest.mark.parametrize("family", [name for name, card in CARDS.items() if card.native_decoder])
def test_a_decoder_that_is_found_computes_as_one_that_was_packed(
    family: str, own: Bare, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = planned(own)
    [made] = frames(own, plan)
    monkeypatch.setattr(packed_file, "WORTH", 0)
    monkeypatch.setattr(compute, "writable_folder", lambda name: tmp_path)
    first = bare(family, checkpoint(family)).decode(made, plan)
    assert len([*tmp_path.glob("*.packed")]) == 1
    monkeypatch.setattr(CheckpointFiles, "load", None)  # the checkpoint's weights are not read
    np.testing.assert_array_equal(bare(family, checkpoint(family)).decode(made, plan), first)


def test_the_warm_up_fits_and_leaves_nothing(own: Bare) -> None:
    source = own.talker.source
    assert source.warm_up(own.talker.example, 32, 1.0) > 0
    [first], [again] = frames(own, planned(own)), frames(own, planned(own))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("family", [name for name in CARDS if name in CLONING or TRIALS[name].presets])
def test_voices_with_one_transcript_stay_apart(family: str, own: Bare, checkpoint: Callable[[str], Path]) -> None:
    """What was read of a prompt is used again, and never another voice's; no bit shows it. Presets are voices, too."""
    forgetful = bare(family, checkpoint(family), **SETTINGS, PREFIX_BYTES=1)
    presets, heard = TRIALS[family].presets, []
    voices = [voice_of(own, seed=seed) for seed in (1, 2, 1)] if family in CLONING else []
    for voice in [*voices, *presets[:2], *presets[:1]]:
        plan = planned(own, voice=voice)
        heard.append(frames(own, plan)[0])
        np.testing.assert_array_equal(heard[-1], frames(forgetful, plan)[0])
    assert heard[0].shape != heard[1].shape or (heard[0] != heard[1]).any()
    if own.card.prefix_bytes and own.card.name in CLONING:
        unread = [each.talker.source.start(0, plan.request) for each in (own, forgetful)]
        assert 0 < unread[0] < unread[1]
        for each in (own, forgetful):
            each.talker.source.free(0)


@cloning
def test_artifacts_are_those_of_the_card(family: str, own: Bare) -> None:
    """In type and sizes, also of an empty clip, within their limits; and one may not be too long."""
    card, transcript = own.card, TRANSCRIPT
    ten = own.artifacts(clip(3, 10.0, own.encoders[0].sample_rate), own.mode(transcript))
    assert {name: array.nbytes for name, array in ten.items()} == TRIALS[family].bytes_of_ten_seconds
    none: dict[str, NDArray[Any]] = {}
    limits: dict[str, Any] = {}
    for encoder in own.encoders:
        none |= encoder.encode(np.zeros(0, np.float32), None)
        limits |= encoder.limits(own.mode(transcript))
    for artifact in card.artifacts:
        for made in (ten[artifact.name], none[artifact.name]):
            assert made.dtype.name.upper().replace("FLOAT", "FP") == artifact.dtype
            assert made.ndim == len(artifact.shape)
            assert all(size in (-1, found) for size, found in zip(artifact.shape, made.shape, strict=True))
        if artifact.shape[0] == -1 and made.ndim > 1:
            assert len(none[artifact.name]) == 0
        below, rows = limits.get(artifact.name, (None, None))
        assert below is None or int(ten[artifact.name].max()) < below
        assert rows is None or rows[0] <= len(ten[artifact.name]) <= rows[1]
    found = {name for encoder in own.encoders for name in encoder.fingerprints}
    assert len(own.encoders) > 1 or found == set(card.fingerprints)


@cloning
def test_the_fingerprint_is_of_the_encoder(family: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def fingerprints(folder: Path) -> list[str]:
        return [each for encoder in bare(family, folder).encoders for each in encoder.fingerprints.values()]

    same, other = (TRIALS[family].make(seed, tmp_path / str(seed)) for seed in (0, 1))
    first = fingerprints(checkpoint(family))
    assert first == fingerprints(same)
    different = [one != two for one, two in zip(first, fingerprints(other), strict=True)]
    assert sum(different) >= max(1, len(first) - 1), "the form of a mel spectrogram has no weights"


@cloning
def test_voices_that_are_refused(family: str, own: Bare, checkpoint: Callable[[str], Path]) -> None:
    """Another checkpoint's, too long ones, and those without a transcript where every mode needs one."""
    voice = voice_of(own)
    for name, array in voice.artifacts.items():
        if array.ndim == 2:
            wrong = {**voice.artifacts, name: array[:, :-1]}
            with pytest.raises((Internal, InvalidArgument)):
                start(own, own.prepared(TEXT, ResolvedVoice(wrong, TRANSCRIPT, voice.mode)).tensors)
    if all(own.card.modes.values()):
        with pytest.raises((Unsupported, AssertionError)):
            own.prepared(TEXT, ResolvedVoice(voice.artifacts, None, voice.mode))
    if "max_chunk_frames" in {name for part in own.card.encoders for name in part.settings}:
        few = bare(family, checkpoint(family), MAX_CHUNK_FRAMES=max(*own.card.chunk_frames, 17))
        with pytest.raises(Unsupported, match="takes at most"):
            few.voice(clip(1, 30.0, 24000), TRANSCRIPT)
        if own.card.references or not own.card.autoregressive:
            long = ResolvedVoice(own.artifacts(clip(1, 30.0, 24000), voice.mode), TRANSCRIPT, voice.mode)
            with pytest.raises(InvalidArgument, match="takes at most"):
                few.prepared(TEXT, long)
    if control := TRIALS[family].control:
        with pytest.raises(InvalidArgument, match="reference_text holds"):
            own.prepared(TEXT, ResolvedVoice(voice.artifacts, f"Good {control} day", voice.mode))


@pytest.mark.parametrize("family", [name for name in CLONING if not all(CARDS[name].modes.values())])
def test_a_voice_without_a_transcript_speaks_where_a_mode_needs_none(own: Bare) -> None:
    assert len(frames(own, planned(own, voice=own.voice(clip(1, 3.0, 24000), None))))


def asked_of(own: Bare, **asked: Any) -> SpeechRequest:
    voice = TRIALS[own.card.name].ways[0].voice
    return SpeechRequest(**{"text": TEXT, "voice": voice, "voiceless": own.prompt.voiceless, **asked})


def test_speeches_that_are_refused_before_a_clip_is_encoded(own: Bare, card: Family) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"options": {"warble": 2.0}}, "'warble' is unknown; this model has"),
        ({"language": "Klingon"}, "Klingon"),
        ({"text": "a b " * 2000}, "at most .* are allowed, split it"),
        ({"text": "a" * 70000}, "70000"),
    ]
    source: dict[str, Any] = {"voice": None, "reference_audio": b"..."}
    if card.artifacts and "speaker_embedding" not in [each.name for each in card.artifacts]:
        wrong.append(({"voice": None, "speaker_embedding": np.zeros(64, np.float32)}, "embedding"))
    for option in card.options:  # all that may be wrong with one: tests/unit/stages/test_requests.py
        strange = 3 if option.type is str else "2"
        wrong.append(({"options": {option.name: strange}}, f"{option.name} is .*of type {option.type.__name__}"))
        if option.least is not None and option.most is not None:
            outside = (option.type(option.least) - 1, option.type(option.most) + 1)
            wrong += [({"options": {option.name: value}}, f"{option.name} is .*lie in") for value in outside]
        if option.words:
            wrong.append(({"options": {option.name: " ()"}}, f"{option.name} is blank"))
    if control := TRIALS[card.name].control:
        wrong.append(({"text": f"Good {control} morning"}, "text holds .* a control token; remove it"))
        if card.artifacts:
            wrong.append(({**source, "reference_text": f"a {control}"}, "reference_text holds .* a control token"))
        if card.instructions:
            wrong.append(({"options": {card.instructions: f"a {control}"}}, "holds|unknown"))
    if "reference_text" in str(card.modes) and not TRIALS[card.name].late:
        wrong.append(({**source, "reference_text": "a b " * 2000}, "reference_text has .* split it"))
    for given, message in wrong:
        with pytest.raises((InvalidArgument, Unsupported), match=message):
            own.prompt.draft(asked_of(own, **given))


def test_a_language_that_it_speaks_may_be_named(own: Bare) -> None:
    """`Auto` always; others by name or code, if it takes any at all."""
    own.prompt.draft(asked_of(own, language="Auto"))
    taken = 0
    for language in ("german", "de-DE", "de"):
        with contextlib.suppress(Unsupported):
            own.prompt.draft(asked_of(own, language=language))
            taken += 1
    assert taken in (0, 3)


def start(own: Bare, tensors: Arrays, **knobs: Any) -> None:
    """A stream of a prompt, which is not run."""
    own.talker.source.start(0, own.talker.plan(tensors, {"seed": 0, "max_frames": 9, **knobs}, {}).request)
    own.talker.source.free(0)


def test_knobs_that_are_refused(own: Bare, card: Family) -> None:
    tensors = own.prepared(TEXT, voice_of(own)).tensors
    for each in FIELDS:
        for value in outside(each) if each.name in (*card.knobs, "seed", "max_frames") else ():
            with pytest.raises(InvalidArgument, match=each.name):
                start(own, tensors, **{each.name: value})
    for name, value in KNOBS.items():
        if name not in card.knobs:
            with pytest.raises(Unsupported, match=f"has no {name}|whole text first"):
                own.talker.plan(tensors, {"seed": 0, name: value}, {})
    for option in card.options:
        if option.most is not None:
            with pytest.raises(InvalidArgument, match=option.name):
                own.talker.plan(tensors, {"seed": 0}, {option.name: option.type(option.most) + 1})


def test_each_knob_of_a_card_is_read(own: Bare, card: Family) -> None:
    """Its talker's `sampling` has it; any other would be taken and forgotten."""
    read = {each.name for each in dataclasses.fields(own.talker.sampling)}
    assert card.knobs.keys() - read <= {"non_streaming_mode"}, "add a field to the talker's `sampling`"


def test_each_option_of_a_card_counts(own: Bare, card: Family) -> None:
    voice = voice_of(own, seconds=5.0)  # CosyVoice3 aligns behind a longer clip alone
    plan = planned(own, voice=voice)
    usual = own.decode(frames(own, plan)[0], plan)
    for option in card.options:
        if (value := other_value(card.name, option)) is not None:
            other = planned(own, voice=voice, options={option.name: value})
            heard = own.decode(frames(own, other)[0], other)
            assert not is_same_audio(heard, usual), f"options.{option.name} changes nothing: who reads it?"


@pytest.mark.parametrize("family", [name for name, card in CARDS.items() if card.autoregressive])
def test_a_text_has_a_budget_of_frames(own: Bare) -> None:
    """The caller's limit counts below it."""
    tensors = own.prepared(TEXT, voice_of(own)).tensors
    granted = own.talker.plan(tensors, {"seed": 0}, {}).request
    fewer = own.talker.plan(tensors, {"seed": 0, "max_frames": 5}, {}).request
    assert granted.budgeted and granted.max_frames > 5 and (fewer.max_frames, fewer.budgeted) == (5, False)
    if budget := own.card.budget:  # up to a second a token, and no text is cut off before 15 s, or as upstream has it
        per_token, least, most = (
            frames * own.talker.frame_seconds for frames in (budget.per_token, budget.least, budget.most)
        )
        assert (0.35 if budget.more else 0.75) < per_token < 1.05
        assert (budget.more or 14.9 < least < 15.5) and most > 163


def test_prompts_that_are_refused(own: Bare, card: Family) -> None:
    """Each tensor is looked at: it may not be missing, of another type or of other numbers."""
    tensors, unlimited = own.prepared(TEXT, voice_of(own)).tensors, TRIALS[card.name].unlimited
    start(own, tensors)
    for name in card.prompt:
        array = tensors[name]
        with pytest.raises(InvalidArgument, match=f"prompt lacks {name}"):
            start(own, {each: value for each, value in tensors.items() if each != name})
        if name not in ("language_id", "speaker_id"):  # numbers of any type
            with pytest.raises(InvalidArgument):
                start(own, {**tensors, name: array.astype(np.float64)})
        if array.size and name not in unlimited:
            wrong = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max
            with pytest.raises(InvalidArgument):
                start(own, {**tensors, name: np.full_like(array, wrong)})


def test_a_checkpoint_says_what_the_card_says(own: Bare, card: Family) -> None:
    prompt, trial = own.prompt, TRIALS[card.name]
    assert (prompt.appends, prompt.voiceless) == (card.appends, card.voiceless)
    assert tuple(prompt.presets) == trial.presets and bool(trial.presets) <= card.presets
    assert own.decoder.form.payload.width == own.talker.source.payload.width
    if card.streams == "states":
        assert (own.decoder.decoder.device is None) == card.native_decoder, "native code works on numpy's arrays"
