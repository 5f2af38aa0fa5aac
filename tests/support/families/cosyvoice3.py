"""Small checkpoints of CosyVoice3, whole, or their talker or voice encoder alone, and voices for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tools.families.cosyvoice3.checkpoint_maker import write_checkpoint
from tools.families.cosyvoice3.encoders import make_encoders
from tools.families.cosyvoice3.talker import HEAD, make_talker
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.families.cosyvoice3.config import (
    CODES,
    LLM,
    MARK,
    MEL,
    MEL_BANDS,
    SPEAKER,
    SPEAKER_SIZE,
    TOKENS,
    load_config,
)
from voice_clone.families.cosyvoice3.networks.talker import TalkerNetwork
from voice_clone.families.cosyvoice3.prompt import Tokenizer
from voice_clone.families.cosyvoice3.talker import PARTS, Talker, native_talker
from voice_clone.speech import ResolvedVoice
from voice_clone.stages.loading import name_in_file
from voice_clone_server.families.cosyvoice3.released_shapes import LM_HEAD


def make_cosyvoice3(folder: Path, shape: str = "tiny", seed: int = 0, dtype: str = "fp32") -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(shape, seed, folder, dtype)
    return folder


def make_voice_encoder(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """What the voice encoder reads of a checkpoint, in a new folder."""
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    make_encoders(shape, seed, folder)
    return folder


def make_cosyvoice3_talker(folder: Path, shape: str = "tiny", seed: int = 0, ends: bool = False) -> Path:
    """The files of the talker alone, in a new folder; with `ends` speech ends after some ten frames."""
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    make_talker(shape, seed, folder)
    tensors = torch.load(folder / f"{LLM}.pt", weights_only=True)
    if ends:
        tensors[HEAD][CODES:] *= 2
        torch.save(tensors, folder / f"{LLM}.pt")
    del tensors[LM_HEAD]
    save_file(tensors, folder / f"{LLM}.safetensors")
    return folder


def load_cosyvoice3_talker(folder: Path, native: bool = False) -> Talker:
    """Our talker in fp32, on the CPU."""
    checkpoint, config = CheckpointFiles(folder), load_config(folder)
    if native:
        read = checkpoint.reader(LLM)
        parts = NativeParts("fp32", lambda name, shape: read(name_in_file(PARTS, name), shape))
        return native_talker(config, Tokenizer(folder, config), parts)
    with torch.device("meta"):
        network = TalkerNetwork(config)
    for part in PARTS:
        module = network.get_submodule(part.place.rstrip("."))
        checkpoint.load(module, LLM, part.prefix, torch.float32, "cpu")
    return network.eval().requires_grad_(False).talker()


def some_clip(tokens: int, mel: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Artifacts of a clip: so many speech tokens, and so many frames of its mel spectrogram."""
    random = np.random.default_rng(seed)
    return {
        TOKENS: random.integers(0, CODES, tokens).astype(np.uint16),
        MEL: random.integers(-20000, 4000, (mel, MEL_BANDS)).astype(np.int16),
        SPEAKER: random.standard_normal(SPEAKER_SIZE).astype(np.float32),
    }


def some_voice(transcript: str | None, tokens: int = 30, seed: int = 0) -> ResolvedVoice:
    """A voice of such a clip."""
    mode = "cross_lingual" if transcript is None else "zero_shot"
    return ResolvedVoice(some_clip(tokens, 2 * tokens, seed), transcript, mode)
