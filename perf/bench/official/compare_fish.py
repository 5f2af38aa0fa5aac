"""Fish Speech: ours as bare stages against the official fish-speech 0.1.0, with the same weights, in one process.

Frames are the likeliest ones after one prompt; in fp32 they, the codes of the clip and the waveform (within 1e-4 of its
RMS) must be equal before anything is timed. Each time is the best of `--runs`, official and ours in turns.

    encode     a clip of noise to its codes
    prefill    the prompt up to the first frame
    frame      a later frame of both transformers, the median
    decode     frames to samples, over their number

The floor of a frame is its weights' bytes over the bandwidth that this machine has.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perf.bench import report
from perf.bench.families.family import frame_bytes
from perf.bench.machine import bandwidth, best, give_threads, keep_threads
from perf.bench.official.comparison import Times, check_waveform, cpu_settings, parser, show
from tests.support.oracles.fish_speech import (
    dac_of,
    fill_official_codec,
    fill_official_transformer,
    generate,
    load_codec,
    official_prompt,
    official_sizes,
    random_prompt,
    s2_transformer,
)
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.codec import NativeCodecDecoder
from voice_clone.families.fish_speech.config import SAMPLE_RATE
from voice_clone.families.fish_speech.talker import Talker, load_network
from voice_clone.families.fish_speech.text import Prompt, Tokenizer


def codec(checkpoint: Checkpoint, seconds: float, runs: int) -> dict[str, Times]:
    """Encode and decode of both; raises if they differ."""
    encoder, decoder = load_codec(checkpoint)
    official: Any = dac_of(checkpoint.codec)
    fill_official_codec(official, checkpoint)
    clip = 0.1 * torch.randn(int(seconds * SAMPLE_RATE), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        theirs, expected = best(lambda: official.encode(clip[None])[0], runs)
        ours, codes = best(lambda: encoder.encode(clip), runs)
        if not torch.equal(codes, expected[0].T):
            raise SystemExit("the codes of the clip differ: nothing is timed")
        frames = len(codes)
        theirs_decode, waveform = best(lambda: official.decode(expected, torch.tensor([frames]))[0][:, 0], runs)
        native = NativeCodecDecoder(lambda: decoder)
        keep_threads()
        ours_decode, samples = best(lambda: native.decode_chunk(expected.numpy(), native.new_state(1)), runs)
    check_waveform(torch.from_numpy(samples), waveform)
    return {
        "official": {"encode": theirs, "decode": theirs_decode / frames},
        "ours": {"encode": ours, "decode": ours_decode / frames},
    }


def official_frames(checkpoint: Checkpoint, prompt: Prompt, frames: int) -> tuple[Times, torch.Tensor]:
    """Prefill and frame of the official transformers, and their frames."""
    end = Tokenizer(checkpoint.folder, checkpoint.config).end_token
    model = s2_transformer(checkpoint.config.semantic_start_token_id, end, **official_sizes(checkpoint)).eval()
    fill_official_transformer(model, checkpoint.folder)
    stamps = [time.perf_counter()]
    inner = model.forward_generate

    def stamped(*given: Any, **named: Any) -> Any:
        result = inner(*given, **named)
        stamps.append(time.perf_counter())
        return result

    model.forward_generate = stamped
    stamps[0] = time.perf_counter()
    codes = generate(model, official_prompt(checkpoint, prompt), frames)
    steps = np.diff(stamps)
    return {"prefill": float(steps[0]), "frame": statistics.median(steps[1:].tolist())}, codes


def our_frames(folder: Path, precision: str, prompt: Prompt, frames: int) -> tuple[Times, torch.Tensor]:
    """Prefill and frame of ours, the bytes that a frame reads, and the frames."""
    talker: Talker = load_network(cpu_settings("fish_speech", folder, precision))
    generator: Generator[Prompt] = Generator(talker, slots=1, max_length=512)
    stamps = [time.perf_counter()]
    generator.start(0, TalkerRequest(prompt, OneSampling(seed=0, do_sample=False), frames))
    made = []
    for _ in range(frames):
        [frame] = generator.step([0])
        stamps.append(time.perf_counter())
        made += [] if frame.payload is None else [frame.payload]
    steps = np.diff(stamps)
    times = {
        "prefill": float(steps[0]),
        "frame": statistics.median(steps[1:].tolist()),
        "bytes": float(frame_bytes(talker)),
    }
    return times, torch.from_numpy(np.stack(made)).long()


def main() -> int:
    """The command line."""
    given = parser("perf/compare_fish_official", __doc__, "its transformers in one file").parse_args()
    checkpoint = Checkpoint(given.checkpoint)
    give_threads()
    prompt = random_prompt(checkpoint, 0)
    found: dict[str, Times] = codec(checkpoint, given.seconds, given.runs)
    give_threads()
    theirs, expected = official_frames(checkpoint, prompt, given.frames)
    found["official"] |= theirs
    speed = bandwidth()
    for precision in given.precision:
        times, codes = our_frames(given.checkpoint, precision, prompt, given.frames)
        if precision == "fp32" and not torch.equal(codes, expected[: len(codes)]):
            raise SystemExit("the frames differ: nothing is timed")
        found[precision] = {**times, "floor": times["bytes"] / speed}
    columns = ("encode", "prefill", "frame", "floor", "decode")
    show(found, columns)
    report.write(given.output, {"figures": found, "bandwidth": speed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
