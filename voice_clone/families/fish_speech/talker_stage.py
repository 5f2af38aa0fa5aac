"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import FRAME_RATE, FishSpeechConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.talker import Talker, use_native_code
from voice_clone.families.fish_speech.prompt import CODES, Prompt
from voice_clone.families.fish_speech.text import Tokenizer, read
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

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


class FishSpeechTalker(CardTalker[FishSpeechConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, files, places, rate = CARD, Prompt, Checkpoint, PARTS, FRAME_RATE
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def network(cls, config: FishSpeechConfig, tokenizer: Tokenizer) -> Talker:
        return Talker(config, tokenizer.end_token)

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        ids = self.tokenizer.reference_ids(transcript)
        return Prompt(ids, artifacts[CODES], self.tokenizer.text_ids("a"))


load_network, load_talker = FishSpeechTalker.load_network, FishSpeechTalker.load
