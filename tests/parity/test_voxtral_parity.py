"""Voxtral TTS against vllm-omni 0.30.0 and, for the backbone, transformers: random weights, fp32, given noise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.in_torch import InTorch
from tests.support.families.speech_like import rms, speech_like
from tests.support.families.voxtral import (
    clip_prompt,
    load_native_decoder,
    load_voxtral_codec,
    load_voxtral_talker,
    make_voxtral,
    preset_prompt,
)
from tests.support.oracles.voxtral import OfficialTalker, noise, official_codec, official_codes
from tests.support.pretend_gpu import pretend_gpu
from tools.families.voxtral.checkpoint_maker import make_checkpoint
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.voxtral.checkpoint import Checkpoint
from voice_clone.families.voxtral.codec_networks import CodecDecoder
from voice_clone.families.voxtral.config import SPECIAL_IDS
from voice_clone.families.voxtral.flow_head import SamplingParameters
from voice_clone.families.voxtral.prompt import Prompt
from voice_clone.families.voxtral.talker import Talker, load_network
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

SEEDS = (0, 2)  # of 1 a level of the odd shape lies halfway between two codes
RATE = 24000
LENGTHS = (1, 239, 240, 1000, 1920, 1921, 5000, 12345, RATE, 100_000)  # samples
FRAMES = 48  # of the talkers
TOLERANCE = 1e-4  # of the waveform's RMS
STREAMED = 1e-5  # likewise, chunks against the whole
DRAWS = ((5, 1.2), (2**40, 0.7), (3, 1.0))  # seed and guidance of each stream

KINDS = [(shape, seed) for shape in ("tiny", "odd") for seed in SEEDS]


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.long if kind[1] else []) for kind in KINDS],
    ids=[f"{shape}-{seed}" for shape, seed in KINDS],
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    shape, seed = request.param
    return Checkpoint(make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint", shape, seed))


def some_codes(checkpoint: Checkpoint, frames: int) -> Tensor:
    """int64 [1, K, frames]."""
    limits = torch.tensor(checkpoint.config.code_limits)
    random = torch.rand(1, frames, len(limits), generator=torch.Generator().manual_seed(3))
    return (random * limits).long().transpose(1, 2)


def in_chunks(decoder: CodecDecoder | InTorch, codes: Tensor, sizes: list[int]) -> Tensor:
    state = decoder.new_state(1)
    return torch.cat([decoder.decode_chunk(part, state) for part in torch.split(codes, sizes, dim=2)], dim=1)


def test_encoder_finds_the_same_codes(checkpoint: Checkpoint) -> None:
    encoder, _ = load_voxtral_codec(checkpoint)
    assert encoder is not None
    official = official_codec(checkpoint)
    seen = []
    for samples in LENGTHS:
        ids = encoder.encode(speech_like(samples, RATE))
        assert ids.shape == (math.ceil(samples / 1920) + 1, 37)
        expected = official_codes(official, speech_like(samples, RATE))
        assert torch.equal(ids, expected), f"{samples} samples: {int((ids != expected).sum())} ids differ"
        seen.append(ids[:-1])
    books = torch.cat(seen).T
    assert len(books[0].unique()) > 40  # not one code again and again
    assert min(len(book.unique()) for book in books[1:]) > 5


def test_decoder_makes_the_same_waveform(checkpoint: Checkpoint) -> None:
    """In torch and native; chunks of native code have the same bits as the whole."""
    codes = some_codes(checkpoint, 300)
    with torch.inference_mode():
        expected = official_codec(checkpoint).decode(codes)[:, 0]
    assert 0.02 < rms(expected) < 0.7 and float(expected.abs().max()) < 0.999
    for decoder, streamed in ((load_voxtral_codec(checkpoint)[1], STREAMED), (load_native_decoder(checkpoint), 0)):
        whole = in_chunks(decoder, codes, [300])
        assert float((whole - expected).abs().max()) < TOLERANCE * rms(expected)
        for sizes in ([1] * 300, [1, 2, 4, 8, 12, *[12] * 22, 9], [7, 293]):
            assert float((in_chunks(decoder, codes, sizes) - whole).abs().max()) <= streamed * rms(whole)


def test_chunks_equal_the_official_decode_behind_375_frames(checkpoint: Checkpoint) -> None:
    """There the official server cuts a speech into pieces without context; its network, given all, is exact."""
    decoder, codes = load_native_decoder(checkpoint), some_codes(checkpoint, 400)
    official = official_codec(checkpoint)
    with torch.inference_mode():
        expected = official.decode(codes)[:, 0]
        pieces = torch.cat([official.decode(part)[:, 0] for part in torch.split(codes, 375, dim=2)], dim=1)
    got = in_chunks(decoder, codes, [1, 2, 4, 8, *[12] * 32, 1])
    behind = slice(375 * 1920, None)
    assert float((got - expected)[:, behind].abs().max()) < STREAMED * rms(expected)
    assert float((pieces - expected)[:, behind].abs().max()) > 0.1 * rms(expected), "the cut does harm"


def prompts(checkpoint: Checkpoint) -> list[Prompt]:
    return [
        preset_prompt(checkpoint, "casual_male", "Paris is a beautiful city!"),
        clip_prompt(checkpoint, 9, "Guten Morgen, wie geht es Ihnen?"),
        preset_prompt(checkpoint, "hi_female", "नमस्ते"),
    ]


def official_frames(checkpoint: Checkpoint) -> list[Tensor]:
    """Codes int64 [FRAMES, K] of each stream, all of them side by side in the official networks."""
    official = OfficialTalker(checkpoint)
    given = [official.embed_prompt(checkpoint, prompt) for prompt in prompts(checkpoint)]
    draws = [noise(seed, FRAMES, 36) for seed, _ in DRAWS]
    return [ids - SPECIAL_IDS for ids in official.frames(given, draws, [guidance for _, guidance in DRAWS])]


def our_frames(talker: Talker, given: list[Prompt], together: bool, runner: GraphRunner | None = None) -> list[Tensor]:
    generator: Generator[Prompt] = Generator(talker, slots=len(given), max_length=256, runner=runner)
    generator.prepare()
    made: list[list[Tensor]] = [[] for _ in given]
    for group in [[*range(len(given))]] if together else [[slot] for slot in range(len(given))]:
        for slot in group:
            seed, guidance = DRAWS[slot]
            sampling = SamplingParameters(seed=seed, guidance=guidance)
            generator.start(slot, TalkerRequest(given[slot], sampling, FRAMES, endless=True))
        for _ in range(FRAMES):
            for slot, frame in zip(group, generator.step(group), strict=True):
                assert frame.payload is not None
                made[slot].append(torch.from_numpy(frame.payload.astype(np.int64)))
        for slot in group:
            generator.free(slot)
    return [torch.stack(frames) for frames in made]


def test_talker_makes_the_same_frames(checkpoint: Checkpoint) -> None:
    """Alone and in a batch; in torch, native, and in the fixed steps that CUDA graphs hold."""
    expected, given = official_frames(checkpoint), prompts(checkpoint)
    for native in (False, True):
        talker = load_voxtral_talker(checkpoint, native)
        for together in (False, True):
            for ours, theirs in zip(our_frames(talker, given, together), expected, strict=True):
                assert torch.equal(ours, theirs), f"native {native}, together {together}"
    for frames in expected:  # diverse, in all codebooks
        assert len(frames[:, 0].unique()) > 20 and min(len(book.unique()) for book in frames.T) > 4


@pytest.mark.parametrize("graphs", [False, True])
def test_talker_makes_the_same_frames_on_a_pretended_gpu(checkpoint: Checkpoint, graphs: bool) -> None:
    expected = official_frames(checkpoint)
    environ = {"CHECKPOINT_DIR": str(checkpoint.folder), "DEVICE": "cuda", "PRECISION": "fp32"}
    with pretend_gpu():
        talker: Talker = load_network(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environ.items()}))
        talker.stack.prepare(graphs)
        runner = GraphRunner() if graphs else None
        for ours, theirs in zip(our_frames(talker, prompts(checkpoint), True, runner), expected, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.long
def test_released_widths(tmp_path: Path) -> None:
    """Few layers of the released widths: ids of a second, frames, the waveform."""
    make_checkpoint("4b-2-encoder", 0, tmp_path / "checkpoint")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    encoder, decoder = load_voxtral_codec(checkpoint)
    assert encoder is not None
    official = official_codec(checkpoint)
    assert torch.equal(encoder.encode(speech_like(RATE, RATE)), official_codes(official, speech_like(RATE, RATE)))
    codes = some_codes(checkpoint, 40)
    with torch.inference_mode():
        expected = official.decode(codes)[:, 0]
    for each in (decoder, load_native_decoder(checkpoint)):
        assert float((in_chunks(each, codes, [40]) - expected).abs().max()) < TOLERANCE * rms(expected)
    del official, encoder, decoder, each
    frames = official_frames(checkpoint)
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint.folder), "VOICE_CLONE_DEVICE": "cpu"}
    talker: Talker = load_network(Settings({}, environ))
    for ours, theirs in zip(our_frames(talker, prompts(checkpoint), True), frames, strict=True):
        assert torch.equal(ours, theirs)
