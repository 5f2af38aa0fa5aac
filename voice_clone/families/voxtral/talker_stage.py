"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.voxtral.checkpoint import BACKBONE, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.config import MODEL, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.networks.flow_head import GUIDANCE, SamplingParameters
from voice_clone.families.voxtral.networks.talker import Talker, use_native_code
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET, Prompt
from voice_clone.families.voxtral.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import FrameBudget, check_plan

ARTIFACT = ArtifactId(CARD.name, IN_CONTEXT)
CLONED = np.array([NO_PRESET], np.int32)
BUDGET = FrameBudget(least=192, per_token=12, most=2048)  # 15.4 s, 1 s, 164 s, the most that upstream makes


class VoxtralTalker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CARD.chunk_frames

    def __init__(self, source: Generator[Prompt], config: VoxtralConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self.frame_seconds = 1 / config.frame_rate
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `VoxtralPrompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        prompt = Prompt(**{name: tensors[name] for name in CARD.prompt})
        sampling = SamplingParameters(seed=knobs["seed"], guidance=options.get("guidance", GUIDANCE))
        self.source.talker.check(prompt)  # its length is that of its voice
        tokens = len(prompt.text_ids) - self._tokenizer.around_text
        room = self.source.max_length - self.source.talker.prompt_length(prompt)
        request = TalkerRequest(prompt, sampling, *BUDGET.limit(tokens, knobs.get("max_frames"), room))
        return StreamPlan(request, np.zeros((0, self._config.codebooks), np.uint16))

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        codes = np.zeros((frames, self._config.codebooks), np.uint16)
        prompt = Prompt(self._tokenizer.before_voice, np.zeros(8, np.int32), CLONED, codes)
        return TalkerRequest(prompt, SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each stored voice."""
        before, text_ids = self._tokenizer.before_voice, self._tokenizer.text_ids("a")

        def prompt(transcript: str, artifacts: Artifacts) -> Prompt:
            return Prompt(before, text_ids, CLONED, artifacts[CODES])

        return known_prompts(voices, ARTIFACT, [CODES], prompt)


def load_network(given: Settings) -> tuple[Talker, VoxtralConfig]:
    """The talker, native on a CPU, with its voices, and the configuration."""
    settings = TalkerSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    talker = load_talker_network(
        settings,
        empty(partial(Talker, checkpoint.config)),
        checkpoint,
        MODEL,
        _parts(checkpoint.config),
        family=CARD.name,
        sizes=checkpoint.config,
        use_native_code=use_native_code,
    )
    talker.set_voices(checkpoint.voices())
    return talker, checkpoint.config


def _parts(config: VoxtralConfig) -> list[TalkerPart]:
    projections = tuple(f"layers.{n}.{part}." for n in range(config.flow.n_layers) for part in ("self_attn", "mlp"))
    return [
        TalkerPart(place="backbone.", prefix=BACKBONE, layers=("layers.",)),
        TalkerPart(  # a prompt needs a few rows of the tables, a frame a few of the second one
            place="tables.",
            prefix=TABLES,
            layers=(),
            in_file=("tok_embeddings.weight",),
            in_file_on_cpu=("audio_codebook_embeddings.embeddings.weight",),
        ),
        TalkerPart(place="flow.", prefix=FLOW, layers=projections),  # its norms are no native code
    ]


def load_talker(given: Settings) -> VoxtralTalker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, config = load_network(given)
    generator = load_generator(settings, talker, config.frame_rate, CARD.prefix_bytes)
    return VoxtralTalker(generator, config, Tokenizer(settings.checkpoint_dir, config))
