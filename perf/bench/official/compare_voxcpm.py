"""VoxCPM2: ours as bare stages against the official package voxcpm 2.0.3, with the same weights, in one process.

That runs eagerly, in fp32 and in bf16, its own default. Frames are made without a voice, from the same noise; in fp32
they (within 1e-4 of their spread), the latents of the clip and the waveform (within 1e-4 of its RMS) must be equal
before anything is timed.

    encode     a clip of noise to its latents
    prefill    the prompt
    models     a later frame of the language models, with the encoder of the frame before: the median
    sampler    a frame of the diffusion transformer, ten steps with guidance: the median
    bytes      the weights that both read for a frame, over the bandwidth that this machine has
    sums       the multiplications of the sampler, over those of a large fp32 matrix product
    whole      a frame of the released number of layers, from models and sampler by the weights that they read
    chunk      the decoder: a chunk of one frame of a stream
    decode     the same of 12 frames, over their number; official: of all at once
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from perf.bench import report
from perf.bench.machine import arithmetic, bandwidth, best, give_threads
from perf.bench.official.comparison import Clock, Times, cpu_settings, parser, show
from perf.bench.reference import TEXT
from tests.support.oracles.voxcpm import official_frames, official_model
from tests.support.oracles.voxcpm_audio import official_audio_vae, official_waveform
from tests.support.oracles.voxcpm_audio import official_frames as official_latents
from tools.families.voxcpm2.talker import TALKERS
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import LATENTS, PROMPT_LATENTS, WIDTH
from voice_clone.families.voxcpm2.codec import load_decoder
from voice_clone.families.voxcpm2.config import VoxCPM2Config, load_config
from voice_clone.families.voxcpm2.encoder import load_encoder
from voice_clone.families.voxcpm2.networks.language_models import local_stack_config
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.options import STEPS
from voice_clone.families.voxcpm2.talker import Talker, load_network
from voice_clone.families.voxcpm2.text import Prompt, Tokenizer
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone_server.diagnosis.workload import stack_weights

FAMILY = "voxcpm2"
TOLERANCE = 1e-4
CHUNK, CHUNKS = 12, 3  # frames of a chunk of the decoder; how many of them are timed
PASSES = STEPS - 1  # of the sampler's transformer: the first step stands still
ROWS = 2 * (2 * LATENTS + 3)  # of a pass, with and without guidance: this frame, the one before, two results, the time
SEED = 5
RELEASED = TALKERS["2b"]


def audio_vae(folder: Path, seconds: float, runs: int) -> dict[str, Times]:
    """Encode and decode of both; ends the process if they differ."""
    checkpoint = AudioVAECheckpoint(folder)
    official, encoder = official_audio_vae(checkpoint), load_encoder(cpu_settings(FAMILY, folder))
    samples = int(seconds * checkpoint.config.sample_rate)
    clip = 0.1 * torch.randn(samples - samples % checkpoint.config.clip_samples)
    theirs, ours = {}, {}
    theirs["encode"], expected = best(lambda: official_latents(official, clip, left=True), runs)
    ours["encode"], found = best(lambda: encoder.encode(clip.numpy(), "icl"), runs)
    check("latents", torch.from_numpy(found[PROMPT_LATENTS]), expected)
    frames = torch.randn(CHUNK * CHUNKS, WIDTH)
    whole, waveform = best(lambda: official_waveform(official, frames), runs)
    decoder = load_decoder(cpu_settings(FAMILY, folder)).decoder
    state, chunks, singles = decoder.new_state(1), Clock(decoder.decode_chunk), Clock(decoder.decode_chunk)
    parts = torch.split(frames.T[None].contiguous(), CHUNK, dim=2)
    check("waveforms", torch.cat([chunks(part, state)[0] for part in parts]), waveform)
    for part in torch.split(frames.T[None].contiguous(), 1, dim=2):
        singles(part, state)
    ours |= {"chunk": statistics.median(singles.seconds), "decode": statistics.median(chunks.seconds) / CHUNK}
    return {"official": {**theirs, "decode": whole / len(frames)}, "ours": ours}


def check(what: str, ours: Tensor, theirs: Tensor) -> None:
    """Ends the process if they differ."""
    error = float((ours - theirs).abs().max() / theirs.std())
    if ours.shape != theirs.shape or error > TOLERANCE:
        raise SystemExit(f"the {what} differ by {error:.1e} of their spread: nothing is timed")


def their_frames(folder: Path, dtype: str, prompt: Prompt, frames: int) -> tuple[Times, Tensor]:
    """Times of the official model, and its frames."""
    model = official_model(folder, dtype)
    official_frames(model, TEXT, prompt, "", SEED, 1)  # finds its weights on the disk
    sampler, ends = Clock(model.feat_decoder.forward), []

    def noted(*given: Any, **named: Any) -> Any:
        made = sampler(*given, **named)
        ends.append(time.perf_counter())
        return made

    began = time.perf_counter()
    with mock.patch.object(model.feat_decoder, "forward", noted):
        made = official_frames(model, TEXT, prompt, "", SEED, frames)
    return times_of(ends, sampler.seconds, began), made


def our_frames(folder: Path, precision: str, prompt: Prompt, frames: int) -> tuple[Times, Tensor]:
    """The same of ours, and the bytes that models and sampler read for a frame."""
    talker: Talker = load_network(cpu_settings(FAMILY, folder, precision))
    config = talker.config
    sampler = Clock(talker.head.make)
    talker.head.make = sampler  # type: ignore[method-assign]
    generator: Generator[Prompt] = Generator(talker, slots=1, max_length=512)
    request = TalkerRequest(prompt, SamplingParameters(seed=SEED), frames, endless=True)
    generator.prefill({0: generator.start(0, request)})
    generator.step([0])  # compiles what was never compiled
    generator.free(0)
    sampler.seconds.clear()
    began, ends, made = time.perf_counter(), [], []
    generator.prefill({0: generator.start(0, request)})
    for _ in range(frames):
        [frame] = generator.step([0])
        ends.append(time.perf_counter())
        made.append(frame.payload)
    frames_made = torch.from_numpy(np.stack([each for each in made if each is not None]))
    return {**times_of(ends, sampler.seconds, began), **read_bytes(talker, config)}, frames_made


def times_of(ends: list[float], sampler: list[float], began: float) -> Times:
    """From when each frame was done, and the seconds of the sampler for each."""
    later = [end - before - drawn for before, end, drawn in zip(ends, ends[1:], sampler[1:], strict=False)]
    return {
        "prefill": ends[0] - began - sampler[0],
        "models": statistics.median(later),
        "sampler": statistics.median(sampler),
    }


def read_bytes(talker: Talker, config: VoxCPM2Config) -> Times:
    """Weights of a frame, of this shape and of the released layers."""

    def size(module: torch.nn.Module) -> int:
        return sum(each.nbytes for each in module.modules() if isinstance(each, NativeLinear))

    def stack(native: NativeStack | None) -> int:
        assert native is not None
        return native.nbytes

    models, estimator = talker.models, talker.sampler.estimator
    assert models.native is not None
    base, residual = map(stack, models.native)
    encoder, layers = stack(models.feat_encoder.native_encoder), stack(estimator.native_decoder)
    once, each_pass = size(models) + size(talker.sampler) - size(estimator), size(estimator)
    lms = RELEASED.lm_config.num_hidden_layers / config.lm_config.num_hidden_layers
    residuals = RELEASED.residual_lm_num_layers / config.residual_lm_num_layers
    encoders = RELEASED.encoder_config.num_layers / config.encoder_config.num_layers
    dits = RELEASED.dit_config.num_layers / config.dit_config.num_layers
    return {
        "models_bytes": base + residual + encoder + once,
        "sampler_bytes": PASSES * (layers + each_pass),
        "released_models_bytes": lms * base + residuals * residual + encoders * encoder + once,
        "released_sampler_bytes": PASSES * (dits * layers + each_pass),
    }


def main() -> int:
    """The command line."""
    given = parser("perf/compare_voxcpm_official", __doc__, "its weights in one file").parse_args()
    config = load_config(given.checkpoint)
    nothing = np.zeros((0, WIDTH), np.float32)
    prompt = Prompt(Tokenizer(given.checkpoint, config).text_ids(TEXT), nothing, nothing)
    give_threads()
    torch.manual_seed(0)
    found = audio_vae(given.checkpoint, given.seconds, given.runs)
    expected: Tensor | None = None
    for name, dtype in (("official", "float32"), ("official bf16", "bfloat16")):
        give_threads()
        theirs, frames = their_frames(given.checkpoint, dtype, prompt, given.frames)
        found[name] = {**found.get(name, {}), **theirs}
        expected = frames if expected is None else expected
    assert expected is not None
    speed, products = bandwidth(), arithmetic()
    for precision in given.precision:
        times, frames = our_frames(given.checkpoint, precision, prompt, given.frames)
        if precision == "fp32":
            check("frames", frames, expected)
        found[precision] = {
            **times,
            "bytes": (times["models_bytes"] + times["sampler_bytes"]) / speed,
            "sums": ROWS * PASSES * stack_weights(local_stack_config(config, config.dit_config)) / products,
            "whole": times["models"] * times["released_models_bytes"] / times["models_bytes"]
            + times["sampler"] * times["released_sampler_bytes"] / times["sampler_bytes"],
        }
    columns = ("encode", "prefill", "models", "sampler", "bytes", "sums", "whole", "chunk", "decode")
    show(found, columns)
    report.write(given.output, {"figures": found, "bandwidth": speed, "arithmetic": products})
    return 0


if __name__ == "__main__":
    sys.exit(main())
