"""Our talker of VoxCPM2 with the weights of a checkpoint, and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.families.voxcpm2.audio_vae_config import WIDTH
from voice_clone.families.voxcpm2.config import MODEL, load_config
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork
from voice_clone.families.voxcpm2.prompt import Prompt, Tokenizer
from voice_clone.families.voxcpm2.talker import PARTS, Talker, native_talker
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Precision
from voice_clone.stages.loading import name_in_file


def load_voxcpm2_talker(folder: Path, native: Precision | None = None) -> Talker:
    """Our talker on the CPU: torch's in fp32, or native."""
    checkpoint, config = CheckpointFiles(folder), load_config(folder)
    if native is not None:
        read = checkpoint.reader(MODEL)
        parts = NativeParts(native, lambda name, shape: read(name_in_file(PARTS, name), shape))
        return native_talker(config, Tokenizer(folder, config), parts)
    with torch.device("meta"):
        network = TalkerNetwork(config)
    for part in (network.models, network.sampler):
        checkpoint.load(part, MODEL, "", torch.float32, "cpu")
    return network.eval().requires_grad_(False).talker()


def latents(frames: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Frames of a clip."""
    return np.random.default_rng([seed, frames]).standard_normal((frames, WIDTH)).astype(np.float32)


def some_prompt(tokens: int = 9, reference: int = 0, before: int = 0, seed: int = 0) -> Prompt:
    """Any text, with clips of so many frames."""
    ids = np.random.default_rng(seed).integers(366, 900, tokens).astype(np.int32)
    return Prompt(ids, latents(reference, seed), latents(before, seed + 1))


def made_frames(
    talker: Talker,
    given: Sequence[tuple[Prompt, SamplingParameters]],
    frames: int,
    together: bool = False,
    runner: GraphRunner | None = None,
    endless: bool = True,
    deterministic: bool = False,
) -> list[Tensor]:
    """Frames fp32 [n, W] of each stream; side by side, or one after the other."""
    generator: Generator[Prompt] = Generator(
        talker, slots=len(given), max_length=160, runner=runner, deterministic=deterministic
    )
    generator.prepare()
    made: list[list[Tensor]] = [[] for _ in given]
    for group in [[*range(len(given))]] if together else [[slot] for slot in range(len(given))]:
        for slot in group:
            generator.start(slot, TalkerRequest(*given[slot], frames, endless=endless))
        going = list(group)
        while going:
            for slot, frame in zip(list(going), generator.step(going), strict=True):
                assert frame.payload is not None
                made[slot].append(torch.from_numpy(frame.payload))
                if frame.finish:
                    going.remove(slot)
        for slot in group:
            generator.free(slot)
    return [torch.stack(each) for each in made]
