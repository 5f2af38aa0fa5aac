"""How far a talker of reduced precision is from the fp32 one: logits and choices under teacher forcing.

Both read the same prompt and the same frames. At every position each gives its logits of the next frame, and no choice
is fed back, so one difference does not cause the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.array_kinds import Numbers, joined, namespace
from voice_clone.autoregressive.predictor_by_step import PredictorParts, complete_by_steps, frame_cache
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.text import Prompt


@dataclass(frozen=True)
class Deviation:
    """Of codebook 0 (the talker) and of codebooks 1..15 (the code predictor).

    Attributes:
        talker, predictor: standard deviation of the logits' difference over that of the logits.
        talker_choices, predictor_choices: share of the most likely codes that are the same.
    """

    talker: float
    predictor: float
    talker_choices: float
    predictor_choices: float


@torch.inference_mode()
def forced_logits(talker: NativeTalker | Talker, prompt: Prompt, codes: npt.NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """Logits before each of F frames, the frames before it being `codes` [F, 16]: [F, V] and [F, 15, V']."""
    text = talker.embed_prompt(prompt)
    frames: Numbers = talker.numbers(codes.astype(np.int64))
    rows = text.trailing_text[: len(frames) - 1]
    pads = namespace(rows).broadcast_to(text.pad, (len(frames) - 1 - len(rows), len(text.pad)))
    following = joined([rows, pads])
    cache = talker.stack.new_cache(1, len(text.embeds) + len(frames))
    hidden = [talker.stack.prefill(cache, 0, text.embeds)]
    for index, row in enumerate(talker.embed_frames(frames[:-1]) + following):
        hidden.append(talker.stack.decode(cache, [0], [len(text.embeds) + index], row[None])[0])
    states = namespace(rows).stack(hidden)
    seen: list[Tensor] = []

    def choose(logits: Tensor, book: int) -> Tensor:
        seen.append(logits)
        return torch.as_tensor(frames[:, book])

    code0, predictor = frames[:, 0], cast(PredictorParts, talker.head.predictor)
    hidden0, first, embed0 = map(torch.as_tensor, (states, code0, talker.embed_codec_tokens(code0)))
    complete_by_steps(predictor, frame_cache(predictor, len(frames)), hidden0, first, embed0, choose)
    return torch.as_tensor(talker.head.logits(states)), torch.stack(seen, dim=1)


def compare(exact: tuple[Tensor, Tensor], reduced: tuple[Tensor, Tensor]) -> Deviation:
    """The deviation of two talkers, from their `forced_logits`."""
    spread = [float((b - a).std() / a.std()) for a, b in zip(exact, reduced, strict=True)]
    same = [float((a.argmax(-1) == b.argmax(-1)).float().mean()) for a, b in zip(exact, reduced, strict=True)]
    return Deviation(spread[0], spread[1], same[0], same[1])
