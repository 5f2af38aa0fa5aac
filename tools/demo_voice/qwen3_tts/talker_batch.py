"""Batches of the talker's training, position for position as the server feeds them.

The layouts are those of `voice_clone.families.qwen3_tts.networks.talker`: a head (role, think tokens, speaker, begin of
text), then at each position one text token above one codec frame; or, not streaming, all the text before the first
frame.
In-context cloning reads the reference's frames as if they were its own, so it is trained as two utterances of one
speaker, joined. A text of two sentences is trained in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.demo_voice.qwen3_tts.talker_data import Spoken
from tools.demo_voice.qwen3_tts.talker_forward import NO_TOKEN, Positions
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig

NOTHING = -100  # where no code is to be predicted


@dataclass(frozen=True, eq=False)
class Layout:
    """The positions of one sequence: T in all, of which the body begins at `head`.

    `next` int64 [T, K]: the frame to predict at a position, its code 0 the end of speech after the last; or NOTHING.
    `spoken` int64 [T]: the position of the text token that the predicted frame speaks; or NOTHING, where it is not yet
    there.
    """

    text: NDArray[np.int64]
    control: NDArray[np.int64]
    codes: NDArray[np.int64]
    framed: NDArray[np.bool_]
    speaker: int
    next: NDArray[np.int64]
    spoken: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Positions, what follows them, and which text they speak; see `Layout`. `valid` bool [B, T]: no padding."""

    positions: Positions
    next: Tensor
    spoken: Tensor


def lay_out(
    parts: Sequence[Spoken],
    config: Qwen3TTSConfig,
    role: NDArray[np.int32],
    language: int | None,
    non_streaming: bool = False,
) -> Layout:
    """Utterances of one speaker, as the server would have fed them. A reference comes first."""
    talker = config.talker
    tokens = np.concatenate([*(part.tokens for part in parts), [config.tts_eos_token_id]])
    frames = np.concatenate([part.codes for part in parts])
    firsts = np.cumsum([0, *(len(part.tokens) for part in parts)])
    spoken = np.concatenate([part.spoken + first for part, first in zip(parts, firsts, strict=False)])
    think = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    if language is not None:
        think = [talker.codec_think_id, talker.codec_think_bos_id, language, talker.codec_think_eos_id]
    speaker = len(role) + len(think)
    head = speaker + 2  # where the text begins
    start = head + len(tokens) if non_streaming else head  # where the frames begin
    size = start + len(frames) + 1

    text = np.full(size, config.tts_pad_token_id)
    text[: len(role)] = role
    text[head - 1] = config.tts_bos_token_id
    text[head : head + len(tokens)] = tokens[: size - head]
    control = np.full(size, NO_TOKEN)
    control[len(role) : speaker] = think
    control[head - 1 : start] = talker.codec_pad_id
    control[start] = talker.codec_bos_id
    codes = np.zeros((size, talker.num_code_groups), np.int64)
    codes[start + 1 :] = frames
    following = np.full((size, talker.num_code_groups), NOTHING)
    following[start:-1] = frames
    following[-1, 0] = talker.codec_eos_token_id
    at = np.full(size, NOTHING)
    at[start:-1] = head + spoken
    at[-1] = head + len(tokens) - 1
    at[at > np.arange(size)] = NOTHING
    return Layout(text, control, codes, np.arange(size) > start, speaker, following, at)


def collate(layouts: Sequence[Layout], device: torch.device) -> Batch:
    """A batch of sequences, filled up on the right with positions that nothing is learned from."""
    size = max(len(layout.text) for layout in layouts)

    def join(name: str, fill: int) -> Tensor:
        rows = []
        for layout in layouts:
            values = getattr(layout, name)
            rows.append(np.pad(values, [(0, size - len(values)), (0, 0)][: values.ndim], constant_values=fill))
        return torch.from_numpy(np.stack(rows)).to(device)

    speaker = torch.zeros(len(layouts), size, dtype=torch.bool)
    speaker[torch.arange(len(layouts)), [layout.speaker for layout in layouts]] = True
    positions = Positions(
        join("text", 0), join("control", NO_TOKEN), speaker.to(device), join("codes", 0), join("framed", False)
    )
    return Batch(positions, join("next", NOTHING), join("spoken", NOTHING))
