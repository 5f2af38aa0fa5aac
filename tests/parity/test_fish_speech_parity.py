"""Fish Speech against fish-speech 0.1.0, and its codec against vllm-omni 0.30.0, too: random weights, fp32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.families.fish import FISH_SHAPES, load_fish_talker, make_fish
from tests.support.families.in_torch import InTorch
from tests.support.families.speech_like import rms, speech_like
from tests.support.oracles.fish_speech import (
    dac_of,
    fill_official_codec,
    fill_official_transformer,
    generate,
    load_codec,
    official_prompt,
    official_sizes,
    omni_dac_of,
    random_prompt,
    s2_transformer,
)
from tools.families.fish_speech.checkpoint_maker import make_checkpoint
from voice_clone.array_kinds import array_of
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.codec import NativeCodecDecoder
from voice_clone.families.fish_speech.prompt import Prompt, Tokenizer
from voice_clone.families.fish_speech.talker import Talker, load_network
from voice_clone.settings import Settings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

SEEDS = (0, 1, 2)
RATE = 44100
LENGTHS = (100, 2048, 2049, 5000, 12345, 44100, 2 * RATE + 7, 3 * RATE, 7 * RATE)  # samples
LONG_LENGTHS = (30 * RATE,)
FRAMES = 64  # of the talkers
WAVEFORM_TOLERANCE = LOGITS_TOLERANCE = 1e-4

GRAPH_VARIANTS = [(shape, seed) for shape in FISH_SHAPES for seed in SEEDS]


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.long if kind[1] else []) for kind in GRAPH_VARIANTS],
    ids=[f"{shape}-{seed}" for shape, seed in GRAPH_VARIANTS],
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    shape, seed = request.param
    return Checkpoint(make_fish(tmp_path_factory.mktemp("fish") / "checkpoint", shape, seed))


def official_codecs(checkpoint: Checkpoint) -> list[Any]:
    """Those of fish-speech and of vllm-omni with the checkpoint's weights."""
    codecs = [dac_of(checkpoint.codec), omni_dac_of(checkpoint.codec)]
    for codec in codecs:
        fill_official_codec(codec, checkpoint)
    return codecs


@pytest.mark.parametrize("lengths", [LENGTHS, pytest.param(LONG_LENGTHS, marks=pytest.mark.long)])
def test_encoder_finds_the_same_codes(checkpoint: Checkpoint, lengths: tuple[int, ...]) -> None:
    encoder, _ = load_codec(checkpoint)
    official, omni = official_codecs(checkpoint)
    seen = []
    for samples in lengths:
        waveform = speech_like(samples, RATE)
        codes = encoder.encode(waveform)
        assert codes.shape == (math.ceil(samples / 2048), 10)
        for codec in (official, omni) if samples < 3 * RATE else (official,):
            with torch.inference_mode():
                expected = codec.encode(waveform[None])[0][0].T
            assert torch.equal(codes, expected), f"{samples} samples: {int((codes != expected).sum())} codes differ"
        seen.append(codes)
    for book in torch.cat(seen).T:  # not one code again and again
        assert len(book.unique()) > 40


def test_decoder_makes_the_same_waveform(checkpoint: Checkpoint) -> None:
    _, decoder = load_codec(checkpoint)
    official, omni = official_codecs(checkpoint)
    generator = torch.Generator().manual_seed(3)
    limits = torch.tensor(checkpoint.config.code_limits)
    codes = (torch.rand(1, 300, 10, generator=generator) * limits).long().transpose(1, 2)
    with torch.inference_mode():
        expected = official.decode(codes, torch.tensor([300]))[0][:, 0]
        assert torch.equal(omni.decode(codes, torch.tensor([300]))[0][:, 0], expected)
        whole = decoder(codes)
    assert 0.02 < rms(expected) < 0.7 and float(expected.abs().max()) < 0.999
    assert float((whole - expected).abs().max()) < WAVEFORM_TOLERANCE * rms(expected)
    native = InTorch(NativeCodecDecoder(lambda: decoder))
    state = native.new_state(1)
    at_once = native.decode_chunk(codes, state)
    assert float((at_once - expected).abs().max()) < WAVEFORM_TOLERANCE * rms(expected)
    for sizes in ([1] * 300, [1, 2, 4, 8, 16, *[16] * 16, 13], [7, 293]):
        state = native.new_state(1)
        parts = [native.decode_chunk(part, state) for part in torch.split(codes, sizes, dim=2)]
        assert torch.equal(torch.cat(parts, dim=1), at_once)


def ours(talker: Talker, prompt: Prompt) -> tuple[Tensor, list[Tensor]]:
    """The likeliest frames [FRAMES, 10], and the logits of codebook 0."""
    generator: Generator[Prompt] = Generator(talker, slots=1, max_length=512)
    seen: list[Tensor] = []
    inner = talker.head.logits

    def logits(hidden: Any) -> Any:
        found = inner(hidden)
        seen.append(torch.from_numpy(array_of(found)[0].copy()))
        return found

    talker.head.logits = logits
    try:
        generator.start(0, TalkerRequest(prompt, OneSampling(seed=0, do_sample=False), FRAMES))
        frames = [generator.step([0])[0] for _ in range(FRAMES)]
    finally:
        talker.head.logits = inner
    payloads = [torch.from_numpy(frame.payload).long() for frame in frames if frame.payload is not None]
    return torch.stack(payloads), seen


@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
def test_talker_makes_the_same_frames(checkpoint: Checkpoint, native: bool) -> None:
    end = Tokenizer(checkpoint.folder, checkpoint.config).end_token
    official = s2_transformer(checkpoint.config.semantic_start_token_id, end, **official_sizes(checkpoint)).eval()
    fill_official_transformer(official, checkpoint.folder)
    talker = load_fish_talker(checkpoint, "fp32" if native else None)
    prompt = random_prompt(checkpoint, 5)
    expected = generate(official, official_prompt(checkpoint, prompt), FRAMES)
    codes, logits = ours(talker, prompt)
    assert torch.equal(codes, expected[:FRAMES])
    config = checkpoint.config
    ids = [
        *range(config.semantic_start_token_id, config.semantic_end_token_id + 1),
        official.tokenizer.get_token_id(""),
    ]
    for own, official_logits in zip(logits, official.seen, strict=False):
        assert float((own - official_logits[ids]).abs().max()) < LOGITS_TOLERANCE * float(own.std())
    assert min(len(book.unique()) for book in codes.T) > 10  # diverse frames, in all codebooks


@pytest.mark.long
def test_released_widths(tmp_path: Path) -> None:
    """Two and one layers of the released widths: codes of a second, greedy frames, the native decoder's waveform."""
    make_checkpoint("s2-pro-2", 0, tmp_path / "checkpoint")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    encoder, decoder = load_codec(checkpoint)
    official = dac_of(checkpoint.codec)
    fill_official_codec(official, checkpoint)
    waveform = speech_like(RATE, RATE)
    with torch.inference_mode():
        expected = official.encode(waveform[None])[0]
        samples = official.decode(expected, torch.tensor([expected.shape[-1]]))[0][:, 0]
    assert torch.equal(encoder.encode(waveform), expected[0].T)
    native = InTorch(NativeCodecDecoder(lambda: decoder))
    error = (native.decode_chunk(expected, native.new_state(1)) - samples).abs().max()
    assert float(error) < WAVEFORM_TOLERANCE * rms(samples)
    del official, encoder, native
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint.folder), "VOICE_CLONE_DEVICE": "cpu"})
    talker: Talker = load_network(settings)
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.config)
    model = s2_transformer(
        checkpoint.config.semantic_start_token_id, tokenizer.end_token, **official_sizes(checkpoint)
    ).eval()
    fill_official_transformer(model, checkpoint.folder)
    prompt = random_prompt(checkpoint, 5)
    frames = generate(model, official_prompt(checkpoint, prompt), FRAMES)
    assert torch.equal(ours(talker, prompt)[0], frames[:FRAMES])
