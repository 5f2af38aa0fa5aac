"""Every stage as the server drives it, on a GPU that is none: nothing is left on another device or in another dtype.

In fp32 the results are those of the CPU. Where there is a GPU, the stages then run on it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.doubles.backend_double import backend_double
from tests.support.families.bare import Bare
from tests.support.families.trials import CARDS, TRIALS, bare, package_of
from tests.support.pretend_gpu import MixedDevices, PretendGPU, pretend_gpu
from voice_clone import compute
from voice_clone.autoregressive import static_step
from voice_clone.autoregressive.talker import MoreText
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import load_code2wav
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import ComputeSettings, DecoderSettings, Settings
from voice_clone.stages.protocols import EncoderStage
from voice_clone_server.families.cards import function

pytestmark = pytest.mark.thorough

SLOTS, FRAMES, REFERENCE = 3, 6, 20
RECORDING = GraphRunner.on


NETWORKS = {"qwen3_tts": 2, "fish_speech": 1, "voxtral": 1}
"""Families, and of how many networks the voice encoder of each is."""


@pytest.fixture(scope="module", params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TRIALS[name].make(0, tmp_path_factory.mktemp(name) / "checkpoint")


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings take a step each: here for few lengths."""
    monkeypatch.setattr(static_step, "LEAST_LENGTH", 64)


@pytest.fixture(autouse=True)
def no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of fixed shapes run as they are."""
    monkeypatch.setattr(GraphRunner, "on", lambda device: GraphRunner())


def stages(name: str, folder: Path, device: str, precision: str = "auto", graphs: bool = False) -> Bare:
    given = {"MAX_STREAMS": SLOTS, "MAX_LENGTH": 112, "MAX_DECODE_BATCH": 2, "CHUNK_FRAMES": "1,2"}
    return bare(name, folder, **given, DEVICE=device, PRECISION=precision, CUDA_GRAPHS=str(graphs).lower())


def clip() -> npt.NDArray[np.float32]:
    return (0.1 * np.random.default_rng(0).standard_normal(30000)).astype(np.float32)


def artifacts(given: Bare) -> dict[str, npt.NDArray[Any]]:
    return dict(given.encoders[0].encode(clip(), None))


def speech(given: Bare) -> npt.NDArray[np.int32]:
    """Two streams side by side, the second of which joins later, in a higher slot: [streams, FRAMES, K]."""
    stage, generator = given.talker, given.talker.source
    generator.prepare()
    request = replace(stage.example(REFERENCE, FRAMES + 4), max_frames=FRAMES + 4)
    made: dict[int, list[npt.NDArray[np.int32]]] = {0: [], 2: []}
    for number in range(FRAMES + 2):
        if number in (0, 2):
            unread = generator.start(number, request)
            generator.prefill({number: unread - 3})
            generator.prefill({number: 3})
        live = [slot for slot in made if slot in generator.live]
        for slot, frame in zip(live, generator.step(live), strict=True):
            assert frame.payload is not None
            made[slot].append(frame.payload)
    return np.stack([np.stack(frames[:FRAMES]) for frames in made.values()])


def sound(given: Bare) -> npt.NDArray[np.float32]:
    """Chunks of two streams in one batch, behind a reference where the family has one: [streams, samples]."""
    stage, settings = given.decoder, DecoderSettings.of(given.settings)
    code2wav = load_code2wav(settings, stage.streams(settings, (1, 2)), stage.form)
    code2wav.warm_up((1,), (1, 2), 60.0)
    below = np.broadcast_to(np.array(stage.form.limits), stage.form.payload.width)
    codes = np.random.default_rng(1).integers(0, below, (2, 13, len(below))).astype(stage.form.payload.dtype)
    context = codes[0, :10] if given.card.references else codes[0, :0]
    pieces = []
    for index, (begin, end) in enumerate([(10, 11), (11, 13)]):
        before = context if index == 0 else codes[0, :0]
        chunks = [CodecChunk(str(row), index, codes[row, begin:end], before, final=end == 13) for row in range(2)]
        decoded = code2wav.decode(chunks)
        pieces.append(np.stack([each.waveform for each in decoded if isinstance(each, Decoded)]))
    return np.concatenate(pieces, axis=1)


def test_encoders(name: str, folder: Path) -> None:
    """In fp32 whatever the precision of the talker is."""
    expected = artifacts(stages(name, folder, "cpu"))
    with pretend_gpu() as gpu:
        got = artifacts(stages(name, folder, "cuda", "bf16"))
    assert sum(gpu.launches.values()) > 100 and gpu.waits == NETWORKS[name]
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4 if array.dtype == np.float32 else 0)


@pytest.mark.parametrize(("device", "warm"), [("cuda", True), ("cpu", False)])
def test_encoders_are_warm_when_they_are_loaded(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, warm: bool
) -> None:
    """On a GPU an encoder has encoded before its first clip comes, on the thread that loads and serves."""
    monkeypatch.setattr(compute, "prepare", lambda settings, **_: None)  # it asks CUDA for more than is pretended
    with pretend_gpu() as gpu, backend_double("stages.encoder") as (module,):

        def load_stage(given: Settings, call: Any) -> EncoderStage:
            stage: EncoderStage = function(package_of(name), CARDS[name].encoders[0].load)(given)
            gpu.launches.clear()
            return stage

        model = type("Model", (module.EncoderModel,), {"load_stage": staticmethod(load_stage)})()
        model.load(stages(name, folder, device).settings)
        model.load_heavy(stages(name, folder, device).settings)
        assert (sum(gpu.launches.values()) > 30, gpu.waits) == (warm, warm * NETWORKS[name])


@pytest.mark.parametrize(("precision", "graphs"), [("fp32", False), ("fp32", True), ("bf16", True)])
def test_talker(name: str, folder: Path, precision: str, graphs: bool) -> None:
    with pretend_gpu() as gpu:
        got = speech(stages(name, folder, "cuda", precision, graphs))
    tried = 4 * (precision == "bf16")  # attention over each stream's own length, at load
    assert gpu.waits == FRAMES + 2 + tried, "the host waits once a step"
    if precision == "fp32":
        np.testing.assert_array_equal(got, speech(stages(name, folder, "cpu")))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_live_streams_wait_for_no_copy(name: str, folder: Path, precision: str) -> None:
    """A stream starts, gets more text and is read: the host waits for nothing before its first frame."""
    with pretend_gpu() as gpu:
        stage = stages(name, folder, "cuda", precision, True).talker
        generator = stage.source
        request = stage.example(REFERENCE, FRAMES)
        generator.start(2, request)  # as the warm-up does
        generator.step([2])
        generator.free(2)
        if CARDS[name].appends:
            request = replace(request, prompt=replace(request.prompt, text_open=True))
        gpu.blocking = gpu.waits = 0
        for slot in range(2):
            unread = generator.start(slot, request)
            if CARDS[name].appends:
                generator.extend(slot, MoreText(np.arange(30, dtype=np.int32), True, FRAMES, False))
            generator.prefill({slot: unread})
        frames = generator.begin(range(2))
        assert (gpu.blocking, gpu.waits) == (0, 1), "the frames are on their way"
        assert all(frame is not None and frame.payload is not None for frame in frames())


@pytest.mark.parametrize(("precision", "graphs"), [("auto", False), ("auto", True), ("bf16", True)])
def test_decoder(name: str, folder: Path, precision: str, graphs: bool) -> None:
    """`auto` is tf32, which the CPU behind the pretended GPU computes in fp32."""
    with pretend_gpu():
        got = sound(stages(name, folder, "cuda", precision, graphs))
    expected = sound(stages(name, folder, "cpu"))
    rms = float(np.sqrt(np.square(expected).mean()))
    assert rms > 1e-3
    assert np.sqrt(np.square(got - expected).mean()) < rms * (1e-4 if precision == "auto" else 0.2)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real one, with a server's switches of torch; steps of fixed shapes are recorded."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(GraphRunner, "on", RECORDING)
    compute.prepare(ComputeSettings(device="cuda"))
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrix, convolution
    torch.backends.cuda.enable_cudnn_sdp(attention)


real = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@real
@pytest.mark.usefixtures("a_gpu")
def test_encoders_on_a_real_gpu(name: str, folder: Path) -> None:
    expected, got = (artifacts(stages(name, folder, device)) for device in ("cpu", "cuda"))
    for name, array in expected.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4)
        else:
            assert (got[name] == array).mean() > 0.99, "another rounding may choose another code"


@real
@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("graphs", [False, True])
def test_talker_on_a_real_gpu(name: str, folder: Path, graphs: bool) -> None:
    """In fp32 another rounding may flip a draw, and what follows it; in bf16 codes come at all."""
    got, expected = speech(stages(name, folder, "cuda", "fp32", graphs)), speech(stages(name, folder, "cpu"))
    assert (got == expected).mean() > 0.8 and (got[:, 0] == expected[:, 0]).mean() > 0.9
    assert speech(stages(name, folder, "cuda", "bf16", graphs)).shape == expected.shape


@real
@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(("precision", "apart"), [("auto", 1e-3), ("bf16", 0.2)])
@pytest.mark.parametrize("graphs", [False, True])
def test_decoder_on_a_real_gpu(name: str, folder: Path, precision: str, apart: float, graphs: bool) -> None:
    got, expected = (sound(stages(name, folder, *how)) for how in (("cuda", precision, graphs), ("cpu", "auto", False)))
    assert np.sqrt(np.square(got - expected).mean()) < apart * np.sqrt(np.square(expected).mean())


def test_what_a_gpu_would_refuse() -> None:
    with pretend_gpu() as gpu, torch.inference_mode():
        on_gpu = torch.arange(6.0, device="cuda").view(2, 3)
        assert on_gpu.is_cuda and (on_gpu.cpu() + torch.ones(3)).tolist() == [[1, 2, 3], [4, 5, 6]]
        for mixed in (
            lambda: on_gpu + torch.ones(3),
            lambda: on_gpu @ torch.ones(3, 1),
            lambda: torch.cat([on_gpu, torch.ones(1, 3)]),
            lambda: torch.nn.functional.embedding(torch.tensor([0]), on_gpu),
        ):
            with pytest.raises(MixedDevices):
                mixed()
        with pytest.raises(RuntimeError, match="dtype"):
            torch.nn.functional.linear(on_gpu, on_gpu.bfloat16())
        assert (on_gpu + torch.tensor(1.0)).sum().item() == 21 and gpu.waits == 2


def test_copies_that_block_are_counted() -> None:
    with pretend_gpu() as gpu, torch.inference_mode():
        cuda, pinned, plain = torch.device("cuda"), torch.ones(2).pin_memory(), torch.ones(2)
        for send in (
            lambda: torch.tensor([1, 2], device=cuda),
            lambda: plain.to(cuda, non_blocking=True),
            lambda: pinned.to(cuda),
            lambda: pinned.to(cuda, torch.bfloat16, non_blocking=True),
            lambda: torch.zeros(2, device=cuda).copy_(plain),
        ):
            before = gpu.blocking
            send()
            assert gpu.blocking == before + 1
        before = gpu.blocking
        on_gpu = pinned.to(cuda, non_blocking=True)
        on_gpu[0] = 3.0
        on_gpu.copy_(pinned[:1], non_blocking=True)
        assert gpu.blocking == before and (on_gpu + torch.tensor(1.0)).cpu().tolist() == [2, 2]


def test_pinned_memory_is_late() -> None:
    """What is read or written there before the copy has ended is wrong; a value that is read ends all copies."""
    with pretend_gpu(), torch.inference_mode():
        host, on_gpu = torch.zeros(2, pin_memory=True), torch.ones(2, device="cuda")
        first, second = torch.cuda.Event(), torch.cuda.Event()
        host.copy_(on_gpu, non_blocking=True)
        first.record()
        on_gpu.fill_(2)
        assert host.tolist() == [0, 0]
        host[0] = 5
        first.synchronize()
        assert host.tolist() == [1, 1]
        host.copy_(on_gpu, non_blocking=True)
        second.record()
        first.synchronize()
        assert host.tolist() == [1, 1]
        assert on_gpu.sum().item() == 4 and host.tolist() == [2, 2]


def test_launches_are_counted() -> None:
    with pretend_gpu() as gpu, torch.inference_mode():
        x = torch.ones(2, 4, device="cuda")
        gpu.launches.clear()
        x.view(4, 2).transpose(0, 1)[0].unsqueeze(0)
        assert not gpu.launches
        (x + 1).softmax(-1)
        assert sum(gpu.launches.values()) == 2


def test_a_large_network_needs_no_memory() -> None:
    with pretend_gpu(empty=True), torch.inference_mode():
        x = torch.zeros(1 << 30, 1 << 10, device="cuda")
        assert (x @ x.new_zeros(1 << 10, 8)).shape == (1 << 30, 8)


def test_a_mode_is_over_behind_it() -> None:
    with PretendGPU():
        pass
    assert torch.tensor([1.0, 2.0]).sum().item() == 3.0
