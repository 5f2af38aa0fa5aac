"""llm.pt, flow.pt and hift.pt of a checkpoint, three pickles, to safetensors, once. It runs nothing that it finds.

The talker's sizes are those of the configuration, the others are read from a few tensors; then the names and shapes of
all must be exactly those of such networks. What is there twice or can be computed is dropped; the noise that official
keeps with flow and vocoder is written with them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from voice_clone.families.cosyvoice3.config import FLOW, HIFT, LLM, load_config
from voice_clone.families.cosyvoice3.decoder_config import flow_config, vocoder_config
from voice_clone_server.families.cosyvoice3.fixed_noise import FLOW_NOISE, SOURCE_NOISE_NAME, fixed_noise
from voice_clone_server.families.cosyvoice3.released_shapes import (
    GENERATOR,
    LM_HEAD,
    flow_shapes,
    llm_shapes,
    vocoder_shapes,
)
from voice_clone_server.families.pickles import Shapes, check_shapes, load_pickle, save_tensors, tensors_by_name

ROTARY = "decoder.estimator.rotary_embed.inv_freq"


def convert(checkpoint: Path) -> list[Path]:
    """Write llm.safetensors, flow.safetensors and hift.safetensors beside the pickles; earlier ones are replaced.

    Raises:
        CheckpointError: a file is missing or refused, or a new one cannot be written; one line says why.
    """
    talker_shapes = llm_shapes(load_config(checkpoint))
    del talker_shapes[LM_HEAD]
    flow_noise, source_noise = fixed_noise()
    talker = _read(checkpoint, LLM, lambda name: None if name == LM_HEAD else name, lambda _: talker_shapes)
    flow = _read(
        checkpoint,
        FLOW,
        lambda name: None if name == ROTARY else name,
        lambda shapes: flow_shapes(flow_config(shapes)),
    )
    vocoder = _read(
        checkpoint,
        HIFT,
        lambda name: name.removeprefix(GENERATOR),
        lambda shapes: vocoder_shapes(vocoder_config(shapes)),
    )
    made = {LLM: talker, FLOW: {**flow, FLOW_NOISE: flow_noise}, HIFT: {**vocoder, SOURCE_NOISE_NAME: source_noise}}
    return [
        save_tensors(checkpoint / f"{file}.safetensors", tensors, checkpoint / f"{file}.pt")
        for file, tensors in made.items()
    ]


def _read(
    folder: Path, name: str, rename: Callable[[str], str | None], expected: Callable[[Shapes], Shapes]
) -> dict[str, Tensor]:
    """The tensors of a pickle, checked.

    Args:
        expected: from the shapes found, what those of all should be.
    """
    file = f"{name}.pt"
    tensors = tensors_by_name(load_pickle(folder, file), file, rename)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_shapes(tensors, expected(shapes), file, f"no {name} of this family")
    return tensors
