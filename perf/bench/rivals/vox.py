"""vox-tts: a speech, in the environment that has it. It takes the voice from the clip, and the text as frames go on."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken, answer, peak_megabytes, request


def main() -> None:
    import numpy as np
    import vox  # type: ignore[import-not-found]

    given = request()
    engine = vox.Engine(given["model"], resources=vox.Resources(device="cpu", threads=given["threads"]))
    loaded = time.monotonic()
    voice = engine.clone_voice(given["clip"], xvector_only=True)
    likeliest = {"top_k": 1, "sub_top_k": 1, "repetition_penalty": given["repetition_penalty"], "seed": 0}

    def speak(frames: int) -> tuple[float, Any]:
        began = time.perf_counter()
        samples = engine.synthesize(given["text"], voice, language="english", max_frames=frames, **likeliest)
        return time.perf_counter() - began, samples

    warm_up, _ = speak(WARM_UP_FRAMES)
    before = engine.stats()["backend"]
    whole, samples = speak(given["frames"])
    megabytes = peak_megabytes()
    after = engine.stats()["backend"]
    spent = {name: after["seconds"][name] - before["seconds"][name] for name in after["seconds"]}
    frames = after["frames"] - before["frames"]
    np.save(given["output"], samples)
    answer(
        Spoken(
            version=metadata.version("vox-tts"),
            loaded=loaded,
            warm_up=warm_up,
            positions=after["prefill_rows"] - before["prefill_rows"],
            prompt=spent["prefill"],
            frame=(spent["talker"] + spent["predictor"]) / frames,
            decoder=spent["codec"] / frames,
            whole=whole,
            megabytes=megabytes,
        )
    )


if __name__ == "__main__":
    main()
