"""The official code of CosyVoice3, where it is there: it is no package that pip installs.

VOICE_CLONE_COSYVOICE names the folder of a checkout of https://github.com/FunAudioLLM/CosyVoice, commit ace7c47; the
default is `.venv/official/CosyVoice`. Its talker uses transformers' Qwen2.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn

from tests.support.oracles.packages import KALDI, PACKAGES, empty_packages, quiet
from voice_clone.families.cosyvoice3.config import BLANK, CODES, LLM


def source() -> Path | None:
    """The folder of the checkout; None: there is none."""
    folder = Path(os.environ.get("VOICE_CLONE_COSYVOICE") or PACKAGES / "CosyVoice")
    return folder if (folder / "cosyvoice").is_dir() else None


@contextlib.contextmanager
def official_package() -> Iterator[None]:
    """The package `cosyvoice` of the checkout, for the time of its imports."""
    folder = source()
    if folder is None:
        raise FileNotFoundError("set VOICE_CLONE_COSYVOICE to a checkout of the official CosyVoice")
    # transformers asks whether torchaudio is there when its parts are imported: before it seems to be.
    importlib.import_module("transformers.models.qwen2.modeling_qwen2")
    with mock.patch.dict(sys.modules, empty_packages(KALDI)), mock.patch("logging.basicConfig"):
        sys.path.append(str(folder))
        try:
            yield
        finally:
            sys.path.remove(str(folder))


def official_talker(checkpoint: Path) -> Any:
    """`CosyVoice3LM` with the weights of llm.pt, fp32.

    transformers from 4.53 on takes the mask of one position that it gives for one of the whole context, so it gets
    none: all positions see all before them, as they should.
    """
    with quiet(), official_package():
        module = importlib.import_module("cosyvoice.llm.llm")
        sampling = importlib.import_module("cosyvoice.utils.common").ras_sampling
    config = transformers.Qwen2Config.from_pretrained(checkpoint / BLANK)
    inner: Any = transformers.Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    forward = inner.forward

    def without_mask(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{**kwargs, "attention_mask": None})

    inner.forward = without_mask
    encoder = module.Qwen2Encoder.__new__(module.Qwen2Encoder)
    nn.Module.__init__(encoder)
    encoder.model = inner
    size = config.hidden_size
    made = module.CosyVoice3LM(size, size, CODES, encoder, sampling)
    made.load_state_dict(torch.load(checkpoint / f"{LLM}.pt", weights_only=True))
    return made.eval().requires_grad_(False)
