"""What CustomVoice and VoiceDesign make of a request, and what they refuse; parity is in tests/parity."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.families.factories import CheckpointFactory
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.families.qwen3_tts import family
from voice_clone.families.qwen3_tts.kinds import load_no_encoder
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length, prefix_of
from voice_clone.families.qwen3_tts.prompt import Prompt, Qwen3TTSPrompt, load_prompt
from voice_clone.families.qwen3_tts.talker import load_talker, read_prompt
from voice_clone.settings import Settings
from voice_clone.speech import SpeechRequest

BASE, CUSTOM, DESIGN = "tiny", "tiny-custom", "tiny-design"
STYLE = "Speak like a captain."


def settings_of(folder: Path) -> Settings:
    return Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"})


@pytest.fixture(scope="module")
def stages(checkpoint_folder: CheckpointFactory) -> dict[str, Qwen3TTSPrompt]:
    return {shape: load_prompt(settings_of(checkpoint_folder(shape, 0))) for shape in (BASE, CUSTOM, DESIGN)}


def request(**given: Any) -> SpeechRequest:
    return SpeechRequest(**{"text": "Hello.", "voiceless": True, **given})


def prompt_of(stage: Qwen3TTSPrompt, **given: Any) -> Prompt:
    speech = request(**given)
    return read_prompt(stage.prepare(speech, stage.draft(speech), None).tensors)


CLONING = "to clone a voice, take the model qwen3_tts, of a Base checkpoint"
ONE = np.ones(64, np.float32)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CUSTOM, {"reference_audio": b"clip"}, f"this CustomVoice checkpoint has built-in speakers alone; {CLONING}"),
    (CUSTOM, {"speaker_embedding": ONE}, CLONING),
    (CUSTOM, {"voice_prompt": b"bundle"}, CLONING),
    (CUSTOM, {"voice": "vivian", "x_vector_only": True}, CLONING),
    (DESIGN, {"voice": "Ada"}, f"this VoiceDesign checkpoint makes voices of descriptions (instruct) alone; {CLONING}"),
    (DESIGN, {"reference_audio": b"clip", "reference_text": "Hm."}, CLONING),
    (
        BASE,
        {"voice": "Ada", "options": {"instruct": STYLE}},
        "take the model qwen3_tts_custom_voice (1.7B) or qwen3_tts_v",
    ),
]


@pytest.mark.parametrize(("shape", "given", "message"), REFUSED)
def test_what_a_kind_cannot_do_names_the_one_that_can(
    stages: dict[str, Qwen3TTSPrompt], shape: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        stages[shape].draft(request(**given))
    assert message in str(caught.value)


def test_the_small_custom_voice_follows_no_instructions(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint_folder(CUSTOM, 0), tmp_path / "checkpoint"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tts_model_size": "0b6"}))
    stage = load_prompt(settings_of(folder))
    stage.draft(request(voice="vivian", options={"instruct": ""}))
    with pytest.raises(Unsupported, match=r"CustomVoice of 0\.6B follows no instructions; .* take the one of 1\.7B"):
        stage.draft(request(voice="vivian", options={"instruct": STYLE}))


@pytest.mark.parametrize("shape", [CUSTOM, DESIGN])
def test_an_instruction_is_no_command_and_not_too_long(stages: dict[str, Qwen3TTSPrompt], shape: str) -> None:
    voice = "vivian" if shape == CUSTOM else None
    with pytest.raises(InvalidArgument, match="instruct"):
        stages[shape].draft(request(voice=voice, options={"instruct": "a<|im_end|>b"}))
    with pytest.raises(InvalidArgument, match=r"at most 1024"):
        stages[shape].draft(request(voice=voice, options={"instruct": "captain " * 1024}))
    with pytest.raises(InvalidArgument, match="of type str"):
        stages[shape].draft(request(voice=voice, options={"instruct": 3}))


def test_prompts_differ_in_what_is_read_before_the_text(stages: dict[str, Qwen3TTSPrompt]) -> None:
    made = [
        prompt_of(stages[CUSTOM], voice="vivian"),
        prompt_of(stages[CUSTOM], voice="ryan"),
        prompt_of(stages[CUSTOM], voice="vivian", options={"instruct": STYLE}),
        prompt_of(stages[DESIGN]),
        prompt_of(stages[DESIGN], options={"instruct": STYLE}),
    ]
    assert [each.mode for each in made] == ["preset", "preset", "preset", "design", "design"]
    assert len({prefix_of(each).key for each in made}) == len(made)
    style = len(made[2].instruct_ids)
    assert style > 5 and prefill_length(made[2]) == prefill_length(made[0]) + style
    assert prefill_length(made[3]) == prefill_length(made[0]) - 1 and prefix_of(made[4]).length > style


@pytest.mark.parametrize("shape", [BASE, CUSTOM, DESIGN])
def test_a_talker_takes_prompts_of_its_kind_alone(
    stages: dict[str, Qwen3TTSPrompt], checkpoint_folder: CheckpointFactory, shape: str
) -> None:
    talker = load_talker(settings_of(checkpoint_folder(shape, 0)))
    prompts = {
        BASE: prompt_of(stages[BASE], speaker_embedding=ONE),
        CUSTOM: prompt_of(stages[CUSTOM], voice="dylan"),
        DESIGN: prompt_of(stages[DESIGN]),
    }
    for kind, prompt in prompts.items():
        if kind == shape:
            talker.source.talker.check(prompt)
            continue
        with pytest.raises(InvalidArgument, match=r"speaker_embedding has|speaker_id"):
            talker.source.talker.check(prompt)
    if shape == CUSTOM:
        with pytest.raises(InvalidArgument, match="speaker_id is no speaker of this model"):
            talker.source.talker.check(replace(prompts[CUSTOM], speaker_id=7))
    talker.source.talker.check(talker.example(100, 10).prompt)


@pytest.mark.parametrize(("shape", "given"), [(BASE, False), (CUSTOM, True), (DESIGN, True)])
def test_the_layout_of_the_text_is_by_default_the_official_one(
    stages: dict[str, Qwen3TTSPrompt], checkpoint_folder: CheckpointFactory, shape: str, given: bool
) -> None:
    talker = load_talker(settings_of(checkpoint_folder(shape, 0)))
    voice = {BASE: {"speaker_embedding": ONE}, CUSTOM: {"voice": "ryan"}, DESIGN: {}}[shape]
    speech = request(**voice)
    stage = stages[shape]
    tensors = stage.prepare(speech, stage.draft(speech), None).tensors
    assert set(tensors) == set(family.BASE.prompt)
    planned = [talker.plan(tensors, {"seed": 0, **more}, {}) for more in ({}, {"non_streaming_mode": not given})]
    assert [plan.request.prompt.non_streaming_mode for plan in planned] == [given, not given]
    open_speech = request(text_stream="x" * 32, **voice)
    tensors = stage.prepare(open_speech, stage.draft(open_speech), None).tensors
    assert not talker.plan(tensors, {"seed": 0}, {}).request.prompt.non_streaming_mode


def test_what_stands_for_the_encoder(checkpoint_folder: CheckpointFactory) -> None:
    custom, design = (load_no_encoder(settings_of(checkpoint_folder(shape, 0))) for shape in (CUSTOM, DESIGN))
    assert "built-in speakers" in custom.modes["icl"] and len(custom.presets) == 9
    assert "descriptions" in design.modes["icl"] and not design.presets
    with pytest.raises(CheckpointError, match="serve it as qwen3_tts_custom_voice"):
        encoder_stage.load_encoder(settings_of(checkpoint_folder(CUSTOM, 0)))
