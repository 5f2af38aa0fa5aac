"""The official qwen-tts: a speech, in this project's environment."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from perf.bench.official.peers import Official
from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken, answer, peak_megabytes, request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    given = request()
    torch.set_num_threads(given["threads"])
    folder, precision = given["model"]
    official = Official(Path(folder), dtype=DTYPES[precision], embedding=np.load(given["embedding"]))
    loaded = time.monotonic()
    began = time.perf_counter()
    official.speak(WARM_UP_FRAMES)
    warm_up = time.perf_counter() - began
    _, spent = official.speak(given["frames"])
    answer(
        Spoken(
            version=metadata.version("qwen-tts"),
            loaded=loaded,
            warm_up=warm_up,
            positions=official.positions,
            prompt=spent.prefill,
            frame=spent.frame,
            decoder=spent.code2wav / given["frames"],
            whole=spent.total,
            megabytes=peak_megabytes(),
        )
    )


if __name__ == "__main__":
    main()
