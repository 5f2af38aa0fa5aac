"""qwentts.cpp by a wheel of it: a speech, in the environment that has it. The times are those of its log."""

from __future__ import annotations

import re
import time
from importlib import metadata
from typing import Any

from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken, answer, peak_megabytes, request

PACKAGE = "realtimetts-qwen-native-cpu"
LINE = re.compile(r"\[Perf\] (\w+) ([\d.]+) ms")
POSITIONS = re.compile(r"\bT_ctx=(\d+)")
STAGES = ("PromptBuild", "Prefill", "TalkerDecode", "CodePredictor", "HostCompose", "CodecDecode")


def times(log: str) -> tuple[int, dict[str, float]]:
    """The positions of a prompt, and seconds by the log's names of stages.

    Raises:
        ValueError: the log does not have them.
    """
    found = {name: float(milliseconds) / 1e3 for name, milliseconds in LINE.findall(log)}
    missing = [name for name in STAGES if name not in found]
    positions = POSITIONS.search(log)
    if missing or positions is None:
        lacking = ", ".join(missing) or "T_ctx"
        raise ValueError(f"the log of qwentts.cpp lacks {lacking}; is it another version?\n{log[-2000:]}")
    return int(positions[1]), found


def main() -> None:
    import numpy as np
    import qwentts_cpp_cpu as package  # type: ignore[import-not-found]

    given = request()
    engine = package.QwenTTS(*given["model"], cpu_threads=given["threads"])
    loaded = time.monotonic()
    embedding = np.load(given["embedding"])
    log: list[str] = []
    engine.set_log_callback(lambda level, line: log.append(line))

    def speak(frames: int) -> tuple[float, Any]:
        began = time.perf_counter()
        pieces = [
            piece
            for piece, _ in engine.stream(
                text=given["text"],
                lang="english",
                ref_spk_emb=embedding,
                do_sample=False,
                repetition_penalty=given["repetition_penalty"],
                max_new_tokens=frames,
                seed=0,
            )
        ]
        return time.perf_counter() - began, np.concatenate(pieces)

    warm_up, _ = speak(WARM_UP_FRAMES)
    log.clear()
    whole, samples = speak(given["frames"])
    megabytes = peak_megabytes()
    positions, spent = times("\n".join(log))
    np.save(given["output"], samples)
    answer(
        Spoken(
            version=metadata.version(PACKAGE),
            loaded=loaded,
            warm_up=warm_up,
            positions=positions,
            prompt=spent["PromptBuild"] + spent["Prefill"],
            frame=(spent["TalkerDecode"] + spent["CodePredictor"] + spent["HostCompose"]) / given["frames"],
            decoder=spent["CodecDecode"] / given["frames"],
            whole=whole,
            megabytes=megabytes,
        )
    )


if __name__ == "__main__":
    main()
