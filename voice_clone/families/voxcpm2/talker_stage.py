"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import (
    CONTEXT_FRAMES,
    FRAME_SECONDS,
    PROMPT_LATENTS,
    REFERENCE_LATENTS,
    WIDTH,
)
from voice_clone.families.voxcpm2.config import MODEL, VoxCPM2Config, check_names, load_config
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.networks.talker import Talker, use_native_code
from voice_clone.families.voxcpm2.options import CFG, CFG_VALUE, INFERENCE_TIMESTEPS, REFERENCE, STEPS, check_together
from voice_clone.families.voxcpm2.prompt import Prompt
from voice_clone.families.voxcpm2.prompt_stage import TARGET_TOKENS
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan, granted_frames

TENSORS = ("text_ids", REFERENCE_LATENTS, PROMPT_LATENTS)
FRAMES_A_TOKEN, MORE_FRAMES = 6, 10  # what the official code grants a text
PARTS = [
    TalkerPart(
        place="models.",
        prefix="",
        layers=("base_lm.layers.", "residual_lm.layers.", "feat_encoder.encoder.layers."),
        in_file=("base_lm.embed_tokens.weight",),
    ),
    TalkerPart(place="sampler.", prefix="", layers=("feat_decoder.estimator.decoder.layers.",)),
]


class VoxCPM2Talker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CARD.chunk_frames
    frame_seconds = FRAME_SECONDS

    def __init__(self, source: Generator[Prompt]) -> None:
        self.source = source

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `VoxCPM2Prompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        check_together(options)
        prompt = Prompt(**{name: tensors[name] for name in TENSORS})
        sampling = SamplingParameters(
            seed=knobs["seed"],
            cfg_value=float(options.get(CFG_VALUE, CFG)),
            inference_timesteps=options.get(INFERENCE_TIMESTEPS, STEPS),
            temperature=float(knobs.get("temperature", 1.0)),
        )
        self.source.talker.check(prompt)
        limit = frame_limit(tensors[TARGET_TOKENS], knobs.get("max_frames"), self.source.max_length - prompt.length)
        return StreamPlan(TalkerRequest(prompt, sampling, *limit), prompt.prompt_latents[-CONTEXT_FRAMES:])

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        clip = np.zeros((frames, WIDTH), np.float32)
        return TalkerRequest(Prompt(np.zeros(8, np.int32), clip, clip[:0]), SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each stored voice, in each of its modes."""

        def prompt(transcript: str, artifacts: Artifacts) -> Prompt:
            reference = artifacts[REFERENCE_LATENTS]
            return Prompt(np.zeros(1, np.int32), reference, reference[:0])

        for mode in (IN_CONTEXT, REFERENCE):
            yield from known_prompts(voices, ArtifactId(CARD.name, mode), [REFERENCE_LATENTS], prompt)


def frame_limit(target: Any, max_frames: int | None, room: int) -> tuple[int, bool]:
    """As `granted_frames`, by the official rule.

    Args:
        target: int32 [1], tokens of the text that is to be spoken.

    Raises:
        InvalidArgument: `target` is no such number.
    """
    if target.dtype != np.int32 or target.shape != (1,) or int(target[0]) < 1:
        raise InvalidArgument(f"{TARGET_TOKENS} must be INT32 [1], at least 1")
    return granted_frames(FRAMES_A_TOKEN * int(target[0]) + MORE_FRAMES, max_frames, room)


def load_network(given: Settings) -> tuple[Talker, VoxCPM2Config]:
    """The talker, native on a CPU, and the configuration.

    Raises:
        CheckpointError: as of `CheckpointFiles.load`, or the file has tensors that are none of this model's.
    """
    settings = TalkerSettings.of(given)
    config = load_config(settings.checkpoint_dir)
    talker = empty(partial(Talker, config))
    check_names(settings.checkpoint_dir, {*talker.models.state_dict(), *talker.sampler.state_dict()})
    loaded = load_talker_network(
        settings,
        talker,
        CheckpointFiles(settings.checkpoint_dir),
        MODEL,
        PARTS,
        family=CARD.name,
        sizes=config,
        use_native_code=use_native_code,
    )
    return loaded, config


def load_talker(given: Settings) -> VoxCPM2Talker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, _ = load_network(given)
    return VoxCPM2Talker(load_generator(settings, talker, 1 / FRAME_SECONDS, CARD.prefix_bytes))
