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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt


@dataclass(frozen=True)
class TalkerInput:
    """What the talker reads. T prefill positions, R frames that still bring text, C hidden size.

    Attributes:
        embeds: [T, C].
        trailing_text: [R, C]; row i is added to frame i's embedding.
        pad: [C]; added to the frames after those.
    """

    embeds: Tensor
    trailing_text: Tensor
    pad: Tensor


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


def _head_length(prompt: Prompt) -> int:
    return 3 + (3 if prompt.language_id is None else 4) + 2  # role; think tokens; speaker and text bos


@torch.inference_mode()
def build_talker_input(talker: Talker, config: Qwen3TTSConfig, prompt: Prompt) -> TalkerInput:
    """Embed `prompt`, whose values have been checked against `config`."""
    codec = talker.model.codec_embedding
    ids = config.talker

    def codec_rows(*tokens: int) -> Tensor:
        rows: Tensor = codec(torch.tensor(tokens, device=talker.device))
        return rows

    special = (config.tts_pad_token_id, config.tts_bos_token_id)
    eos = np.array([config.tts_eos_token_id])
    token_ids = np.concatenate([prompt.role_ids, special, prompt.reference_ids, prompt.text_ids, eos])
    rows = talker.embed_text(torch.from_numpy(token_ids.astype(np.int64)))
    role, pad, bos, text = rows[:3], rows[3:4], rows[4:5], rows[5:]  # text: transcript, text, eos

    if prompt.language_id is None:
        think = codec_rows(ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id)
    else:
        think = codec_rows(ids.codec_think_id, ids.codec_think_bos_id, prompt.language_id, ids.codec_think_eos_id)
    codec_pad, codec_bos = codec_rows(ids.codec_pad_id, ids.codec_bos_id).chunk(2)
    speaker = torch.from_numpy(prompt.speaker_embedding).to(pad)[None]
    head = torch.cat([think + pad, speaker + pad, codec_pad + bos])

    frames = codec_bos  # lower row of what follows the head
    if prompt.mode == "icl":
        codes = torch.from_numpy(prompt.reference_codes.astype(np.int64)).to(talker.device)
        frames = torch.cat([codec_bos, talker.embed_frames(codes)])

    if prompt.non_streaming_mode:
        body = torch.cat([text + codec_pad, frames + pad])
        trailing = text[:0]
    else:
        length = frames.shape[0]
        filled = torch.cat([text[:length], pad.expand(max(0, length - text.shape[0]), -1)])
        body = filled + frames
        trailing = text[length:]
    return TalkerInput(torch.cat([role, head, body]), trailing, pad[0])
