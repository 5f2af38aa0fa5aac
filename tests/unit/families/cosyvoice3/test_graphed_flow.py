"""CosyVoice3's flow in steps of fixed shapes: the samples of the flow without, and nothing that a graph cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.families.cosyvoice_decoder import (
    CountedFlow,
    flow_streams,
    in_chunks,
    make_cosyvoice_decoder,
    some_reference,
    some_tokens,
)
from tests.support.families.graph_safety import NoSynchronisation, Recorder
from voice_clone.families.cosyvoice3.config import MEL_BANDS
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.decoder_config import STEPS
from voice_clone.families.cosyvoice3.networks import graphed_flow
from voice_clone.families.cosyvoice3.networks.flow import BLOCK_FRAMES, Block, FlowNetwork, Span
from voice_clone.families.cosyvoice3.networks.graphed_flow import GraphedFlow
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder
from voice_clone.layers.graphs import GraphRunner, Step

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
CLOSE = 0.01  # of the samples' RMS: a masked sum of keys is rounded otherwise, and the phase makes more of it
Networks = tuple[FlowNetwork, Vocoder]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Networks:
    checkpoint = DecoderCheckpoint(make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint"))
    return checkpoint.load_flow(torch.float32, CPU), checkpoint.load_vocoder(CPU)


def speech(networks: Networks, tokens: int, **options: Any) -> tuple[NDArray[np.float32], CountedFlow]:
    """A stream behind a reference of two blocks and a part, in small chunks; the blocks solved without graphs."""
    counted = CountedFlow(networks[0])
    streams = flow_streams(counted, networks[1], together=True, **options)
    sizes = [10] * -(-tokens // 10)
    return np.concatenate(in_chunks(streams, some_reference(60), some_tokens(tokens, 1), sizes)), counted


@pytest.mark.parametrize("tokens", [12, 40, 65])
def test_the_same_speech(networks: Networks, tokens: int) -> None:
    """It ends within a block of the reference, and within one behind it, and with one."""
    expected, _ = speech(networks, tokens)
    recorder = Recorder()
    made, counted = speech(networks, tokens, graphs=GraphRunner(recorder))
    assert len(made) == len(expected) and abs(made - expected).max() < CLOSE * expected.std()
    assert counted.blocks == 0 and sum(recorder.replays) == STEPS * -(-(60 + tokens) // 25)


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_without_pages_the_same_speech(networks: Networks, pages: int) -> None:
    """Blocks without one are solved without graphs, and again."""
    expected, _ = speech(networks, 40)
    made, counted = speech(networks, 40, graphs=GraphRunner(Recorder()), pages=pages)
    assert len(made) == len(expected) and abs(made - expected).max() < CLOSE * expected.std()
    assert counted.blocks > 0


def test_a_stream_behind_more_pages_than_graphs_see(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_flow, "SEEN", (2,))
    recorder = Recorder()
    expected, _ = speech(networks, 45)
    made, counted = speech(networks, 45, graphs=GraphRunner(recorder))
    assert len(made) == len(expected) and abs(made - expected).max() < CLOSE * expected.std()
    assert counted.blocks == 3 and sum(recorder.replays) == STEPS * 2


def test_nothing_in_a_step_that_a_graph_cannot_hold(networks: Networks) -> None:
    checked = []

    def capture(step: Step) -> Step:
        def replay() -> None:
            with NoSynchronisation() as mode:
                step()
            checked.append(mode.kernels)

        return replay

    speech(networks, 40, graphs=GraphRunner(capture))
    assert len(checked) == STEPS * 4 and len(set(checked)) == 1 and checked[0] > 50


def test_streams_share_graphs_and_each_hears_itself(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at different places; a graph is for two or for one, so that some wait for others."""
    monkeypatch.setattr(graphed_flow, "MOST_STREAMS", 2)
    voices = [some_reference(30 * number, number) for number in range(3)]
    tokens = [some_tokens(45, number) for number in range(3)]
    expected = [
        np.concatenate(in_chunks(flow_streams(*networks, together=True), *each, [45]))
        for each in zip(voices, tokens, strict=True)
    ]
    recorder = Recorder()
    streams = flow_streams(*networks, together=True, graphs=GraphRunner(recorder))
    numbers = [streams.open(voice)[0] for voice in voices]
    heard = [[each] for each in streams.decode(numbers, [each[:30] for each in tokens])]
    for own, samples in zip(heard, streams.decode(numbers, [each[30:] for each in tokens]), strict=True):
        own.append(samples)
    for number, own, right in zip(numbers, heard, expected, strict=True):
        made = np.concatenate([*own, streams.flush(number)])
        assert abs(made - right).max() < CLOSE * right.std()
    assert len(recorder.replays) == 2  # of one stream, and of two


def test_numbers_that_are_not_finite_reach_no_other_stream(networks: Networks) -> None:
    """Also not where a short last block leaves the end of its rows as the block before left them."""
    network = networks[0]

    def span(frames: int, speaker: float, page: int) -> Span:
        zeros = torch.zeros(frames, MEL_BANDS)
        return Span(torch.full((MEL_BANDS,), speaker), [], [Block(zeros, zeros)], [flow.new_page(page)])

    flow = GraphedFlow(network, GraphRunner(Recorder()), 2)
    [[expected]] = flow.solve([span(20, 0.5, 0)])
    [[broken]] = flow.solve([span(BLOCK_FRAMES, torch.nan, 1)])
    assert broken.isnan().all() and expected.isfinite().all()
    [[made]] = flow.solve([span(20, 0.5, 0)])
    assert torch.equal(made, expected)


def test_graphs_are_recorded_beforehand(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for which the GPU has too little memory are left out."""
    monkeypatch.setattr(graphed_flow, "SEEN", (2, 4))
    runner = GraphRunner(Recorder())
    GraphedFlow(networks[0], runner, 4).prepare(3)
    assert runner.recorded == 3 * 2  # of one, two and four streams
    tried: list[int] = []

    def no_memory(step: Step) -> Step:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step

    runner = GraphRunner(no_memory)
    flow = GraphedFlow(networks[0], runner, 4)
    flow.prepare(3)
    assert runner.recorded == 2 * 2 and flow._batches == (1, 2)
