"""The talker's networks in torch."""

from __future__ import annotations

from torch import Tensor, nn

from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.families.cosyvoice3.config import CODES, SPEECH_IDS, TalkerConfig
from voice_clone.families.cosyvoice3.talker import REPETITION, Talker, layout
from voice_clone.layers.fused import empty_table


class Qwen2(DecoderStack):
    """Qwen2's layers with the table of text tokens."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(layout(config))
        self.embed_tokens = empty_table(config.vocab_size, config.hidden_size)


class Speech(nn.Module):
    """The table of speech tokens, and their head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.speech_embedding = empty_table(SPEECH_IDS, size)
        self.llm_decoder = nn.Linear(size, SPEECH_IDS, bias=False)


class TalkerNetwork(nn.Module):
    """Layers, tables and head."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Qwen2(config)
        self.speech = Speech(config.hidden_size)

    def talker(self) -> Talker:
        words, speech = self.model.embed_tokens.weight, self.speech.speech_embedding.weight
        first = RepetitionAwareFirstCode(CODES, REPETITION)
        return Talker(self.config, self.model, words, speech, self._logits, first)

    def _logits(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.speech.llm_decoder(hidden)
        return found
