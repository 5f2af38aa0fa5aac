"""An official talker beside ours with the same weights; what the official one draws can be given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from tests.support.families.talkers import codes_of, config_json, native_of, randomise, read_config
from tests.support.oracles.packages import quiet
from tests.support.oracles.qwen_tts import qwen_tts
from voice_clone.autoregressive import philox
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.philox import uniforms
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

BOOKS = 16


def modeling() -> Any:
    """The module of the official networks."""
    return qwen_tts().core.models.modeling_qwen3_tts


class Pair:
    """An official model and ours with the same random weights, of one of `talkers.SHAPES`."""

    def __init__(self, shape: str, seed: int, folder: Path) -> None:
        with quiet():
            official_config = qwen_tts().core.models.configuration_qwen3_tts.Qwen3TTSConfig(**config_json(shape))
            self.official = modeling().Qwen3TTSForConditionalGeneration(official_config).eval()
        randomise(self.official, seed)
        self.config: Qwen3TTSConfig = read_config(shape, folder)
        with torch.device("meta"):
            self.talker = Talker(self.config)
            self.speaker_encoder = SpeakerEncoder(self.config.speaker_encoder)
        self.sync()

    def sync(self) -> None:
        """Ours takes the official tensors, all of them and no others."""
        tensors = self.official.state_dict()
        with torch.device("meta"):
            native = Talker(self.config)
        stages = (("talker.", self.talker), ("talker.", native), ("speaker_encoder.", self.speaker_encoder))
        for prefix, module in stages:
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            module.load_state_dict(own, strict=True, assign=True)
        self.native = native_of(native, "fp32")

    def official_codes(self, prompt: Prompt, language: str | None, frames: int, **options: Any) -> np.ndarray[Any, Any]:
        """Official codes [frames, 16] for options of the official `generate`, its own defaults for all others."""
        ids = np.concatenate([prompt.role_ids, prompt.text_ids, [280, 292], prompt.role_ids])
        reference = np.concatenate([prompt.role_ids, prompt.reference_ids, [280, 292]])
        icl = prompt.mode == "icl"
        with quiet():
            codes, _ = self.official.generate(
                input_ids=[torch.from_numpy(ids)[None].long()],
                ref_ids=[torch.from_numpy(reference)[None].long() if icl else None],
                voice_clone_prompt={
                    "ref_code": [torch.from_numpy(prompt.reference_codes).long()] if icl else None,
                    "ref_spk_embedding": [torch.from_numpy(prompt.speaker_embedding)],
                    "x_vector_only_mode": [not icl],
                    "icl_mode": [icl],
                },
                languages=[language or "Auto"],
                non_streaming_mode=prompt.non_streaming_mode,
                max_new_tokens=frames + 1,  # it brings one frame less
                **options,
            )
        result: np.ndarray[Any, Any] = codes[0].numpy()
        return result

    def our_codes(
        self, prompt: Prompt, sampling: SamplingParameters, frames: int, native: bool = False
    ) -> np.ndarray[Any, Any]:
        """Ours, int32 [frames, 16], in torch or native code."""
        talker = self.native if native else self.talker
        generator = Generator(talker, slots=1, max_length=160 + frames)
        generator.start(0, TalkerRequest(prompt, sampling, frames))
        return codes_of(generator, 0)


class OurDraws:
    """Takes the place of `torch.multinomial`: the inverse of the distribution function at the uniforms of a seed.

    A call is the next draw of codebook 0 if it is about the talker's vocabulary, else the next one of codebooks 1..15.
    A uniform nearer than `near` to the bound between two codes, where rounding decides, moves to the middle of the
    likeliest code.

    Attributes:
        moved: the uniforms that moved, by frame and codebook.
        leads: by frame and codebook, by how much the best code leads where it is taken without a draw; or how near
            top-p comes to keep a code more or less, or another one. Where rounding decides that, ours may take another
            code.
        cut: how near the logit of a code that top-k keeps has come to that of one which it drops. Where rounding
            decides that, no uniform helps.
    """

    def __init__(self, seed: int, vocabulary: int, near: float) -> None:
        self._seed, self._vocabulary, self._near = seed, vocabulary, near
        self._firsts = self._others = 0
        self._greedy = {True: 0, False: 0}  # of codebook 0, of the others
        self.moved: dict[tuple[int, int], float] = {}
        self.leads: dict[tuple[int, int], float] = {}
        self.cut = 1.0

    def watch(self, top_k: int, scores: Tensor) -> None:
        """Before top-k cuts `scores` [1, V]."""
        if top_k < scores.shape[1]:
            kept, dropped = scores[0].topk(top_k + 1).values[-2:]
            self.cut = min(self.cut, float(kept - dropped))

    def watch_best(self, scores: Tensor) -> None:
        """Before the best of `scores` [1, V] is taken, without a draw."""
        first = scores.shape[1] == self._vocabulary
        best, second = scores[0].topk(2).values
        self.leads[self._place(first, self._greedy[first])] = float(best - second)
        self._greedy[first] += 1

    def watch_sum(self, top_p: float, scores: Tensor) -> None:
        """Before top-p cuts `scores` [1, V] for the next draw."""
        first = scores.shape[1] == self._vocabulary
        ascending = scores[0].sort().values
        over = ascending.softmax(-1).cumsum(-1) - (1 - top_p)
        kept = int((over <= 0).sum())  # the place of the last code that is
        lead = float(over.abs().min())
        if 0 < kept < len(ascending):
            lead = min(lead, float(ascending[kept] - ascending[kept - 1]))
        self.leads[self._place(first, self._firsts if first else self._others)] = lead

    def close_call(self, ours: np.ndarray[Any, Any], official: np.ndarray[Any, Any], bound: float) -> bool:
        """Whether codes [frames, 16] differ, first where rounding decides: by no more than `bound`."""
        places = np.argwhere(ours != official)
        return bool(len(places)) and self.leads.get((int(places[0][0]), int(places[0][1])), 1.0) <= bound

    @staticmethod
    def _place(first: bool, number: int) -> tuple[int, int]:
        """Frame and codebook of a code, by its number among those of codebook 0, or of the others."""
        return (number, 0) if first else (number // (BOOKS - 1), 1 + number % (BOOKS - 1))

    def __call__(self, probabilities: Tensor, num_samples: int) -> Tensor:
        """[1, V] -> code int64 [1, 1]."""
        assert len(probabilities) == num_samples == 1
        first = probabilities.shape[1] == self._vocabulary
        frame, book = self._place(first, self._firsts if first else self._others)
        self._firsts += first
        self._others += not first
        reached = probabilities[0].double().cumsum(0)
        reached /= reached[-1].clone()
        drawn = float(uniforms([self._seed], [frame], BOOKS)[0, book])
        if float((reached[:-1] - drawn).abs().min()) < self._near:
            likeliest = int(probabilities[0].argmax())
            drawn = float(reached[likeliest] - probabilities[0, likeliest] / probabilities[0].sum() / 2)
            self.moved[frame, book] = drawn
        return torch.searchsorted(reached, drawn, right=True).reshape(1, 1)

    def uniforms(self, seeds: Sequence[int], frames: Sequence[int], codebooks: int) -> np.ndarray[Any, Any]:
        """As the package's, but for those that moved."""
        drawn = uniforms(seeds, frames, codebooks)
        for row, (seed, frame) in enumerate(zip(seeds, frames, strict=True)):
            for book in range(codebooks) if seed == self._seed else ():
                drawn[row, book] = self.moved.get((frame, book), drawn[row, book])
        return drawn

    @property
    def frames(self) -> float:
        """Frames for which codebooks 1..15 were drawn."""
        return self._others / (BOOKS - 1)


@contextmanager
def our_draws(config: Qwen3TTSConfig, seed: int, near: float = 0.0) -> Iterator[OurDraws]:
    """The official package draws as ours does for this seed; ours, in this process, with the uniforms that moved."""
    draws = OurDraws(seed, config.talker.vocab_size, near)
    official, official_top_p, argmax = TopKLogitsWarper.__call__, TopPLogitsWarper.__call__, torch.argmax

    def top_k(warper: TopKLogitsWarper, ids: Tensor, scores: Tensor) -> Tensor:
        draws.watch(warper.top_k, scores)
        kept: Tensor = official(warper, ids, scores)
        return kept

    def top_p(warper: TopPLogitsWarper, ids: Tensor, scores: Tensor) -> Tensor:
        draws.watch_sum(warper.top_p, scores)
        kept: Tensor = official_top_p(warper, ids, scores)
        return kept

    def best(scores: Tensor, *how: Any, **named: Any) -> Tensor:
        draws.watch_best(scores)
        return argmax(scores, *how, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopKLogitsWarper, "__call__", top_k)
        patch.setattr(TopPLogitsWarper, "__call__", top_p)
        patch.setattr(torch, "argmax", best)
        patch.setattr(torch, "multinomial", draws)
        patch.setattr(philox, "uniforms", draws.uniforms)
        yield draws
