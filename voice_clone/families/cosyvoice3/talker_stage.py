"""The prompt to speech tokens: a `voice_clone.stages.protocols.TalkerStage`. A frame is one speech token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import Pauses, TalkerRequest
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.checkpoint_folder import check_converted
from voice_clone.families.cosyvoice3.config import (
    ALIGN,
    BLOCK,
    FAMILY,
    FRAME_RATE,
    LLM,
    MEL,
    MEL_FRAMES,
    SPEAKER,
    TOKENS,
    ZERO_SHOT,
    load_config,
    stream_chunks,
    tokens_before_alignment,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.networks.talker import Talker, use_native_code
from voice_clone.families.cosyvoice3.prompt import Clip, Prompt
from voice_clone.families.cosyvoice3.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import FrameBudget, check_plan

TENSORS = ("prefix_ids", "text_ids", "heard_tokens")
CLIP = (TOKENS, MEL, SPEAKER)
ARTIFACT = ArtifactId(FAMILY, ZERO_SHOT)
PARTS = (
    TalkerPart(  # a prompt needs a few rows of the table
        place="model.", prefix="llm.model.model.", layers=("layers.",), in_file=("embed_tokens.weight",)
    ),
    TalkerPart(place="speech.", prefix="", layers=(), in_file_on_cpu=("speech_embedding.weight",)),
)
BUDGET = FrameBudget(least=375, per_token=20, most=4100)  # 15 s, 0.8 s, 164 s
LEAST_PER_TOKEN = 2  # frames of each token of the text, before which speech does not end
PAUSES = Pauses(frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}), most=5)
"""Silences and breaths; 0.2 s of them are heard."""


class CosyVoice3Talker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = (BLOCK,)
    frame_seconds = 1 / FRAME_RATE

    def __init__(self, source: Generator[Prompt], tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `CosyVoice3Prompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        prompt = Prompt(**{name: tensors[name] for name in TENSORS})
        clip = Clip(**{name: tensors[name] for name in CLIP})
        sampling = SamplingParameters.of(knobs)
        tokens = len(prompt.text_ids)
        room = self.source.max_length - self.source.talker.prompt_length(prompt)
        limits = BUDGET.limit(tokens, knobs.get("max_frames"), room)
        request = TalkerRequest(prompt, sampling, *limits, min_frames=LEAST_PER_TOKEN * tokens, pauses=PAUSES)
        cut = tokens_before_alignment(len(clip.speech_tokens)) if options.get(ALIGN) else 0
        context = clip.speech_tokens[cut:, None]
        voice: Arrays = {MEL: clip.mel[MEL_FRAMES * cut :], SPEAKER: clip.speaker}
        return StreamPlan(request, context, voice, chunk_frames=stream_chunks(len(context)))

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(0, min(reference_frames, self.source.max_length - max_frames - 32))
        ids = np.zeros(8, np.int32)
        prompt = Prompt(ids, ids, np.zeros(frames, np.uint16))
        return TalkerRequest(prompt, SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each stored voice whose clip the talker hears."""
        text_ids = self._tokenizer.text_ids("a")

        def prompt(transcript: str, artifacts: Artifacts) -> Prompt:
            return Prompt(self._tokenizer.prefix_ids(transcript), text_ids, artifacts[TOKENS])

        return known_prompts(voices, ARTIFACT, CLIP, prompt)


@dataclass(frozen=True, kw_only=True)
class SamplingParameters(OneSampling):
    """Of a sampler of the kind `NUCLEUS` with repetition-aware sampling, which plays no part without `do_sample`. The
    defaults are the official ones.
    """

    top_k: int = 25
    top_p: float = 0.8


def load_network(given: Settings) -> Talker:
    """The talker, native on a CPU."""
    settings = TalkerSettings.of(given)
    folder = settings.checkpoint_dir
    config = load_config(folder)
    check_converted(folder, LLM, f"{LLM}.pt")
    return load_talker_network(
        settings,
        empty(partial(Talker, config)),
        CheckpointFiles(folder),
        LLM,
        PARTS,
        family=FAMILY,
        sizes=config,
        use_native_code=use_native_code,
    )


def load_talker(given: Settings) -> CosyVoice3Talker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker = load_network(given)
    generator = load_generator(settings, talker, FRAME_RATE, CARD.prefix_bytes)
    return CosyVoice3Talker(generator, Tokenizer(settings.checkpoint_dir, talker.config))
