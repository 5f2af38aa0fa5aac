"""Two engines side by side in this process: do they make the same codes, and where not, was it a tie?

Each stream has a prompt of its own, so that rows which are swapped do not pass. After each step the tested engine is
given the codes of the reference: one difference does not make the next.

Two devices add in different orders, so one of two codes that are almost equally likely may win on one and lose on the
other. That is no fault. At the first difference of a stream the reference's logits show the margin of its code over
the other one, in standard deviations of the logits of that codebook. Up to the family's `tie` it is a tie. Later codes
of that stream are not judged; nor are its later ones of the same frame, which hear another past.

`tie` of Qwen3-TTS, for fp32, a model and no measurement: fp32 rounds by 6e-8 at most. A logit lies behind the layers of
talker and code predictor (28 + 5), each of four products one after the other, of sums of up to 3072 terms. Independent
roundings on two devices then make sqrt(2 * 33 * 4 * 3072) * 6e-8 = 5e-5 of the hidden state, and 8e-5 of a standard
deviation in the difference of two logits. Six times that, for many draws, twice for what attention and norms amplify:
1e-3. Of random logits, 2048 of them, the best two are closer than that in one draw of 250, so that a fault shows itself
soon. Fish Speech has 36 + 4 layers with sums of up to 9728 terms: twice that.

Voxtral TTS rounds the end of a flow to acoustic codes, all at once. Their margin is the way from there to where the
other code begins, in standard deviations of all ends of the frame; of several codes that differ the largest counts. A
flow lies behind 26 layers and 7 times 3 with sums of up to 9216 terms: as Fish Speech.

VoxCPM2's frames are latents, which no two devices round alike. They are equal where no number differs by more than
`tie`, of the spread of its frame, so that a difference is never a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from perf.bench.engine import Ours
from perf.bench.families.family import Frames
from voice_clone.array_kinds import Numbers, in_kind_of
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.source import Frame

LOST = -1  # the codes of a stream that ended, or whose values were not finite


@dataclass(frozen=True)
class Difference:
    """The first one of a stream.

    Attributes:
        margin: of the reference's code over the other; None: one of the engines gave no codes.
        tie: whether rounding explains it, in fp32.
    """

    stream: int
    frame: int
    book: int
    margin: float | None
    tie: bool


@torch.inference_mode()
def compare(
    reference: Ours[Any], tested: Ours[Any], streams: int, frames: int, waveforms: bool = True
) -> dict[str, Any]:
    """Speak `frames` in `streams` by both, greedily.

    Returns: the share of equal codes; how many streams were `equal` throughout, `tied` and `parted` by more than a tie;
        the worst margin, and the most that is a `tie`; the first difference of each stream; the largest relative
        difference of hidden states and of waveforms.
    """
    engines, model = (reference, tested), reference.model
    greedy = model.sampling(drawn=False)
    pair = [engine.generator(streams) for engine in engines]
    for stream in range(streams):
        prompt = model.a_prompt(stream)
        for generator in pair:
            generator.start(stream, TalkerRequest(prompt, greedy, frames + 1))  # one more: no frame is the last
    found: dict[int, Difference] = {}
    made: list[Frames] = []
    same, hidden = 0, 0.0
    for number in range(frames):
        ours, others = (_codes(generator.step(range(streams))) for generator in pair)
        parted = model.parted(ours, others)
        same += int((~parted).sum())
        lost = (ours == LOST).all(axis=1) | (others == LOST).all(axis=1)
        for stream in np.flatnonzero(parted.any(axis=1) | lost):
            if stream not in found:
                book = int(parted[stream].argmax())
                margin = None if lost[stream] else model.margin(pair[0], stream, number, ours[stream], others[stream])
                tie = margin is not None and margin <= model.tie
                found[stream] = Difference(int(stream), number, book, margin, tie)
        if lost.any():  # such a stream makes no further step
            break
        hidden = max(hidden, apart(*(generator.model.hidden[:streams] for generator in pair)))
        newest = pair[1].model.newest
        newest[:streams] = in_kind_of(newest, ours)
        made.append(ours)
    for generator in pair:
        generator.reset()
    return {
        "codes": same / (frames * streams * ours.shape[1]),
        "hidden": hidden,
        "waveform": _waveforms_apart(engines, made) if made and waveforms else None,
        "tie": model.tie,
        **summary(streams, [*found.values()]),
    }


def summary(streams: int, found: Sequence[Difference]) -> dict[str, Any]:
    """Counts of streams, the worst margin, and the differences themselves."""
    ties = sum(each.tie for each in found)
    return {
        "streams": streams,
        "equal": streams - len(found),
        "tied": ties,
        "parted": len(found) - ties,
        "worst_margin": max((each.margin for each in found if each.margin is not None), default=0.0),
        "differences": [vars(each) for each in found],
    }


def counts(of: dict[str, Any]) -> str:
    """The counts in words."""
    parted = f"{of['equal']} of {of['streams']} streams equal throughout, {of['tied']} parted at a tie"
    return f"{parted}, {of['parted']} by more; worst margin {of['worst_margin']:.1e}, allowed in fp32 {of['tie']:.0e}"


@torch.inference_mode()
def margin_after(engine: Ours[Any], prompt: Any, past: Frames, other: Frames) -> float:
    """The margin where a stream that has spoken `past` [frames, K] by this engine has `other` [K] as its last frame.

    Needed where the other engine is out of reach.
    """
    generator = engine.generator(1)
    generator.start(0, TalkerRequest(prompt, engine.model.sampling(drawn=False), len(past) + 1))
    for codes in past:
        generator.step([0])
        newest = generator.model.newest
        newest[0] = in_kind_of(newest, codes)
    margin: float = engine.model.margin(generator, 0, len(past) - 1, past[-1], other)
    generator.reset()
    return margin


def apart(a: Numbers, b: Numbers) -> float:
    """RMS of the difference over the RMS."""
    a, b = (torch.as_tensor(each).float().cpu() for each in (a, b))
    return float((a - b).square().mean().sqrt() / a.square().mean().sqrt())


def _codes(frames: Sequence[Frame]) -> Frames:
    """[B, K]"""
    rows = [frame.payload for frame in frames]
    lost = np.full_like(next((row for row in rows if row is not None), np.zeros(1, np.int32)), LOST)
    return np.stack([lost if row is None else row for row in rows])


def _waveforms_apart(engines: Sequence[Ours[Any]], made: Sequence[Frames]) -> float:
    """What the engines make of codes [B, K] of each frame."""
    codes = np.stack(made, axis=1)
    return apart(*(torch.from_numpy(engine.sound(codes)) for engine in engines))
