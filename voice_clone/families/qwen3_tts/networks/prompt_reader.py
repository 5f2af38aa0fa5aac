"""How a talker reads a prompt, in torch and in native code.

The layouts of a prompt are those of `generate` and `generate_icl_prompt` in qwen-tts 0.1.1, `modeling_qwen3_tts.py`.
Every position is the sum of a text embedding (upper row) and a codec embedding (lower row):

    role   pad ... pad      pad      bos | first text token        x-vector, streaming
           think, language  speaker  pad | codec bos               (one more text token a frame follows)

    role   pad ... pad      pad      bos | text ... text eos  pad          x-vector, non-streaming
           think, language  speaker  pad | pad  ... pad  pad  codec bos

    role   pad ... pad      pad      bos | transcript and text, eos        in-context, streaming
           think, language  speaker  pad | codec bos, reference frames     (as long as the lower row; the rest
                                                                           of the text follows, or pad fills up)
    role   pad ... pad      pad      bos | transcript, text, eos  pad      ... pad                 in-context,
           think, language  speaker  pad | pad ...           pad  codec bos, reference frames      non-streaming

An open text fills its rows as it comes, in the layouts of streaming, and has its eos when it is closed. At `speaker`
there is an embedding, or a built-in speaker's codec token; a designed voice lacks this position. The tokens of an
instruction stand before the role, with no codec row below them.

Shapes: N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, joined, namespace, without_gradients
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH, Prompt
from voice_clone.lru_cache import digest

CONTROL_IDS = 1024  # the last ids of the talker's vocabulary are control tokens, never codes


class PromptReader(ABC):
    """What a `voice_clone.autoregressive.talker.Talker` does with prompts.

    Attributes:
        config: of the checkpoint.
        min_frames: as qwen-tts 0.1.1 calls `generate`.
    """

    config: Qwen3TTSConfig
    min_frames = 2

    @abstractmethod
    def numbers(self, array: npt.NDArray[Any]) -> Numbers:
        """int64 or float32 numbers as the talker takes them."""

    @abstractmethod
    def embed_text(self, ids: npt.NDArray[np.integer[Any]]) -> Numbers:
        """As of `TextReader`."""

    @abstractmethod
    def embed_codec_tokens(self, ids: Numbers) -> Numbers:
        """Codes of codebook 0 or control tokens, int64 [N] -> [N, C]."""

    @abstractmethod
    def embed_frames(self, codes: Numbers) -> Numbers:
        """Codec frames, int64 [N, K] -> [N, C]: the sum of the K codes' embeddings."""

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return prefill_length(prompt)

    def prefix(self, prompt: Prompt) -> Prefix:
        return prefix_of(prompt)

    @without_gradients
    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        config, ids = self.config, self.config.talker
        special = (config.tts_pad_token_id, config.tts_bos_token_id)
        eos = np.array([config.tts_eos_token_id])
        before = np.concatenate([prompt.instruct_ids, prompt.role_ids])
        token_ids = np.concatenate([before, special, prompt.reference_ids, prompt.text_ids, eos])
        rows = self.embed_text(token_ids)
        role, rest = rows[: len(before)], rows[len(before) :]
        pad, bos, text = rest[:1], rest[1:2], rest[2:]  # text: transcript, text, eos
        end = text[-1] if prompt.text_open else None
        text = text[:-1] if prompt.text_open else text

        if prompt.language_id is None:
            think_ids = [ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id]
        else:
            think_ids = [ids.codec_think_id, ids.codec_think_bos_id, prompt.language_id, ids.codec_think_eos_id]
        codec = self.embed_codec_tokens(self.numbers(np.array([*think_ids, ids.codec_pad_id, ids.codec_bos_id])))
        think, codec_pad, codec_bos = codec[:-2], codec[-2:-1], codec[-1:]
        if prompt.speaker_id is None:  # no row for a designed voice
            speaker = self.numbers(prompt.speaker_embedding).reshape(-1, ids.hidden_size)
        else:
            speaker = self.embed_codec_tokens(self.numbers(np.array([prompt.speaker_id])))
        head = joined([think + pad, speaker + pad, codec_pad + bos])

        frames = codec_bos  # lower row of what follows the head
        if prompt.mode == "icl":
            codes = self.numbers(prompt.reference_codes.astype(np.int64))
            frames = joined([codec_bos, self.embed_frames(codes)])

        if prompt.non_streaming_mode:
            body = joined([text + codec_pad, frames + pad])
            trailing = text[:0]
            below = frames[:0]
        else:
            length = frames.shape[0]
            known = text[:length]
            if not prompt.text_open:
                pads = namespace(pad).broadcast_to(pad, (length - known.shape[0], pad.shape[1]))
                known = joined([known, pads])
            body, below = known + frames[: len(known)], frames[len(known) :]
            trailing = text[length:]
        return TalkerInput(joined([role, head, body]), trailing, pad[0], below, end)


def suppressed_ids(config: TalkerConfig) -> npt.NDArray[np.bool_]:
    """The ids that codebook 0 never takes: control tokens except end of speech. bool [V]."""
    mask = np.zeros(config.vocab_size, np.bool_)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask


def prefill_length(prompt: Prompt) -> int:
    """T, the number of prefill positions of `prompt`."""
    frames = prompt.reference_codes.shape[0]
    text = prompt.reference_ids.shape[0] + prompt.text_ids.shape[0] + 1  # with eos
    if prompt.non_streaming_mode:
        return _head_length(prompt) + text + 1 + frames
    return _head_length(prompt) + 1 + frames


def voice_length(prompt: Prompt) -> int:
    """How many of the first positions depend on role, language and voice alone: those before the text."""
    transcript = prompt.reference_ids.shape[0]
    if not prompt.non_streaming_mode:
        transcript = min(transcript, 1 + prompt.reference_codes.shape[0])
    return _head_length(prompt) + transcript


def prefix_of(prompt: Prompt) -> Prefix:
    """What a prompt shares with all others in its voice."""
    language = -1 if prompt.language_id is None else prompt.language_id
    key = digest(
        prompt.role_ids,
        prompt.speaker_embedding,
        prompt.reference_ids,
        prompt.reference_codes,
        prompt.instruct_ids,
        np.array([language, prompt.non_streaming_mode, -1 if prompt.speaker_id is None else prompt.speaker_id]),
    )
    return Prefix(key, min(voice_length(prompt), prefill_length(prompt) - 1))


def _head_length(prompt: Prompt) -> int:
    think, speaker = 3 if prompt.language_id is None else 4, 0 if prompt.mode == "design" else 1
    return len(prompt.instruct_ids) + ROLE_LENGTH + think + speaker + 1  # 1: bos of the text
