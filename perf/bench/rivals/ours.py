"""Our bare engine: a speech. It has no server around it, and is what a server's models run.

Torch is imported only where these models import it, and for what is measured behind the speech. As in their processes,
no garbage is collected until all has loaded.
"""

from __future__ import annotations

import time

from voice_clone import model_start

if __name__ == "__main__":
    model_start.prepare_imports()

from collections import defaultdict
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken, answer, peak_megabytes, request
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.native_predictor import NativePredictor
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.codec.decoder import StreamDecoder
from voice_clone.families.qwen3_tts.codec import load_decoder
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.prompt import Prompt, Tokenizer
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import load_network
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.thread_pool import use_threads
from voice_clone.settings import Settings, TalkerSettings

MAX_LENGTH = 2048  # positions
GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


class Engine:
    """Talker and decoder of a checkpoint."""

    def __init__(self, settings: Settings) -> None:
        talker = load_network(settings)
        assert isinstance(talker, NativeTalker)
        self.talker, self.config = talker, talker.config
        self.generator: Generator[Prompt] = Generator(talker, 1, MAX_LENGTH)
        stage = load_decoder(settings)
        self.decoder: StreamDecoder[Array] = stage.decoder
        self._format = stage.form
        self.tokenizer = Tokenizer(TalkerSettings.of(settings).checkpoint_dir)
        self.positions = 0  # of the latest prompt

    def speak(self, prompt: Prompt, frames: int) -> tuple[NDArray[np.float32], dict[str, float]]:
        """The samples; seconds of `prompt`, `first` frame, `frames` after it, `decoder` and `whole`."""
        generator, state = self.generator, self.decoder.new_state(1)
        spent: defaultdict[str, float] = defaultdict(float)
        began = last = time.perf_counter()

        def passed(part: str) -> None:
            nonlocal last
            now = time.perf_counter()
            spent[part] += now - last
            last = now

        self.positions = generator.start(0, TalkerRequest(prompt, GREEDY, frames))
        generator.prefill({0: self.positions})
        passed("prompt")
        pieces: list[NDArray[np.float32]] = []
        rows: list[Array] = []
        sizes = chain(BASE.chunk_frames, repeat(BASE.chunk_frames[-1]))
        size = next(sizes)
        for number in range(frames):
            [frame] = generator.step([0])
            if frame.payload is None:
                raise SystemExit(f"the speech ended after {number} frames: take another seed")
            rows.append(frame.payload)
            passed("frames" if number else "first")
            if len(rows) == size or number == frames - 1:
                pieces.append(self.decoder.decode_chunk(self._format.batch([np.stack(rows)], None), state)[0])
                passed("decoder")
                rows, size = [], next(sizes)
        generator.free(0)
        return np.concatenate(pieces), {**spent, "whole": last - began}

    @property
    def frame_bytes(self) -> int:
        """Of the weights that a frame reads."""
        head = self.talker.head
        assert isinstance(head.predictor, NativePredictor) and isinstance(head.logits, PackedLinear)
        return self.talker.stack.nbytes + head.predictor.frame_bytes + head.logits.nbytes


def main() -> None:
    model_start.imported()
    given = request()
    use_threads(given["threads"])
    folder, precision = given["model"]
    values = {"CHECKPOINT_DIR": folder, "DEVICE": "cpu", "PRECISION": precision}
    engine = Engine(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in values.items()}))
    model_start.loaded()
    loaded = time.monotonic()
    began = time.perf_counter()
    prompt = Prompt(
        role_ids=engine.tokenizer.role_ids,
        text_ids=engine.tokenizer.text_ids(given["text"]),
        speaker_embedding=np.load(given["embedding"]),
        language_id=engine.config.talker.codec_language_id["english"],
        non_streaming_mode=given["text_first"],
    )
    engine.speak(prompt, WARM_UP_FRAMES)
    warm_up = time.perf_counter() - began
    sound, spent = engine.speak(prompt, given["frames"])
    megabytes = peak_megabytes()
    np.save(given["output"], sound)
    from importlib import metadata  # behind all that is measured, as is torch

    from perf.bench.machine import bandwidth

    answer(
        Spoken(
            version=metadata.version("voice-clone-server"),
            loaded=loaded,
            warm_up=warm_up,
            positions=engine.positions,
            prompt=spent["prompt"],
            frame=spent["frames"] / (given["frames"] - 1),
            decoder=spent["decoder"] / given["frames"],
            whole=spent["whole"],
            megabytes=megabytes,
            floor=engine.frame_bytes / bandwidth(0.5),
        )
    )


if __name__ == "__main__":
    main()
