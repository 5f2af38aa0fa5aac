"""From a prompt to the talker's input: prefill embeddings, and the text that is added frame by frame.

Layouts as in qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`generate`, `generate_icl_prompt`). Every position is the sum
of a text embedding (upper row) and a codec embedding (lower row):

    role   pad ... pad      pad      bos | first text token        x-vector, streaming
           think, language  speaker  pad | codec bos               (one more text token a frame follows)

    role   pad ... pad      pad      bos | text ... text eos  pad          x-vector, non-streaming
           think, language  speaker  pad | pad  ... pad  pad  codec bos

    role   pad ... pad      pad      bos | transcript and text, eos        in-context, streaming
           think, language  speaker  pad | codec bos, reference frames     (as long as the lower row; the rest
                                                                           of the text follows, or pad fills up)
    role   pad ... pad      pad      bos | transcript, text, eos  pad      ... pad                 in-context,
           think, language  speaker  pad | pad ...           pad  codec bos, reference frames      non-streaming

An open text fills its rows as it comes, in the layouts of streaming, and has its eos when it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH, Prompt
from voice_clone.layers.graphs import to_device
from voice_clone.lru_cache import digest

if TYPE_CHECKING:
    from voice_clone.families.qwen3_tts.networks.talker import Talker


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
        np.array([language, prompt.non_streaming_mode]),
    )
    return Prefix(key, min(voice_length(prompt), prefill_length(prompt) - 1))


def _head_length(prompt: Prompt) -> int:
    return ROLE_LENGTH + (3 if prompt.language_id is None else 4) + 2  # think tokens; speaker and text bos


@torch.inference_mode()
def build_talker_input(tables: Talker, config: Qwen3TTSConfig, prompt: Prompt) -> TalkerInput:
    """Embed `prompt`, whose values have been checked against `config`."""
    ids, like = config.talker, tables.stack.like
    special = (config.tts_pad_token_id, config.tts_bos_token_id)
    eos = np.array([config.tts_eos_token_id])
    token_ids = np.concatenate([prompt.role_ids, special, prompt.reference_ids, prompt.text_ids, eos])
    rows = tables.embed_text(torch.from_numpy(token_ids.astype(np.int64)))
    role, rest = rows[:ROLE_LENGTH], rows[ROLE_LENGTH:]
    pad, bos, text = rest[:1], rest[1:2], rest[2:]  # text: transcript, text, eos
    end = text[-1] if prompt.text_open else None
    text = text[:-1] if prompt.text_open else text

    if prompt.language_id is None:
        think_ids = [ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id]
    else:
        think_ids = [ids.codec_think_id, ids.codec_think_bos_id, prompt.language_id, ids.codec_think_eos_id]
    control = to_device(torch.tensor([*think_ids, ids.codec_pad_id, ids.codec_bos_id]), like.device)
    codec = tables.embed_codec_tokens(control)
    think, codec_pad, codec_bos = codec[:-2], codec[-2:-1], codec[-1:]
    speaker = to_device(torch.from_numpy(prompt.speaker_embedding), like.device, like.dtype)[None]
    head = torch.cat([think + pad, speaker + pad, codec_pad + bos])

    frames = codec_bos  # lower row of what follows the head
    if prompt.mode == "icl":
        codes = to_device(torch.from_numpy(prompt.reference_codes.astype(np.int64)), like.device)
        frames = torch.cat([codec_bos, tables.embed_frames(codes)])

    if prompt.non_streaming_mode:
        body = torch.cat([text + codec_pad, frames + pad])
        trailing = text[:0]
        below = frames[:0]
    else:
        length = frames.shape[0]
        known = text[:length]
        if not prompt.text_open:
            known = torch.cat([known, pad.expand(length - known.shape[0], -1)])
        body, below = known + frames[: len(known)], frames[len(known) :]
        trailing = text[length:]
    return TalkerInput(torch.cat([role, head, body]), trailing, pad[0], below, end)
