"""OmniVoice's codec as transformers 5 has it, in a process of its own: `python omnivoice_codec.py CODEC IN OUT`.

The packages of this environment want another transformers, so `.venv/official5` has that one, and only this process
imports it. torchaudio is not there: of it the codec uses the resampler alone, which is written out here as its
documentation has it, by sums over windows in double precision.
"""

from __future__ import annotations

import importlib.machinery
import json
import math
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

OFFICIAL = Path(sys.prefix) / "official5"


def timed_codec(
    codec: Path, scratch: Path, clips: list[NDArray[np.float32]], codes: list[NDArray[Any]]
) -> list[tuple[NDArray[Any], float]]:
    """Codes [K, T] of each clip [samples], then waveforms [samples] of each of `codes` [K, T], each with its seconds.

    Args:
        codec: the folder `audio_tokenizer`.
        scratch: a folder for files on the way.
    """
    names = [f"clip{number:03}" for number, _ in enumerate(clips)] + [
        f"code{number:03}" for number, _ in enumerate(codes)
    ]
    given: dict[str, Any] = dict(zip(names, [*clips, *codes], strict=True))
    np.savez(scratch / "in.npz", **given)
    command = [sys.executable, __file__, str(codec), str(scratch / "in.npz"), str(scratch / "out.npz")]
    environment = {**os.environ, "PYTHONPATH": str(OFFICIAL), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, env=environment)
    with np.load(scratch / "out.npz") as made:
        return [(made[name], float(made[f"{name} seconds"])) for name in names]


def codec_of_transformers(
    codec: Path, scratch: Path, clips: list[NDArray[np.float32]], codes: list[NDArray[Any]]
) -> list[NDArray[Any]]:
    """As `timed_codec`, without the seconds."""
    return [made for made, _ in timed_codec(codec, scratch, clips, codes)]


def resample(waveform: torch.Tensor, rate: int, target: int) -> torch.Tensor:
    """[..., samples] at `rate` -> at `target` Hz: a sinc with six zeros on each side, under a squared cosine."""
    common = math.gcd(rate, target)
    old, new = rate // common, target // common
    band, length = 0.99 * min(old, new), waveform.shape[-1]
    reach = math.ceil(6 * old / band)
    steps = -(-length // old)
    padded = torch.nn.functional.pad(waveform.double(), (reach, reach + old))
    windows = padded.unfold(-1, 2 * reach + old, old)[..., :steps, :]  # of the samples around each `old` ones
    out = []
    for phase in range(new):
        times = (((torch.arange(2 * reach + old) - reach) / old - phase / new) * band).clamp(-6, 6).double()
        taps = torch.sinc(times) * torch.cos(times * math.pi / 12) ** 2 * band / old
        out.append((windows * taps.float().double()).sum(-1))
    resampled = torch.stack(out, dim=-1).flatten(-2)[..., : -(-length * new // old)]
    return resampled.to(waveform.dtype)


def _main(codec: Path, given: Path, made: Path) -> None:
    stub = types.ModuleType("torchaudio")
    stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    stub.functional = types.SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
    sys.modules["torchaudio"] = stub
    from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel  # type: ignore[attr-defined]

    config = HiggsAudioV2TokenizerConfig.from_dict(json.loads((codec / "config.json").read_text()))
    model = HiggsAudioV2TokenizerModel(config).eval()
    wrong = model.load_state_dict(load_file(codec / "model.safetensors"), strict=True)
    assert not wrong.missing_keys and not wrong.unexpected_keys
    out = {}
    with np.load(given) as arrays, torch.inference_mode():
        for name, array in arrays.items():
            tensor = torch.from_numpy(array)[None]
            began = time.perf_counter()
            if name.startswith("clip"):
                out[name] = model.encode(tensor[None]).audio_codes[0].numpy()
            else:
                out[name] = model.decode(tensor).audio_values[0, 0].numpy()
            out[f"{name} seconds"] = np.array(time.perf_counter() - began)
    np.savez(made, **out)


if __name__ == "__main__":
    _main(*map(Path, sys.argv[1:]))
