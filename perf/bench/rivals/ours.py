"""Our bare engine: a speech. It has no server around it, and is what a server's models run."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from perf.bench.engine import Ours
from perf.bench.families.family import frame_bytes
from perf.bench.families.qwen3_tts import Qwen3TTS
from perf.bench.machine import bandwidth
from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken, answer, peak_megabytes, request
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.prompt import Prompt


def main() -> None:
    given = request()
    torch.set_num_threads(given["threads"])
    folder, precision = given["model"]
    ours = Ours(Qwen3TTS, Path(folder), precision)
    loaded = time.monotonic()
    tokenizer, config = ours.model.tokenizer, ours.model.config
    prompt = Prompt(
        role_ids=tokenizer.role_ids,
        text_ids=tokenizer.text_ids(given["text"]),
        speaker_embedding=np.load(given["embedding"]),
        language_id=config.talker.codec_language_id["english"],
        non_streaming_mode=given["text_first"],
    )
    began = time.perf_counter()
    ours.speak(prompt, WARM_UP_FRAMES)
    warm_up = time.perf_counter() - began
    codes, spent = ours.speak(prompt, given["frames"])
    megabytes = peak_megabytes()
    np.save(given["output"], ours.sound(codes[None])[0])
    how = ours.model.sampling(drawn=False)
    positions = ours.generator(1).start(0, TalkerRequest(prompt, how, given["frames"]))
    answer(
        Spoken(
            version=metadata.version("voice-clone"),
            loaded=loaded,
            warm_up=warm_up,
            positions=positions,
            prompt=spent.prefill,
            frame=spent.frame,
            decoder=spent.code2wav / given["frames"],
            whole=spent.total,
            megabytes=megabytes,
            floor=frame_bytes(ours.model.talker) / bandwidth(0.5),
        )
    )


if __name__ == "__main__":
    main()
