"""What the contract's tests need to know of each family besides its card: checkpoints, and requests that speak soon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.families.bare import Bare
from tests.support.families.cosyvoice3 import make_cosyvoice3
from tests.support.families.fish import make_fish
from tests.support.families.omnivoice import make_omnivoice
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.families.voxtral import make_voxtral
from tests.support.request_values import another
from tools.example_family import checkpoint_maker as chirp
from tools.families.pocket_tts import checkpoint_maker as pocket_tts
from tools.families.qwen3_tts.checkpoint_config import SPEAKERS
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from tools.families.voxtral.checkpoint_config import VOICES
from voice_clone import request_fields
from voice_clone.family import Family, Option
from voice_clone.request_fields import FIELDS
from voice_clone.settings import PRECISIONS
from voice_clone_server.families.cards import PACKAGES, cards, code_of

EXAMPLE = "tools.example_family"
TEXT = "Good morning."
ADA, MUTE = "Ada", "Mute"
"""Voices of one clip, with its transcript and without."""


class Way(NamedTuple):
    """A way to speak: the mode that `info` shows, the voice, and what else is asked for."""

    mode: str
    voice: str | None = ADA
    asked: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A family under test.

    Attributes:
        make: writes a small checkpoint of a seed into a new folder.
        asked: knobs and options of a request that speaks soon.
        ways: to speak; a different speech comes of each.
        knobs: values in place of those of `KNOBS`.
        options: in place of `another` value of an option; None: it changes no speech of these checkpoints and texts.
        control: a token that no text may hold.
        bytes_of_ten_seconds: of the artifacts, by name.
        presets: of the checkpoint.
        longest: seconds of a clip; a longer one is refused with `too_long`.
        long: knobs and options of a speech that is not over soon.
        precisions: that native code computes its talker in.
        unlimited: tensors of a prompt that may hold any numbers.
        finished: whether its samples are cut or lengthened after they were decoded.
        late: whether its prompt stage looks at a transcript after the clip was encoded.
    """

    make: Callable[[int, Path], Path]
    asked: Mapping[str, Any]
    ways: tuple[Way, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    control: str = ""
    bytes_of_ten_seconds: Mapping[str, int] = field(default_factory=dict)
    presets: tuple[str, ...] = ()
    longest: float = 60.0
    too_long: str = ""
    long: Mapping[str, Any] = field(default_factory=lambda: {"max_frames": 3000})
    precisions: tuple[str, ...] = PRECISIONS
    unlimited: tuple[str, ...] = ()
    finished: bool = False
    late: bool = False


KNOBS: dict[str, Any] = {
    **{each.name: another(each) for each in FIELDS if each.name in request_fields.KNOBS},
    "top_p": 0.2,
    "repetition_penalty": 1.9,
}
"""A value of each that changes what is heard, without those that all families have."""
del KNOBS["seed"], KNOBS["max_frames"]


def _qwen3_tts(shape: str) -> Callable[[int, Path], Path]:
    def make(seed: int, folder: Path) -> Path:
        make_checkpoint(shape, seed, folder)
        return folder

    return make


def _pocket_tts(seed: int, folder: Path) -> Path:
    pocket_tts.make_checkpoint("tiny", seed, folder, "fp32")
    return folder


SUBTALKER = {
    "subtalker_do_sample": False,
    "subtalker_temperature": 1.9,
    "subtalker_top_k": 2,
    "subtalker_top_p": 0.3,
}
WHISPER = "Whisper, and be quick."
TRIALS = {
    "chirp": Trial(
        make=chirp.make_checkpoint,
        asked={"max_frames": 31},
        ways=(Way("clone"), Way("clone", asked={"options": {"vibrato": 4.0}})),
        bytes_of_ten_seconds={"timbre": 640},
        long={"max_frames": 900, "top_k": 5},
        precisions=(),
        unlimited=("text", "transcript"),
        late=True,
    ),
    "cosyvoice3": Trial(
        make=lambda seed, folder: make_cosyvoice3(folder, seed=seed),
        asked={"max_frames": 70},
        ways=(
            Way("zero_shot"),
            Way("cross_lingual", MUTE),
            Way("instruct", asked={"options": {"instruct": WHISPER}}),
            Way("zero_shot", asked={"options": {"align": True}}),
        ),
        options={"instruct": WHISPER},
        control="<|endofprompt|>",
        bytes_of_ten_seconds={"speech_tokens": 500, "speaker": 768, "mel": 80_000},
        unlimited=("mel", "speaker"),
        longest=30.0,
        too_long="CosyVoice3 takes at most 30 s",
    ),
    "fish_speech": Trial(
        make=lambda seed, folder: make_fish(folder, seed=seed, dtype="bf16"),
        asked={"max_frames": 24},
        ways=(Way("icl"), Way("icl", asked={"temperature": 1.4, "top_p": 0.6})),
        control="<|im_end|>",
        bytes_of_ten_seconds={"codec_codes": 4320},
        longest=35.0,
        too_long="this family takes at most 768",
    ),
    "omnivoice": Trial(
        make=lambda seed, folder: make_omnivoice(folder, seed=seed),
        asked={"options": {"num_step": 6}},
        ways=(
            Way("icl"),
            Way("icl", asked={"options": {"instruct": "female, low pitch", "class_temperature": 0.7}}),
            Way("instruct", None, {"options": {"instruct": "female, low pitch"}}),
            Way("auto", None, {"options": {"speed": 0.8}}),
        ),
        options={
            "instruct": "whisper",
            "num_step": 7,
            "guidance_scale": 0.0,
            "t_shift": 0.9,
            "layer_penalty_factor": 0.0,
            "position_temperature": 0.0,
            "class_temperature": 1.0,
            "duration": 1.0,
            "speed": 2.0,
            "denoise": False,
            "audio_chunk_duration": None,  # of long texts
            "audio_chunk_threshold": None,
            "remove_silence": None,
        },
        control="<|text_end|>",
        bytes_of_ten_seconds={"codec_codes": 4000, "ref_rms": 4},
        long={"max_frames": 3000, "options": {"num_step": 1000, "duration": 20.0}},
        precisions=PRECISIONS[1:],
        finished=True,
        longest=30.0,
        too_long="this family takes at most 768",
    ),
    "pocket_tts": Trial(
        make=_pocket_tts,
        asked={"max_frames": 24},
        ways=(
            Way("reference"),
            Way("reference", asked={"options": {"steps": 4}}),
            Way("reference", asked={"temperature": 1.5}),
        ),
        options={"steps": 3, "end_threshold": None, "frames_after_end": None},  # no speech ends within 24 frames
        bytes_of_ten_seconds={"latents": 16_128},
        longest=30.0,
        too_long="at most 30 s",
    ),
    "qwen3_tts": Trial(
        make=_qwen3_tts("tiny"),
        asked={"max_frames": 24},
        ways=(Way("icl"), Way("x_vector", MUTE), Way("icl", asked={"language": "German", "top_k": 3})),
        knobs={"non_streaming_mode": True},
        options={**SUBTALKER, "instruct": None},  # Base follows none
        bytes_of_ten_seconds={"speaker_embedding": 256, "codec_codes": 8000},
        late=True,
    ),
    "qwen3_tts_custom_voice": Trial(
        make=_qwen3_tts("tiny-custom"),
        asked={"max_frames": 24},
        ways=(
            Way("preset", "vivian"),
            Way("preset", "dylan"),
            Way("preset", "vivian", {"options": {"instruct": WHISPER}}),
        ),
        options={**SUBTALKER, "instruct": WHISPER},
        presets=tuple(SPEAKERS),
    ),
    "qwen3_tts_voice_design": Trial(
        make=_qwen3_tts("tiny-design"),
        asked={"max_frames": 24},
        ways=(Way("design", None), Way("design", None, {"options": {"instruct": WHISPER}})),
        options={**SUBTALKER, "instruct": WHISPER},
    ),
    "voxcpm2": Trial(
        make=lambda seed, folder: make_voxcpm2(folder, seed=seed),
        asked={"max_frames": 14},
        ways=(
            Way("ref_continuation"),
            Way("continuation", asked={"options": {"mode": "continuation"}}),
            Way("reference", asked={"options": {"mode": "reference"}}),
            Way("reference", MUTE, {"options": {"style": WHISPER}}),
            Way("zero_shot", None),
            Way("zero_shot", None, {"options": {"style": "an old man, gently"}}),
            Way("ref_continuation", asked={"options": {"cfg_value": 1.5, "inference_timesteps": 6}}),
        ),
        options={"cfg_value": 1.5, "inference_timesteps": 20, "mode": "continuation", "style": WHISPER},
        control="</s>",
        bytes_of_ten_seconds={"reference_latents": 64_512, "prompt_latents": 64_512},
        unlimited=("target_tokens",),
    ),
    "voxtral": Trial(
        make=lambda seed, folder: make_voxtral(folder, "tiny", seed=seed),
        asked={"max_frames": 24},
        ways=(
            Way("icl"),
            Way("preset", "casual_male"),
            Way("preset", "de_female"),
            Way("icl", asked={"options": {"guidance": 3.0}}),
        ),
        options={"guidance": 3.0},
        bytes_of_ten_seconds={"codec_codes": 9324},
        presets=VOICES,
    ),
}
CARDS: dict[str, Family] = {card.name: card for card in cards([*PACKAGES, EXAMPLE])}
"""All families of the package, and the example of docs/adding_a_family.md."""
assert CARDS.keys() == TRIALS.keys(), f"give each card an entry in TRIALS: {sorted(CARDS.keys() ^ TRIALS.keys())}"
CLONING = tuple(name for name, card in CARDS.items() if card.artifacts)


def other_value(family: str, option: Option) -> Any:
    """As `Trial.options` says."""
    options = TRIALS[family].options
    return options[option.name] if option.name in options else another(option)


def package_of(family: str) -> str:
    """Of a family's code."""
    return EXAMPLE if family == "chirp" else code_of(family)


def bare(family: str, checkpoint: Path, **settings: Any) -> Bare:
    """The stages of a family."""
    return Bare(CARDS[family], package_of(family), checkpoint, **settings)


def merged(*asked: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs and options of several requests in one; the last one counts."""
    options = {name: value for each in asked for name, value in each.get("options", {}).items()}
    knobs = {name: value for each in asked for name, value in each.items() if name != "options"}
    return knobs | ({"options": options} if options else {})
