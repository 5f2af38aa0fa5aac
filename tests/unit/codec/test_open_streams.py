"""code2wav in steps of fixed shapes: the same samples, nothing that a CUDA graph could not hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.families.graph_safety import NoSynchronisation, Recorder
from tests.support.families.random_weights import fill_random
from tests.support.families.small_codec import (
    FORM,
    NO_CODES,
    SAMPLES,
    SMALL,
    chunks_of,
    make_code2wav,
    random_codes,
    whole,
)
from tests.support.pretend_gpu import pretend_gpu
from tests.support.same_audio import assert_same_audio
from voice_clone import compute
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.decoder import StreamState
from voice_clone.codec.graphed_streams import GraphedStreams, Graphs
from voice_clone.codec.open_streams import PIECE_FRAMES, SeparateStreams
from voice_clone.errors import Unsupported
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.graphs import GraphRunner, Step
from voice_clone.settings import ComputeSettings

pytestmark = pytest.mark.thorough

FRAMES = (1, 2, 4, 8)
STREAMS = 6  # that may be open


def graphs(runner: GraphRunner | None = None, max_batch: int = 5) -> Graphs:
    return Graphs(runner or GraphRunner(), max_batch, FRAMES)


def graphed(decoder: CodecDecoder, runner: GraphRunner | None = None, max_batch: int = 5) -> GraphedStreams:
    return GraphedStreams(decoder, FORM, graphs(runner, max_batch), STREAMS)


def opened(decoder: CodecDecoder, streams: GraphedStreams, count: int) -> list[int]:
    return [streams.open(decoder.new_state(1)) for _ in range(count)]


def close(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 1e-4 * np.sqrt(np.square(expected).mean())


@pytest.mark.parametrize("recorded", [False, True])
def test_batches_and_chunks_of_any_size(decoder: CodecDecoder, recorded: bool) -> None:
    """Streams meet in batches of changing size, at different positions, in chunks of all lengths up to 20."""
    fixed = graphed(decoder, GraphRunner(Recorder() if recorded else None))
    rng = np.random.default_rng(0)
    codes = [random_codes(80, seed) for seed in range(5)]
    expected = [whole(decoder, each) for each in codes]
    streams, positions = opened(decoder, fixed, 5), [0] * 5
    while going := [row for row in range(5) if positions[row] < 60]:
        frames = int(rng.integers(1, 21))
        rows = [int(row) for row in rng.permutation(going)[: rng.integers(1, 6)]]
        chunks = [codes[row][positions[row] : positions[row] + frames] for row in rows]
        for row, got in zip(rows, fixed.decode([streams[row] for row in rows], chunks), strict=True):
            begin = positions[row] * SAMPLES
            close(got, expected[row][begin : begin + frames * SAMPLES])
            positions[row] += frames


@pytest.mark.parametrize("recorded", [False, True])
def test_streams_with_unequal_chunks(decoder: CodecDecoder, recorded: bool) -> None:
    """Each batch has chunks of 0 to 20 frames; what is padding leaves no trace in a stream."""
    fixed = graphed(decoder, GraphRunner(Recorder() if recorded else None), max_batch=3)
    rng = np.random.default_rng(0)
    codes = [random_codes(70, seed) for seed in range(5)]
    expected = [whole(decoder, each) for each in codes]
    streams, positions = opened(decoder, fixed, 5), [0] * 5
    for _ in range(12):
        rows = [int(row) for row in rng.permutation(5)[: rng.integers(2, 4)]]
        lengths = [int(rng.integers(0, min(20, 70 - positions[row]) + 1)) for row in rows]
        if not any(lengths):
            continue
        chunks = [
            codes[row][positions[row] : positions[row] + length] for row, length in zip(rows, lengths, strict=True)
        ]
        for row, length, got in zip(rows, lengths, fixed.decode([streams[row] for row in rows], chunks), strict=True):
            begin = positions[row] * SAMPLES
            assert len(got) == length * SAMPLES
            if length:
                close(got, expected[row][begin : begin + length * SAMPLES])
            positions[row] += length
            assert int(fixed.state(streams[row]).position) == positions[row]
    assert min(positions) > 10


def test_a_stream_is_opened_anywhere_and_its_row_is_used_again(decoder: CodecDecoder) -> None:
    """More streams come and go than there are rows; each begins at a state of its own, which stays as it was."""
    fixed, separate = graphed(decoder, max_batch=2), SeparateStreams(decoder, FORM)
    codes = random_codes(60, 1)
    starts = []
    for past in (0, 1, 17):
        state = decoder.new_state(1)
        if past:
            decoder.prime(FORM.batch([codes[:past]], decoder.device), state)
        starts.append(state)
    before = [[buffer.clone() for buffer in state.buffers] for state in starts]
    for turn in range(12):
        places = [turn % 3, (turn + 1) % 3]
        frames = [codes[20 : 23 + turn], codes[30:33]]
        heard = []
        for streams in (fixed, separate):
            numbers = [streams.open(starts[place].fork()) for place in places]
            parts = [streams.decode(numbers[:1], frames[:1])[0], streams.decode(numbers[1:], frames[1:])[0]]
            parts += streams.decode(numbers, [codes[40:44], codes[40:44]])
            states = [streams.state(number) for number in numbers]
            heard.append((np.concatenate(parts), states))
            for number in numbers:
                streams.close(number)
        close(heard[0][0], heard[1][0])
        for ours, expected in zip(heard[0][1], heard[1][1], strict=True):
            assert torch.equal(ours.position, expected.position)
            for got, wanted in zip(ours.buffers, expected.buffers, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    for state, buffers in zip(starts, before, strict=True):
        assert all(map(torch.equal, state.buffers, buffers))


def test_a_stream_that_cannot_be_opened_takes_no_row(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory for the copy of its state, as often as you like; as many streams as before can be open."""
    fixed, codes = graphed(decoder), random_codes(3, 0)

    def no_memory(buffers: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(fixed, "_flat", no_memory)
        for _ in range(2 * STREAMS):
            with pytest.raises(torch.OutOfMemoryError):
                opened(decoder, fixed, 1)
    streams = opened(decoder, fixed, STREAMS)
    for heard in fixed.decode(streams[:5], [codes] * 5):
        close(heard, whole(decoder, codes))


def test_chunks_longer_than_any_graph_take_few_steps(decoder: CodecDecoder) -> None:
    """Where the setting has nothing shorter, too."""
    capture = Recorder()
    fixed = GraphedStreams(decoder, FORM, Graphs(GraphRunner(capture), 1, (100,)), 1)
    codes = random_codes(100, 0)
    [heard] = fixed.decode(opened(decoder, fixed, 1), [codes])
    assert sum(capture.replays) == 2
    close(heard, whole(decoder, codes))


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_no_stream_has_moved_when_a_batch_fails(decoder: CodecDecoder, failing: int) -> None:
    """Whichever of its three pieces fails."""
    broken, calls = False, 0

    def capture(step: Step) -> Step:
        def replay() -> None:
            nonlocal calls
            calls += broken
            step()
            if broken and calls == failing:
                raise RuntimeError("lost")

        return replay

    fixed, codes = graphed(decoder, GraphRunner(capture)), [random_codes(30, seed) for seed in range(2)]
    streams = opened(decoder, fixed, 2)
    heard = [fixed.decode(streams, [each[:5] for each in codes])]
    broken = True
    with pytest.raises(RuntimeError, match="lost"):
        fixed.decode(streams, [codes[0][5:], codes[1][5:22]])
    broken = False
    heard += [fixed.decode(streams[:1], [codes[0][5:]]), fixed.decode(streams[1:], [codes[1][5:]])]
    close(np.concatenate([heard[0][0], *heard[1]]), whole(decoder, codes[0]))
    close(np.concatenate([heard[0][1], *heard[2]]), whole(decoder, codes[1]))


@pytest.mark.parametrize("together", [1, 2])
def test_no_separate_stream_has_moved_when_a_piece_fails(
    decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """The second piece of a long chunk: the first one has changed nothing."""
    separate = SeparateStreams(decoder, FORM)
    codes = [random_codes(PIECE_FRAMES + 20, seed) for seed in range(together)]
    streams = [separate.open(decoder.new_state(1)) for _ in codes]
    before = separate.decode(streams, [each[:5] for each in codes])
    real, failing = decoder.decode_chunk, iter((False, True))

    def fragile(piece: torch.Tensor, state: StreamState) -> torch.Tensor:
        if next(failing):
            raise RuntimeError("lost")
        return real(piece, state)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "decode_chunk", fragile)
        with pytest.raises(RuntimeError, match="lost"):
            separate.decode(streams, [each[5:] for each in codes])
    after = separate.decode(streams, [each[5:] for each in codes])
    for heard, each in zip(map(np.concatenate, zip(before, after, strict=True)), codes, strict=True):
        close(heard, whole(decoder, each))


def test_one_step_for_a_batch_of_unequal_chunks(decoder: CodecDecoder) -> None:
    capture = Recorder()
    code2wav = make_code2wav(decoder, FORM, graphs=graphs(GraphRunner(capture)))
    codes = [random_codes(7, seed) for seed in range(4)]
    chunks = [
        CodecChunk(str(row), 0, codes[row][:length], NO_CODES, final=False) for row, length in enumerate((7, 1, 4, 0))
    ]
    decoded = code2wav.decode(chunks)
    assert code2wav.supports_ragged_batches and sum(capture.replays) == 1
    for row, (chunk, outcome) in enumerate(zip(chunks, decoded, strict=True)):
        assert isinstance(outcome, Decoded) and len(outcome.waveform) == len(chunk.payload) * SAMPLES
        if len(chunk.payload):
            close(outcome.waveform, whole(decoder, codes[row])[: len(outcome.waveform)])


def test_through_code2wav(decoder: CodecDecoder) -> None:
    """Streams of one voice, with and without graphs beneath."""
    codes = random_codes(30, 2)
    waveforms = []
    for how in (None, graphs(max_batch=2)):
        code2wav = make_code2wav(decoder, FORM, graphs=how)
        code2wav.warm_up((1, 4, 11), (1, 2), 60.0)
        pieces = []
        for index, (begin, end) in enumerate([(20, 21), (21, 23), (23, 30)]):
            context = codes[:20] if index == 0 else codes[:0]
            chunks = [CodecChunk(name, index, codes[begin:end], context, final=end == 30) for name in "ab"]
            for decoded in code2wav.decode(chunks):
                assert isinstance(decoded, Decoded)
                pieces.append(decoded.waveform)
        waveforms.append(np.concatenate(pieces))
        assert code2wav.streams == 0
    close(waveforms[1], waveforms[0])


def test_as_many_streams_as_may_be_open(decoder: CodecDecoder) -> None:
    """All of them at once, in any order, and then as many others: no row is lost."""
    code2wav = make_code2wav(decoder, FORM, graphs=graphs(), max_state_bytes=STREAMS * decoder.new_state(1).nbytes)
    rng = np.random.default_rng(0)
    for round_ in range(3):
        codes = {f"{round_}{name}": random_codes(20, number) for number, name in enumerate("abcdef")}
        waiting = {name: chunks_of(name, each, [1, 2, 4, 13]) for name, each in codes.items()}
        heard: dict[str, list[NDArray[np.float32]]] = {name: [] for name in codes}
        while waiting:
            names = [str(name) for name in rng.permutation(list(waiting))[:5]]
            for name, decoded in zip(names, code2wav.decode([waiting[name].pop(0) for name in names]), strict=True):
                assert isinstance(decoded, Decoded), decoded
                heard[name].append(decoded.waveform)
                if not waiting[name]:
                    del waiting[name]
        for name, parts in heard.items():
            assert_same_audio(np.concatenate(parts), whole(decoder, codes[name]))
        assert code2wav.streams == 0


def test_all_shapes_are_recorded_beforehand(decoder: CodecDecoder) -> None:
    runner = GraphRunner(Recorder())
    fixed = graphed(decoder, runner)
    fixed.prepare()
    assert runner.recorded == 4 * len(FRAMES)  # batches of 1, 2, 4, 5
    streams = opened(decoder, fixed, 3)
    fixed.decode(streams, [random_codes(15, 0)] * 3)
    assert runner.recorded == 4 * len(FRAMES) and [int(fixed.state(each).position) for each in streams] == [15] * 3


def test_batches_for_which_there_is_no_memory_are_left_out(
    decoder: CodecDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    """The streams of a larger batch are then decoded one part after the other."""

    class Small:
        """A GPU that has memory for two streams."""

        def __call__(self, step: Step) -> Step:
            step()
            if len(batch) > 2:
                raise torch.OutOfMemoryError("no memory")
            return step

    real, batch = decoder.decode_chunk, torch.zeros(0)

    def watched(codes: torch.Tensor, state: StreamState, lengths: torch.Tensor | None = None) -> torch.Tensor:
        nonlocal batch
        batch = codes
        return real(codes, state, lengths)

    object.__setattr__(decoder, "decode_chunk", watched)
    try:
        runner = GraphRunner(Small())
        fixed = graphed(decoder, runner)
        fixed.prepare()
        assert runner.recorded == 2 * len(FRAMES)
        assert "at most 4 are" in caplog.text and "at most 2 are" in caplog.text
        codes = [random_codes(9 + seed, seed) for seed in range(5)]
        heard = fixed.decode(opened(decoder, fixed, 5), codes)
        assert runner.recorded == 2 * len(FRAMES)
    finally:
        object.__delattr__(decoder, "decode_chunk")
    for each, own in zip(codes, heard, strict=True):
        close(own, whole(decoder, each))


def test_a_gpu_too_small_for_one_stream_and_one_that_records_nothing(decoder: CodecDecoder) -> None:
    def no_memory(step: Step) -> Step:
        raise torch.OutOfMemoryError("no memory")

    def no_graphs(step: Step) -> Step:
        raise RuntimeError("not permitted")

    for capture in (no_memory, no_graphs):
        with pytest.raises(Unsupported):
            graphed(decoder, GraphRunner(capture)).prepare()


def test_what_is_launched_around_a_graph() -> None:
    """Three copies a piece, whatever the number of streams; when a stream begins, the copies of its state."""
    with pretend_gpu() as gpu:
        with torch.device("cuda"):
            decoder = CodecDecoder(SMALL).requires_grad_(False)
        runner = GraphRunner(lambda step: lambda: None)  # replays launch nothing here
        fixed = graphed(decoder, runner)
        fixed.prepare()
        fresh = decoder.new_state(1)
        gpu.launches.clear()
        streams = [fixed.open(fresh.fork()) for _ in range(5)]
        assert sum(gpu.launches.values()) == 3 * len(streams)
        for count in (1, 5):
            gpu.launches.clear()
            begun, gpu.waits, gpu.blocking = gpu.begun, 0, 0
            fixed.decode(streams[:count], [random_codes(8, 0)] * count)
            assert gpu.launches == {"aten.copy_.default": 2} and gpu.begun == begun + 1
            assert gpu.blocking == 0 and gpu.waits == 1
        assert runner.recorded == 4 * len(FRAMES)


def test_no_step_waits_for_the_device(decoder: CodecDecoder) -> None:
    runner = GraphRunner()
    graphed(decoder, runner).prepare()
    assert runner.replays
    with torch.inference_mode():
        for step in runner.replays.values():
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
        for step in runner.replays.values():
            step()


@pytest.fixture
def served() -> Iterator[None]:
    """torch's switches as a server sets them: with TF32, torch's default for convolutions, samples differ by more."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    compute.prepare(ComputeSettings(device="cuda"))
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
    codes = [random_codes(40, seed) for seed in range(3)]
    streams = opened(decoder, fixed, 3)
    pieces = [fixed.decode(streams, [each[begin : begin + 7] for each in codes]) for begin in range(0, 40, 7)]
    for row, each in enumerate(codes):
        with torch.inference_mode():
            eager = decoder(FORM.batch([each], decoder.device))[0].cpu().numpy()
        close(np.concatenate([piece[row] for piece in pieces]), eager)
