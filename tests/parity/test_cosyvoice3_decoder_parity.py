"""CosyVoice3's flow and vocoder against vllm-omni 0.30.0 and, where it is there, the official code.

The weights are random, all is in fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.cosyvoice_decoder import make_cosyvoice_decoder, some_reference, some_tokens
from tests.support.oracles.cosyvoice3 import source
from tests.support.oracles.cosyvoice3_decoder import official_flow, official_mel, official_vocoder
from voice_clone.families.cosyvoice3.config import BLOCK, MEL, MEL_FRAMES, MEL_STEPS, SPEAKER
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.networks.flow import Block, FlowNetwork, Page, Span
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

CPU = torch.device("cpu")
WITH_CHECKOUT = pytest.mark.skipif(source() is None, reason="no checkout of the official code")
TOLERANCE = 1e-5  # of the mel's and the waveform's RMS
TOKENS = 90


@pytest.fixture(
    scope="module",
    params=[
        ("tiny", 0),
        pytest.param(("tiny", 1), marks=pytest.mark.long),
        pytest.param(("0.5b-2", 0), marks=pytest.mark.long),
    ],
    ids=lambda kind: f"{kind[0]}-{kind[1]}",
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderCheckpoint:
    shape, seed = request.param
    return DecoderCheckpoint(make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint", shape, seed))


@pytest.fixture(params=[False, pytest.param(True, marks=WITH_CHECKOUT)], ids=["vllm-omni", "checkout"])
def checkout(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def inputs(reference: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens of the voice and the stream, int64; the voice's mel and speaker embedding."""
    voice = some_reference(reference)
    tokens = [torch.from_numpy(each.astype(np.int64)).flatten() for each in (voice.context, some_tokens(TOKENS, 3))]
    return *tokens, torch.from_numpy(voice.voice[MEL]).float() / MEL_STEPS, torch.from_numpy(voice.voice[SPEAKER])  # type: ignore[return-value]


def our_mel(flow: FlowNetwork, reference: Tensor, tokens: Tensor, mel: Tensor, speaker: Tensor) -> Tensor:
    """Block by block, from page to page: [frames of the stream, 80]."""
    every = torch.cat([reference, tokens])
    known = torch.cat([mel, torch.zeros(MEL_FRAMES * len(tokens), 80)])
    pages: list[Page] = []
    made: list[Tensor] = []
    for number in range(-(-len(every) // BLOCK)):
        rows = flow.embed_tokens(every, number)
        begin = BLOCK * MEL_FRAMES * number
        block, page = Block(rows, known[begin : begin + len(rows)]), flow.new_page(0)
        keep = page if len(rows) == BLOCK * MEL_FRAMES else None
        made += flow.solve([Span(flow.embed_speaker(speaker), pages, [block], [keep])], False)[0]
        pages.append(page)
    return torch.cat(made)[len(mel) :]


@pytest.mark.parametrize("reference", [0, 37, 50])
def test_flow_makes_the_same_mel(checkpoint: DecoderCheckpoint, checkout: bool, reference: int) -> None:
    flow, given = checkpoint.load_flow(torch.float32, CPU), inputs(reference)
    expected = official_mel(official_flow(checkpoint, checkout), flow.noise, *given)
    assert expected.shape == (MEL_FRAMES * TOKENS, 80)
    scale = float(expected.square().mean().sqrt())
    assert scale > 0.1
    assert float((our_mel(flow, *given) - expected).abs().max()) < TOLERANCE * scale


def test_frames_that_the_official_code_makes_early_are_the_same(checkpoint: DecoderCheckpoint, checkout: bool) -> None:
    """With whole blocks and three more tokens; of a cut elsewhere the official code makes others."""
    flow, (reference, tokens, mel, speaker) = checkpoint.load_flow(torch.float32, CPU), inputs(37)
    official = official_flow(checkpoint, checkout)
    ours = our_mel(flow, reference, tokens, mel, speaker)
    for blocks, same in ((2, True), (3, True), (2.6, False)):
        frames = int(50 * blocks) - len(mel)
        early = official_mel(official, flow.noise, reference, tokens[: frames // 2 + 3], mel, speaker, more=True)
        assert early.shape == (frames, 80)
        error = float((early - ours[:frames]).abs().max())
        assert (error < 1e-4) == same, f"{blocks} blocks: {error}"


def official_waveform(official: Any, mel: Tensor) -> Tensor:
    made, *_ = official.inference(mel[None])
    waveform: Tensor = made[0]
    return waveform


def test_vocoder_makes_the_same_waveform(checkpoint: DecoderCheckpoint, checkout: bool) -> None:
    """Ten seconds, in pieces as streams have them; partly voiced."""
    ours, official = checkpoint.load_vocoder(CPU), official_vocoder(checkpoint, checkout)
    mel = torch.randn(80, 500, generator=torch.Generator().manual_seed(3))
    expected = official_waveform(official, mel)
    with torch.inference_mode():
        pitch = official.f0_predictor.double()(mel[None].double(), finalize=True)
        voiced = float((pitch > 10).float().mean())
    assert 0.5 < voiced < 1 and 0.02 < float(expected.std()) < 0.7
    for sizes in ([500], [26, *[50] * 9, 24]):
        made = heard(ours, mel, sizes)
        assert made.shape == expected.shape
        assert float((made - expected).abs().max()) < TOLERANCE * float(expected.std())


def heard(vocoder: Vocoder, mel: Tensor, sizes: list[int]) -> Tensor:
    state, samples = vocoder.new_state(), []
    for piece in torch.split(mel, sizes, dim=1):
        some, state = vocoder.move_on(piece, state)
        samples.append(some)
    return torch.cat([*samples, vocoder.move_on(mel[:, :0], state, last=True)[0]])
