"""An official talker beside ours with the same weights; what the official one draws can be given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.official import quiet, qwen_tts
from tests.support.talkers import codes_of, config_json, randomise, read_config
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.philox import uniforms
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
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
        self.native = NativeTalker(native, "fp32")

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

    Attributes:
        margin: of the nearest draw to the bound between two codes, in probability: below what rounding makes of the
            probabilities, a comparison of codes would be of rounding.
    """

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._seed, self._vocabulary = seed, vocabulary
        self._firsts = self._others = 0
        self.margin = 1.0

    def __call__(self, probabilities: Tensor, num_samples: int) -> Tensor:
        """[1, V] -> code int64 [1, 1]."""
        assert len(probabilities) == num_samples == 1
        if probabilities.shape[1] == self._vocabulary:
            frame, book = self._firsts, 0
            self._firsts += 1
        else:
            frame, book = self._others // (BOOKS - 1), 1 + self._others % (BOOKS - 1)
            self._others += 1
        reached = probabilities[0].double().cumsum(0)
        target = float(uniforms([self._seed], [frame], BOOKS)[0, book]) * reached[-1]
        self.margin = min(self.margin, float((reached[:-1] - target).abs().min()))
        return torch.searchsorted(reached, target, right=True).reshape(1, 1)

    @property
    def frames(self) -> float:
        """Frames for which codebooks 1..15 were drawn."""
        return self._others / (BOOKS - 1)


@contextmanager
def our_draws(config: Qwen3TTSConfig, seed: int) -> Iterator[OurDraws]:
    """The official package draws as ours does for this seed."""
    draws = OurDraws(seed, config.talker.vocab_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "multinomial", draws)
        yield draws
