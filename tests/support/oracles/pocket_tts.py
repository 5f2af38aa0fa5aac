"""Pocket TTS's official package, pocket-tts 4.0.1, with the weights of one of our checkpoints.

tools/env.sh puts it into `.venv/official` without what it depends on. Its noise is replaced by that of our talker.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from tests.support.oracles.packages import PACKAGES
from voice_clone.autoregressive.philox import NormalDraws
from voice_clone.checkpoint_folder import read_json
from voice_clone.families.pocket_tts.config import CONFIG_FILE


def official_model(checkpoint: Path) -> Any:
    """The package's `TTSModel` of a checkpoint."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    threads = torch.get_num_threads()
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    package = importlib.import_module("pocket_tts")
    torch.set_num_threads(threads)  # its import sets one
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.yaml"
        file.write_text(yaml.safe_dump(official_config(checkpoint)), encoding="utf-8")
        model = package.TTSModel.load_model(config=file)
    model.max_decoder_frames_per_call = 1  # else two threads decide how many, and the last bits vary
    return model


def official_config(checkpoint: Path) -> dict[str, Any]:
    """The content of its YAML file."""
    values = read_json(checkpoint, CONFIG_FILE)
    values = {name: value for name, value in values.items() if name not in ("model_type", "name")}
    values["weights_path"] = str(checkpoint / "model.safetensors")
    values["flow_lm"]["dtype"] = values["mimi"]["dtype"] = "float32"
    table = values["flow_lm"]["lookup_table"]
    table |= {"tokenizer": "tokenizers", "tokenizer_path": str(checkpoint / "tokenizer.json")}
    for name in ("transformer", "decoder_transformer"):
        if window := values["mimi"].get(name):
            window |= {
                "layer_scale": 0.01,
                "input_dimension": window["d_model"],
                "output_dimensions": [window["d_model"]],
            }
    return values


@contextmanager
def our_noise(seed: int, width: int, passes: int) -> Iterator[None]:
    """Within it, the package draws the noise that our talker draws for a seed.

    Args:
        passes: of the model before the first frame; each draws noise that is not used.
    """
    draws, usual = NormalDraws(seed, width), torch.nn.init.normal_
    made = iter(range(-passes, 1 << 30))

    def normal(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        frame = next(made)
        if frame >= 0:
            tensor.copy_(torch.from_numpy(draws.of(frame)).float() * std)
        return tensor

    torch.nn.init.normal_ = normal  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.init.normal_ = usual


@torch.no_grad()
def official_latents(model: Any, waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of a clip, as it is, [frames, numbers]."""
    latents: NDArray[np.float32] = model.mimi.encode_to_latent(torch.from_numpy(waveform)[None, None])[0].numpy()
    return latents


@torch.no_grad()
def official_speech(
    model: Any, waveform: NDArray[np.float32], text: str, seed: int, **how: Any
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Frames as the talker makes them, and samples.

    Args:
        how: of `generate_audio`.
    """
    state = model.get_state_for_audio_prompt(torch.from_numpy(waveform)[None])
    frames: list[Tensor] = []
    decode = model.mimi.decode_from_latent

    def spy(latent: Tensor, *rest: Any) -> Tensor:
        frames.append((latent[0] - model.flow_lm.emb_mean) / model.flow_lm.emb_std)
        out: Tensor = decode(latent, *rest)
        return out

    model.mimi.decode_from_latent = spy
    try:
        with our_noise(seed, model.flow_lm.ldim, passes=1):
            audio = model.generate_audio(state, text, **how)
    finally:
        model.mimi.decode_from_latent = decode
    return torch.cat(frames).numpy(), audio.numpy()


def prepared_texts(model: Any, texts: Sequence[str]) -> list[tuple[str, list[int], int]]:
    """Texts as the package prepares them, their tokens, and how many frames are heard after the end."""
    prepare = importlib.import_module("pocket_tts.models.text_chunking").prepare_text_prompt
    found = []
    for text in texts:
        prepared, after = prepare(
            text,
            model.pad_with_spaces_for_short_inputs,
            model.remove_semicolons,
            model.append_terminal_punctuation,
            model.capitalize_first_letter,
            model.replace_characters,
        )
        found.append((prepared, model.flow_lm.conditioner.tokenizer(prepared)[0].tolist(), after + 2))
    return found
