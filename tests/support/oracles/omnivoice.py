"""OmniVoice's official code for comparison: omnivoice 0.2.1 in `.venv/official`, without what it depends on.

Of torchaudio and of the codec in transformers 5 the modules import names alone; what is compared here calls neither.
Random numbers come from our counters, so that both draw the same.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from tests.support.oracles.packages import importable, quiet
from voice_clone.families.omnivoice.config import FRAME_RATE
from voice_clone.mask_predict.unmasking import CLASSES, POSITIONS, Unmasking, uniforms


@cache
def official_module(name: str) -> Any:
    """A module of the official package."""
    with (
        _stand_in("torchaudio"),
        importable(),
        # By its name: what imports qwen-tts leaves another module `transformers` behind.
        mock.patch("transformers.HiggsAudioV2TokenizerModel", object, create=True),
    ):
        return importlib.import_module(name)


@contextmanager
def _stand_in(name: str) -> Iterator[None]:
    """An empty module in place of one that is not installed; what is imported meanwhile stays imported."""
    sys.modules[name] = types.ModuleType(name)
    try:
        with quiet():  # pydub warns of its own source
            yield
    finally:
        del sys.modules[name]


class OfficialTalker:
    """The official model of a checkpoint folder, without its codec."""

    def __init__(self, folder: Path) -> None:
        self.module = official_module("omnivoice.models.omnivoice")
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        values["llm_config"]["rope_theta"] = values["llm_config"]["rope_parameters"]["rope_theta"]  # transformers 4
        self.model = self.module.OmniVoice(self.module.OmniVoiceConfig(**values)).eval()
        missing, unknown = self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        assert not unknown and set(missing) <= {"codebook_layer_offsets"}
        tokenizer: Any = transformers.PreTrainedTokenizerFast
        self.model.text_tokenizer = tokenizer(tokenizer_file=str(folder / "tokenizer.json"))
        self.model.duration_estimator = official_module("omnivoice.utils.duration").RuleDurationEstimator()
        self.model.audio_tokenizer = SimpleNamespace(config=SimpleNamespace(frame_rate=FRAME_RATE))

    def task(self, **asked: Any) -> Any:
        """What the official code makes of a request, or of several, before it generates."""
        return self.model._preprocess_all(**asked)

    def clone_prompt(self, codes: Tensor, transcript: str, rms: float) -> Any:
        """A voice: int64 [8, T]."""
        return self.module.VoiceClonePrompt(codes, transcript, rms)

    def spoken(self, task: Any, seeds: Sequence[int], **config: Any) -> list[list[Tensor]]:
        """The codes of each chunk of each request, int64 [8, T]; short ones in one batch, as officially."""
        settings = self.module.OmniVoiceGenerationConfig(**config)
        short, long = task.get_indices(settings, FRAME_RATE)
        found: dict[int, list[Tensor]] = {}
        with torch.inference_mode():
            if short:
                with self._draws(settings, [seeds[each] for each in short]):
                    made = self.model._generate_iterative(task.slice_task(short), settings)
                found.update({each: [codes] for each, codes in zip(short, made, strict=True)})
            for each in long:
                with self._draws(settings, [seeds[each]]):
                    [found[each]] = self.model._generate_chunked(task.slice_task([each]), settings)
        return [found[each] for each in range(len(seeds))]

    @contextmanager
    def _draws(self, config: Any, seeds: Sequence[int]) -> Iterator[None]:
        """`torch.rand_like` gives the numbers of our streams, in the order in which the official code asks."""
        how = Unmasking(seed=0, steps=config.num_step, shift=config.t_shift)
        turns: Iterator[tuple[int, int, int]] = iter(())
        utterance = -1
        turn = (0, 0, 0)
        generate = self.model._generate_iterative

        def begin(task: Any, settings: Any) -> Any:
            nonlocal turns, utterance
            utterance += 1
            schedules = [dict(how.schedule(8 * length)) for length in task.target_lens]
            steps = [
                (seeds[item], utterance, step)
                for step in range(how.steps)
                for item, schedule in enumerate(schedules)
                if step in schedule
            ]
            kinds = 2 if settings.class_temperature > 0 else 1
            turns = iter([each for each in steps for _ in range(kinds)])
            return generate(task, settings)

        def rand_like(like: Tensor) -> Tensor:
            nonlocal turn
            turn = next(turns)
            kind = CLASSES if like.dim() == 4 else POSITIONS
            return torch.from_numpy(uniforms(*turn, kind, like.numel())).view(like.shape)

        with (
            mock.patch.object(self.model, "_generate_iterative", begin),
            mock.patch.object(torch, "rand_like", rand_like),
        ):
            yield
