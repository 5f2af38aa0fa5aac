"""Voxtral TTS: ours as bare stages against the networks of vllm-omni 0.30.0, with the same weights, in one process.

Those run eagerly in fp32, with transformers' Mistral as the backbone. Frames are made in the first preset voice, from
the same noise; in fp32 they, the codes of the clip and the waveform (within 1e-4 of its RMS) must be equal before
anything is timed.

    encode     a clip of noise to its codes, if the checkpoint has an encoder
    prefill    the prompt
    backbone   a later frame of it, the median
    head       a frame of the flow head: the semantic code, and all Euler steps with guidance; the median
    floor      the weights that both read for a frame, over the bandwidth that this machine has
    chunk      the codec's decoder: a chunk of one frame of a stream
    decode     the same of 12 frames, over their number; official: of all at once

`whole` is a frame of the released number of layers, from backbone and head by the weights that they read.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf.bench import report
from perf.bench.machine import bandwidth, best, give_threads
from perf.bench.official.comparison import Clock, Times, check_waveform, cpu_settings, parser, show
from perf.bench.reference import TEXT
from tests.support.oracles.voxtral import OfficialTalker, noise, official_codec, official_codes
from tools.families.voxtral.checkpoint_config import SHAPES
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.voxtral.checkpoint import Checkpoint
from voice_clone.families.voxtral.codec import load_decoder
from voice_clone.families.voxtral.config import SPECIAL_IDS, VoxtralConfig
from voice_clone.families.voxtral.encoder import load_encoder
from voice_clone.families.voxtral.flow_head import SamplingParameters
from voice_clone.families.voxtral.talker import Talker, load_network
from voice_clone.families.voxtral.text import CODES, Prompt, Tokenizer
from voice_clone.native.matrix.linear_module import NativeLinear

CHUNK, CHUNKS = 12, 4  # frames of a chunk of the decoder; how many of them are timed
SEED = 5
RELEASED = SHAPES["4b"]


def codec(checkpoint: Checkpoint, seconds: float, runs: int) -> dict[str, Times]:
    """Encode and decode of both; ends the process if they differ."""
    official, config = official_codec(checkpoint), checkpoint.config
    theirs, ours = {}, {}
    if checkpoint.has_encoder:
        encoder = load_encoder(cpu_settings("voxtral", checkpoint.folder))
        clip = 0.1 * torch.randn(int(seconds * config.codec.sampling_rate), generator=torch.Generator().manual_seed(0))
        theirs["encode"], expected = best(lambda: official_codes(official, clip), runs)
        ours["encode"], found = best(lambda: encoder.encode(clip.numpy(), "icl"), runs)
        if not np.array_equal(found[CODES], expected.numpy()):
            raise SystemExit("the codes of the clip differ: nothing is timed")
    decoder = load_decoder(cpu_settings("voxtral", checkpoint.folder)).decoder
    limits = torch.tensor(config.code_limits)
    random = torch.rand(1, CHUNK * CHUNKS, len(limits), generator=torch.Generator().manual_seed(0))
    codes = (random * limits).long().transpose(1, 2)
    with torch.inference_mode():
        whole, waveform = best(lambda: official.decode(codes)[:, 0], runs)
        state, chunks = decoder.new_state(1), Clock(decoder.decode_chunk)
        samples = torch.cat([chunks(part, state) for part in torch.split(codes, CHUNK, dim=2)], dim=1)
        singles = Clock(decoder.decode_chunk)
        for part in torch.split(codes, 1, dim=2):
            singles(part, state)
    check_waveform(samples, waveform)
    ours |= {"chunk": statistics.median(singles.seconds), "decode": statistics.median(chunks.seconds) / CHUNK}
    return {"official": {**theirs, "decode": whole / codes.shape[2]}, "ours": ours}


def official_frames(checkpoint: Checkpoint, prompt: Prompt, frames: int) -> tuple[Times, Tensor]:
    """Times of the official networks, and their frames as codes."""
    official = OfficialTalker(checkpoint)
    given = official.embed_prompt(checkpoint, prompt)
    official.backbone, official.head = backbone, head = Clock(official.backbone), Clock(official.head)
    drawn = noise(SEED, frames, checkpoint.config.audio.n_acoustic_codebook)
    [ids] = official.frames([given], [drawn], [SamplingParameters(seed=SEED).guidance])
    prefill, *later = backbone.seconds
    times = {"prefill": prefill, "backbone": statistics.median(later), "head": statistics.median(head.seconds)}
    return times, ids - SPECIAL_IDS


def our_frames(folder: Path, precision: str, prompt: Prompt, frames: int) -> tuple[Times, Tensor]:
    """Times of ours, the bytes that backbone and head read for a frame, and the frames."""
    talker: Talker = load_network(cpu_settings("voxtral", folder, precision))
    head = Clock(talker.head.make)
    talker.head.make = head  # type: ignore[method-assign]
    generator: Generator[Prompt] = Generator(talker, slots=1, max_length=512)
    left = generator.start(0, TalkerRequest(prompt, SamplingParameters(seed=SEED), frames, endless=True))
    prefill = Clock(generator.prefill)
    prefill({0: left})
    step, made = Clock(generator.step), []
    for _ in range(frames):
        [frame] = step([0])
        made.append(frame.payload)
    backbone = [whole - part for whole, part in zip(step.seconds, head.seconds, strict=True)]
    times = {
        "prefill": prefill.seconds[0],
        "backbone": statistics.median(backbone[1:]),  # the first frame is made of the prompt
        "head": statistics.median(head.seconds),
        **frame_bytes(talker),
    }
    return times, torch.from_numpy(np.stack(made)).long()


def frame_bytes(talker: Talker) -> Times:
    """The weights of a frame: of the backbone, of the head's layers, and of what else the head reads."""

    def size(*projections: Any) -> int:
        return sum(each.nbytes for each in projections if isinstance(each, NativeLinear))

    assert isinstance(talker.native_stack, NativeStack)
    flow = talker.flow
    layers = sum(size(*layer.modules()) for layer in flow.layers)
    once = size(flow.semantic_codebook_output, flow.llm_projection)
    each_step = size(flow.input_projection, flow.acoustic_codebook_output)
    return {
        "backbone_bytes": talker.native_stack.nbytes,
        "layer_bytes": flow.steps * layers,
        "other_bytes": once + flow.steps * each_step,
    }


def released_frame(times: Times, config: VoxtralConfig) -> float:
    """Seconds of a frame of the released number of layers."""
    layers, others = times["layer_bytes"], times["other_bytes"]
    more = (layers * RELEASED.flow_layers / config.flow.n_layers + others) / (layers + others)
    return times["backbone"] * RELEASED.layers / config.n_layers + times["head"] * more


def main() -> int:
    """The command line."""
    given = parser("perf/compare_voxtral_official", __doc__, "its weights in one file").parse_args()
    checkpoint = Checkpoint(given.checkpoint)
    tokenizer, width = Tokenizer(checkpoint.folder, checkpoint.config), checkpoint.config.codebooks
    first = np.zeros(1, np.int32), np.zeros((0, width), np.uint16)
    prompt = Prompt(tokenizer.before_voice, tokenizer.text_ids(TEXT), *first)
    give_threads()
    found: dict[str, Times] = codec(checkpoint, given.seconds, given.runs)
    give_threads()
    theirs, expected = official_frames(checkpoint, prompt, given.frames)
    found["official"] |= theirs
    speed = bandwidth()
    for precision in given.precision:
        times, codes = our_frames(given.checkpoint, precision, prompt, given.frames)
        if precision == "fp32" and not torch.equal(codes, expected):
            raise SystemExit("the frames differ: nothing is timed")
        read = sum(times[name] for name in ("backbone_bytes", "layer_bytes", "other_bytes"))
        found[precision] = {**times, "floor": read / speed, "whole": released_frame(times, checkpoint.config)}
    columns = ("encode", "prefill", "backbone", "head", "floor", "whole", "chunk", "decode")
    show(found, columns)
    report.write(given.output, {"figures": found, "bandwidth": speed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
