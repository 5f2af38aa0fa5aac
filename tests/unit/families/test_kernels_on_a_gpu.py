"""A frame and a chunk take no more kernels of a GPU than they did, at the released shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from perf.bench.families import FAMILIES
from perf.bench.families.family import Networks
from tests.support.pretend_gpu import PretendGPU, pretend_gpu
from voice_clone.autoregressive.frame_head import Row
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.static_step import StaticStep
from voice_clone.autoregressive.steps import FrameModel
from voice_clone.codec.graphed_streams import GraphedStreams, Graphs
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

MAX_LENGTH, BATCH = 4096, 2
FRAME = {"qwen3_tts": 1600, "fish_speech": 1209, "voxtral": 679, "voxcpm2": 2526}  # with the usual draws
CHUNK = {"qwen3_tts": 440, "fish_speech": 440, "voxtral": 285, "voxcpm2": 341}  # of any usual length, in fp32
NEVER = ("exp", "reciprocal", "div", "pow")  # in a chunk: the weights alone decide what these would compute


class Kernels:
    """An observer of a pretended GPU: how often each operator ran."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, operator: Any, read: list[Tensor], written: list[Tensor]) -> None:
        self.seen[operator.overloadpacket.__name__] += 1

    def of(self, run: Callable[[], object]) -> Counter[str]:
        """Those of a run behind a first one, in which what is kept is made."""
        run()
        self.seen.clear()
        run()
        return Counter(self.seen)


def on_gpu(make: Callable[[], Any], dtype: torch.dtype) -> Any:
    """A network without values."""
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return make().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def talker_of(networks: Networks) -> Any:
    """The talker in bf16, whose streams read their own lengths."""
    network = on_gpu(networks.talker, torch.bfloat16)
    for stack in network.modules():
        if isinstance(stack, DecoderStack):
            stack.varlen = True
    return network.talker() if hasattr(network, "talker") else network


@pytest.mark.parametrize("name", FAMILIES)
def test_a_frame(name: str, tmp_path: Path) -> None:
    family, kernels = FAMILIES[name], Kernels()
    with pretend_gpu(empty=True, observer=kernels), torch.inference_mode():
        talker = talker_of(family.networks(family.shape, tmp_path))
        drawn = talker.head.variant_of(talker.head.columns(family.sampling(drawn=True))[None])
        runner = GraphRunner()
        StaticStep(FrameModel(talker, BATCH, MAX_LENGTH, idle_rows=True), runner, False, 256).prepare()
        variant = next(each for each in talker.head.variants if each.covers(drawn))
        keys = ("talker", BATCH, MAX_LENGTH), ("frames", BATCH, variant)
        count = sum(kernels.of(runner.replays[key]).total() for key in keys)
    assert 0.6 * FRAME[name] < count <= FRAME[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chunk(name: str, tmp_path: Path) -> None:
    """What is the same in all layers, too, is not computed at each replay."""
    family, kernels = FAMILIES[name], Kernels()
    with pretend_gpu(empty=True, observer=kernels), torch.inference_mode():
        networks, runner = family.networks(family.shape, tmp_path), GraphRunner()
        decoder = on_gpu(networks.decoder, torch.float32)
        GraphedStreams(decoder, networks.form, Graphs(runner, BATCH, family.chunk_frames), most=BATCH).prepare()
        found = [kernels.of(runner.replays[BATCH, frames]) for frames in family.chunk_frames]
    for seen in found:
        assert 0.9 * CHUNK[name] < seen.total() <= CHUNK[name]
        assert not seen.keys() & set(NEVER)
        assert seen["index"] == seen["index_put_"] == 2, "the streams' states and positions"
        assert seen["clamp"] + seen["tanh"] == 1, "that of the samples"


def started(gpu: PretendGPU, work: Callable[[], object]) -> int:
    """Kernels, and copies to and from the device."""
    begun = gpu.begun
    gpu.launches.clear()
    work()
    return sum(gpu.launches.values()) + gpu.begun - begun


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_host_launches(name: str, batch: int, tmp_path: Path) -> None:
    """A frame: two graphs, a copy each way, a kernel for the texts. A chunk: one graph, three copies."""
    family = FAMILIES[name]
    networks = family.networks(family.shape, tmp_path)
    with pretend_gpu(empty=True) as gpu, torch.inference_mode():
        runner = GraphRunner(lambda step: lambda: None)  # a graph is one launch, and starts its kernels itself
        talker, decoder = talker_of(networks), on_gpu(networks.decoder, torch.float32)
        model = FrameModel(talker, batch, MAX_LENGTH, idle_rows=True)
        step = StaticStep(model, runner, deterministic=False, prefill_chunk=256)
        step.prepare()
        columns, draws = talker.head.columns(family.sampling(drawn=True)), np.zeros(talker.head.draws)
        rows = [Row(slot, columns, draws, False, 1, 300, model.no_text) for slot in range(batch)]
        streams = GraphedStreams(decoder, networks.form, Graphs(runner, batch, family.chunk_frames), most=batch)
        streams.prepare()
        fresh = decoder.new_state(1)
        numbers = [streams.open(fresh.fork()) for _ in range(batch - 1)]
        assert 2 + started(gpu, lambda: step.begin(rows)) == 5
        assert started(gpu, lambda: numbers.append(streams.open(fresh.fork()))) == 3
        chunks = [networks.form.payload.zeros(family.chunk_frames[-1])] * batch
        assert 1 + started(gpu, lambda: streams.decode(numbers, chunks)) == 4
