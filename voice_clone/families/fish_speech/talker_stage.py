"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import FRAME_RATE, MODEL, FishSpeechConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.talker import Talker, use_native_code
from voice_clone.families.fish_speech.prompt import ARTIFACT, CODES, Prompt
from voice_clone.families.fish_speech.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import FrameBudget, check_plan

PARTS = (
    # A prompt needs a few rows of the table of all tokens, a frame those of the codes, which the talker copies.
    TalkerPart(place="slow.", prefix=SLOW, layers=("layers.",), in_file=("embeddings.weight",)),
    TalkerPart(
        place="fast.",
        prefix=FAST,
        layers=("layers.",),
        in_file_on_cpu=("embeddings.weight", "codebook_embeddings.weight"),
    ),
)
BUDGET = FrameBudget(least=331, per_token=21, most=3528)  # 15.4 s, 1 s, 164 s


class FishSpeechTalker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CARD.chunk_frames
    frame_seconds = 1 / FRAME_RATE

    def __init__(self, source: Generator[Prompt], config: FishSpeechConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `FishSpeechPrompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        prompt = Prompt(**{name: tensors[name] for name in CARD.prompt})
        sampling = SamplingParameters.of(knobs)
        tokens = len(prompt.text_ids) - self._tokenizer.around_text
        room = self.source.max_length - self.source.talker.prompt_length(prompt)
        request = TalkerRequest(prompt, sampling, *BUDGET.limit(tokens, knobs.get("max_frames"), room))
        return StreamPlan(request, np.zeros((0, self._config.codebooks), np.uint16))

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        ids = np.zeros(8, np.int32)
        prompt = Prompt(ids, np.zeros((frames, self._config.codebooks), np.uint16), ids)
        return TalkerRequest(prompt, SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each stored voice."""
        text_ids = self._tokenizer.text_ids("a")

        def prompt(transcript: str, artifacts: Artifacts) -> Prompt:
            return Prompt(self._tokenizer.reference_ids(transcript), artifacts[CODES], text_ids)

        return known_prompts(voices, ARTIFACT, [CODES], prompt)


@dataclass(frozen=True, kw_only=True)
class SamplingParameters(OneSampling):
    """Of a sampler of the kind `FILTERS_FIRST` with repetition-aware sampling, which plays no part without `do_sample`.
    The defaults are the official ones.
    """

    top_k: int = 30
    top_p: float = 0.9


def load_network(given: Settings) -> tuple[Talker, FishSpeechConfig, Tokenizer]:
    """The talker, native on a CPU, the configuration and the tokenizer."""
    settings = TalkerSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    tokenizer = Tokenizer(settings.checkpoint_dir, checkpoint.config)
    talker = load_talker_network(
        settings,
        empty(partial(Talker, checkpoint.config, tokenizer.end_token)),
        checkpoint,
        MODEL,
        PARTS,
        family=CARD.name,
        sizes=checkpoint.config,
        use_native_code=use_native_code,
    )
    return talker, checkpoint.config, tokenizer


def load_talker(given: Settings) -> FishSpeechTalker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, config, tokenizer = load_network(given)
    generator = load_generator(settings, talker, FRAME_RATE, CARD.prefix_bytes)
    return FishSpeechTalker(generator, config, tokenizer)
