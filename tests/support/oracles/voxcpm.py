"""The official voxcpm 2.0.3 with the weights of a checkpoint, for comparison.

tools/env.sh puts the package into `.venv/official` without what it depends on. It is entered without its `__init__`,
which imports a denoiser, and of torchaudio, which it uses for clips alone, an empty module stands in.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.support.oracles.packages import bare_packages, check_there, empty_packages, quiet
from voice_clone.autoregressive.philox import NormalDraws
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import CONFIG_FILE, LEAST_FRAMES
from voice_clone.families.voxcpm2.prompt import Prompt

STUBS = ("torchaudio", "torchaudio.functional", "torchaudio.transforms")


@cache
def _module() -> Any:
    """`voxcpm.model.voxcpm2`."""
    check_there("voxcpm")
    importlib.import_module("transformers.models.llama.tokenization_llama_fast")  # before torchaudio seems to be there
    sys.modules.update(bare_packages(("voxcpm", "voxcpm.model")))
    with mock.patch.dict(sys.modules, empty_packages(STUBS)), quiet():
        made = importlib.import_module("voxcpm.model.voxcpm2")
        kept = {name: module for name, module in sys.modules.items() if name.startswith("voxcpm")}
    sys.modules.update(kept)
    return made


def official_model(checkpoint: Path, dtype: str = "float32") -> Any:
    """`VoxCPM2Model` on the CPU."""
    values = json.loads((checkpoint / CONFIG_FILE).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch, quiet(), contextlib.redirect_stderr(io.StringIO()):
        for file in checkpoint.iterdir():
            if file.name != CONFIG_FILE:
                (Path(scratch) / file.name).symlink_to(file.resolve())
        (Path(scratch) / CONFIG_FILE).write_text(json.dumps({**values, "dtype": dtype}), encoding="utf-8")
        model = _module().VoxCPM2Model.from_local(scratch, optimize=False, device="cpu")
    return model


def prompt_cache(prompt: Prompt, prompt_text: str) -> dict[str, Any] | None:
    """What `generate_with_prompt_cache` takes for the clips of a prompt of ours."""
    reference, before = (
        torch.from_numpy(latents).view(-1, LATENTS, LATENT_SIZE)
        for latents in (prompt.reference_latents, prompt.prompt_latents)
    )
    if not len(reference) and not len(before):
        return None
    cached: dict[str, Any] = {"mode": "reference"}
    if len(reference):
        cached["ref_audio_feat"] = reference
    if len(before):
        mode = "ref_continuation" if len(reference) else "continuation"
        cached |= {"mode": mode, "audio_feat": before, "prompt_text": prompt_text}
    return cached


@contextlib.contextmanager
def given_noise(seed: int) -> Iterator[None]:
    """Noise of our generator in place of torch's, frame by frame."""
    draws, frames = NormalDraws(seed, WIDTH), iter(range(1 << 20))
    original = torch.randn

    def randn(size: Sequence[int], **options: Any) -> Tensor:
        if tuple(size) != (1, LATENT_SIZE, LATENTS):
            made: Tensor = original(size, **options)
            return made
        noise = torch.from_numpy(draws.of(next(frames)).reshape(tuple(size)))
        return noise.to(options["dtype"])

    with mock.patch.object(torch, "randn", randn):
        yield


def official_frames(
    model: Any, text: str, prompt: Prompt, prompt_text: str, seed: int, frames: int, stops: bool = False, **options: Any
) -> Tensor:
    """Frames fp32 [n, W] of a text, with our noise.

    Args:
        text: the target.
        prompt: whose clips are used.
        prompt_text: what its `prompt_latents` say.
        frames: the most.
        stops: whether the model may end before.
        options: `inference_timesteps`, `cfg_value`.
    """
    with quiet(), given_noise(seed), contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(_module(), "tqdm", iter))  # no progress bar
        # Only the frames are wanted: the decoder would take most of the time.
        stack.enter_context(mock.patch.object(model.audio_vae, "decode", lambda latents: latents[:, :1]))
        generate = model.generate_with_prompt_cache(
            text,
            prompt_cache(prompt, prompt_text),
            min_len=LEAST_FRAMES - 1 if stops else frames,
            max_len=frames,
            retry_badcase=False,
            retry_badcase_ratio_threshold=1e6,
            **options,
        )
        made: Tensor = generate[2].flatten(1).float()
    return made


def official_ids(model: Any, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Its tokens of a text."""
    return np.array(model.text_tokenizer(text), np.int32)
