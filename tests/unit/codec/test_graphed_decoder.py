"""code2wav in steps of fixed shapes: the same samples, nothing that a CUDA graph could not hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.graph_safety import NoSynchronisation, Recorder
from tests.support.random_weights import fill_random
from tests.support.small_codec import FORM, SAMPLES, SMALL
from voice_clone import compute
from voice_clone.codec.chunk import Chunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.graphed_decoder import GraphedDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.layers.streaming import StreamState
from voice_clone.settings import Settings

FRAMES = (1, 2, 4, 8)


def graphed(decoder: CodecDecoder, runner: GraphRunner | None = None, max_batch: int = 5) -> GraphedDecoder:
    return GraphedDecoder(decoder, FORM, max_batch, FRAMES, runner or GraphRunner())


def random_codes(batch: int, frames: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.codebook_size, (batch, SMALL.num_quantizers, frames), generator=generator)


def close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < 1e-4 * expected.square().mean().sqrt()


@pytest.mark.parametrize("recorded", [False, True])
def test_batches_and_chunks_of_any_size(decoder: CodecDecoder, recorded: bool) -> None:
    """Streams meet in batches of changing size, at different positions, in chunks of all lengths up to 20."""
    fixed = graphed(decoder, GraphRunner(Recorder() if recorded else None))
    rng = np.random.default_rng(0)
    codes = random_codes(5, 80, 0)
    expected = decoder(codes)
    states, positions = [fixed.new_state(1) for _ in range(5)], [0] * 5
    while going := [row for row in range(5) if positions[row] < 60]:
        frames = int(rng.integers(1, 21))
        rows = [int(row) for row in rng.permutation(going)[: rng.integers(1, 6)]]
        state = StreamState.stack([states[row] for row in rows])
        chunk = torch.stack([codes[row, :, positions[row] : positions[row] + frames] for row in rows])
        waveform = fixed.decode_chunk(chunk, state)
        for row, got, moved in zip(rows, waveform, state.split(), strict=True):
            begin = positions[row] * SAMPLES
            close(got, expected[row, begin : begin + frames * SAMPLES])
            states[row], positions[row] = moved, positions[row] + frames


@pytest.mark.parametrize("recorded", [False, True])
def test_streams_with_unequal_chunks(decoder: CodecDecoder, recorded: bool) -> None:
    """Each batch has chunks of 0 to 20 frames; what is padding leaves no trace in a stream."""
    fixed = graphed(decoder, GraphRunner(Recorder() if recorded else None))
    rng = np.random.default_rng(0)
    codes = random_codes(5, 70, 3)
    expected = decoder(codes)
    states, positions = [fixed.new_state(1) for _ in range(5)], [0] * 5
    for _ in range(12):
        rows = [int(row) for row in rng.permutation(5)[: rng.integers(2, 6)]]
        lengths = [int(rng.integers(0, min(20, 70 - positions[row]) + 1)) for row in rows]
        most = max(1, *lengths)
        chunk = torch.stack([random_codes(1, most, 9)[0] for _ in rows])  # padding of any codes
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            chunk[place, :, :length] = codes[row, :, positions[row] : positions[row] + length]
        state = StreamState.stack([states[row] for row in rows])
        waveform = fixed.decode_chunk(chunk, state, lengths)
        assert waveform.shape[1] == most * SAMPLES
        for place, (row, length, moved) in enumerate(zip(rows, lengths, state.split(), strict=True)):
            begin = positions[row] * SAMPLES
            if length:
                close(
                    waveform[place : place + 1, : length * SAMPLES],
                    expected[row : row + 1, begin : begin + length * SAMPLES],
                )
            states[row], positions[row] = moved, positions[row] + length
            assert int(moved.position) == positions[row]
    assert min(positions) > 20


def test_one_step_for_a_batch_of_unequal_chunks(decoder: CodecDecoder) -> None:
    capture = Recorder()
    code2wav = Code2Wav(graphed(decoder, GraphRunner(capture)), FORM)
    codes = random_codes(4, 7, 4).numpy().transpose(0, 2, 1).astype(np.int32)
    chunks = [
        Chunk(str(row), 0, codes[row, :length], codes[row, :0], final=False) for row, length in enumerate((7, 1, 4, 0))
    ]
    decoded = code2wav.decode(chunks)
    assert capture.replays == [1]
    whole = decoder(torch.from_numpy(codes.transpose(0, 2, 1).astype(np.int64)))
    for row, (chunk, outcome) in enumerate(zip(chunks, decoded, strict=True)):
        assert isinstance(outcome, Decoded) and len(outcome.waveform) == len(chunk.payload) * SAMPLES
        if len(chunk.payload):
            close(torch.from_numpy(outcome.waveform), whole[row, : len(outcome.waveform)])


def test_primed_streams_and_forks(decoder: CodecDecoder) -> None:
    fixed, codes = graphed(decoder), random_codes(1, 60, 1)
    state = fixed.new_state(1)
    fixed.prime(codes[..., :40], state)
    expected = decoder(codes)[:, 40 * SAMPLES :]
    other = state.fork()
    close(fixed.decode_chunk(codes[..., 40:], state), expected)
    close(fixed.decode_chunk(codes[..., 40:], other), expected)


def test_through_code2wav(decoder: CodecDecoder) -> None:
    """Streams of one voice, with and without graphs beneath."""
    codes = random_codes(1, 30, 2)[0].T.numpy().astype(np.int32)
    waveforms = []
    for below in (decoder, graphed(decoder, max_batch=2)):
        code2wav = Code2Wav(below, FORM)
        code2wav.warm_up((1, 4, 11), (1, 2), 60.0)
        pieces = []
        for index, (begin, end) in enumerate([(20, 21), (21, 23), (23, 30)]):
            context = codes[:20] if index == 0 else codes[:0]
            chunks = [Chunk(name, index, codes[begin:end], context, final=end == 30) for name in "ab"]
            for decoded in code2wav.decode(chunks):
                assert isinstance(decoded, Decoded)
                pieces.append(decoded.waveform)
        waveforms.append(np.concatenate(pieces))
    close(torch.from_numpy(waveforms[1]), torch.from_numpy(waveforms[0]))


def test_all_shapes_are_recorded_beforehand(decoder: CodecDecoder) -> None:
    runner = GraphRunner(Recorder())
    fixed = graphed(decoder, runner)
    fixed.prepare()
    assert runner.recorded == 4 * len(FRAMES)  # batches of 1, 2, 4, 5
    state = fixed.new_state(3)
    fixed.decode_chunk(random_codes(3, 15, 0), state)
    assert runner.recorded == 4 * len(FRAMES) and state.position.tolist() == [15] * 3


def test_no_step_waits_for_the_device(decoder: CodecDecoder) -> None:
    runner = GraphRunner()
    graphed(decoder, runner).prepare()
    with torch.inference_mode():
        for step in runner._replays.values():
            with NoSynchronisation() as mode:
                step()
            assert mode.kernels > 50


def test_steps_need_no_values() -> None:
    """On a device without values: whatever wants one raises, and so does what mixes it with the CPU."""
    with torch.device("meta"):
        empty = CodecDecoder(SMALL).bfloat16().requires_grad_(False)
    runner = GraphRunner()
    graphed(empty, runner).prepare()
    with torch.inference_mode():
        for step in runner._replays.values():
            step()


@pytest.fixture
def served() -> Iterator[None]:
    """torch's switches as a server sets them: with TF32, torch's default for convolutions, samples differ by more."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    compute.prepare(Settings({}, {"VOICE_CLONE_DEVICE": "cuda"}))
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrix, convolution
    torch.backends.cuda.enable_cudnn_sdp(attention)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.usefixtures("served")
def test_graphs_equal_eager_on_a_gpu() -> None:
    decoder = CodecDecoder(SMALL).requires_grad_(False)
    fill_random(decoder, seed=0)
    decoder.cuda()
    runner = GraphRunner.on(decoder.device)
    fixed = graphed(decoder, runner)
    fixed.prepare()
    assert runner.recorded == 4 * len(FRAMES)
    codes = random_codes(3, 40, 0).cuda()
    state = fixed.new_state(3)
    pieces = [fixed.decode_chunk(piece, state) for piece in codes.split(7, dim=-1)]
    close(torch.cat(pieces, dim=-1), decoder(codes))
