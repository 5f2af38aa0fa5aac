"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

import numpy as np

from voice_clone.families.voxtral.checkpoint import BACKBONE, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.config import VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.networks.flow_head import SamplingParameters
from voice_clone.families.voxtral.networks.talker import Talker, use_native_code
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET, Prompt
from voice_clone.families.voxtral.text import Tokenizer, read
from voice_clone.settings import TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

CLONED = np.array([NO_PRESET], np.int32)


class VoxtralTalker(CardTalker[VoxtralConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint, with the checkpoint's voices."""

    card, prompt, sampling, talker, files = CARD, Prompt, SamplingParameters, Talker, Checkpoint
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def frame_rate(cls, config: VoxtralConfig) -> float:
        return config.frame_rate

    @classmethod
    def parts(cls, config: VoxtralConfig) -> list[TalkerPart]:
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

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: VoxtralConfig, tokenizer: Tokenizer) -> Talker:
        talker: Talker = super().fill_network(settings, config, tokenizer)
        talker.set_voices(Checkpoint(settings.checkpoint_dir).voices())
        return talker

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        return Prompt(self.tokenizer.before_voice, self.tokenizer.text_ids("a"), CLONED, artifacts[CODES])


load_network, load_talker = VoxtralTalker.load_network, VoxtralTalker.load
