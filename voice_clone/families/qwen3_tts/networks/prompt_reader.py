"""What the torch and the native talker of Qwen3-TTS share: sizes, and how a prompt is read."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from voice_clone.autoregressive.sampling import KINDS
from voice_clone.autoregressive.stack.decoder_stack import Stack
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prefill import build_talker_input, prefill_length, prefix_of
from voice_clone.families.qwen3_tts.prompt import Prompt


class PromptReader(ABC):
    """A talker as far as it depends on the configuration and on the tables of embeddings alone."""

    config: Qwen3TTSConfig
    min_frames = 2  # as qwen-tts 0.1.1 calls `generate`
    recent_codes = 0
    kinds = KINDS

    @property
    @abstractmethod
    def stack(self) -> Stack:
        """The decoder stack."""

    @abstractmethod
    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        """Codes of codebook 0 or control tokens, int64 [N] -> [N, C]."""

    @abstractmethod
    def embed_frames(self, codes: Tensor) -> Tensor:
        """Codec frames, int64 [N, K] -> [N, C]."""

    @abstractmethod
    def embed_text(self, ids: Tensor) -> Tensor:
        """Text tokens, int64 [N] -> [N, C]."""

    @property
    def codebooks(self) -> int:
        return self.config.talker.num_code_groups

    @property
    def draws(self) -> int:
        return self.config.talker.num_code_groups

    @property
    def vocabulary(self) -> int:
        return self.config.talker.vocab_size

    @property
    def end_code(self) -> int:
        return self.config.talker.codec_eos_token_id

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return prefill_length(prompt)

    def prefix(self, prompt: Prompt) -> Prefix:
        return prefix_of(prompt)

    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        return build_talker_input(self, self.config, prompt)
