"""Code2Wav: a stream's samples do not depend on its chunks, on its neighbours, nor on what was in memory."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.doubles.clock import Clock
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
from tests.support.same_audio import PEAK, assert_same_audio
from voice_clone.codec.chunk import CodecChunk, Decoded, Reference
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder import StreamState
from voice_clone.codec.open_streams import PIECE_FRAMES
from voice_clone.errors import Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.lru_cache import Origin

STATE_BYTES = CodecDecoder(SMALL).new_state(1).nbytes


def make(decoder: CodecDecoder, **given: Any) -> Code2Wav:
    return make_code2wav(decoder, FORM, **given)


def decode_one(code2wav: Code2Wav, chunk: CodecChunk) -> Decoded:
    [decoded] = code2wav.decode([chunk])
    assert isinstance(decoded, Decoded), decoded
    return decoded


def decode_error(code2wav: Code2Wav, chunk: CodecChunk) -> VoiceCloneError:
    [error] = code2wav.decode([chunk])
    assert isinstance(error, VoiceCloneError), error
    return error


def stream(code2wav: Code2Wav, chunks: list[CodecChunk]) -> NDArray[np.float32]:
    return np.concatenate([decode_one(code2wav, chunk).waveform for chunk in chunks])


@pytest.mark.parametrize("reference", [0, 1, 65])
@pytest.mark.parametrize("seed", range(3))
def test_streamed_equals_whole(decoder: CodecDecoder, reference: int, seed: int) -> None:
    sizes = random.Random(seed).sample(range(1, 41), 40)  # every size once: 820 frames
    codes, context = random_codes(820, seed), random_codes(reference, seed + 50)
    code2wav = make(decoder)
    got = stream(code2wav, chunks_of("s", codes, sizes, context))
    assert len(got) == 820 * SAMPLES
    assert_same_audio(got, whole(decoder, codes, context), PEAK)
    assert code2wav.streams == 0 and code2wav.stream_bytes == 0


def test_a_long_chunk_is_decoded_in_pieces(decoder: CodecDecoder) -> None:
    codes = random_codes(5 * PIECE_FRAMES + 7, 0)
    longest = 0
    real = decoder.decode_chunk

    def watched(piece: torch.Tensor, state: StreamState) -> torch.Tensor:
        nonlocal longest
        longest = max(longest, piece.shape[-1])
        return real(piece, state)

    object.__setattr__(decoder, "decode_chunk", watched)
    try:
        got = stream(make(decoder), chunks_of("s", codes, [len(codes)]))
    finally:
        object.__delattr__(decoder, "decode_chunk")
    assert longest == PIECE_FRAMES
    assert_same_audio(got, whole(decoder, codes))


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    references=st.lists(st.integers(0, 30), min_size=2, max_size=5),
    seed=st.integers(0, 999),
)
@settings(max_examples=30)
def test_batched_equals_alone(decoder: CodecDecoder, sizes: list[int], references: list[int], seed: int) -> None:
    """Streams that began at different times, with and without a reference, some of them the same."""
    code2wav = make(decoder)
    pasts = [random_codes(i, seed + i) for i in range(len(references))]  # the i-th stream began i frames earlier
    contexts = [random_codes(n, n) for n in references]
    codes = [random_codes(sum(sizes), seed + 100 + i) for i in range(len(references))]
    heard: list[list[NDArray[np.float32]]] = []
    for i, (past, context) in enumerate(zip(pasts, contexts, strict=True)):
        heard.append([decode_one(code2wav, CodecChunk(f"s{i}", 0, past, context, False)).waveform])
    streams = [chunks_of(f"s{i}", each, sizes) for i, each in enumerate(codes)]
    for together in zip(*streams, strict=True):
        batch = [CodecChunk(c.stream_id, c.index + 1, c.payload, NO_CODES, c.final) for c in together]
        for parts, decoded in zip(heard, code2wav.decode(batch), strict=True):
            assert isinstance(decoded, Decoded), decoded
            parts.append(decoded.waveform)
    assert code2wav.streams == 0
    for i, parts in enumerate(heard):
        everything = np.concatenate((pasts[i], codes[i]))
        if len(everything):
            assert_same_audio(np.concatenate(parts), whole(decoder, everything, contexts[i]), PEAK)


def test_an_empty_chunk_ends_a_stream(decoder: CodecDecoder) -> None:
    code2wav, codes = make(decoder), random_codes(3, 0)
    first = decode_one(code2wav, CodecChunk("s", 0, codes, NO_CODES, False))
    last = decode_one(code2wav, CodecChunk("s", 1, NO_CODES, NO_CODES, True))
    assert len(first.waveform) == 3 * SAMPLES and len(last.waveform) == 0 and last.waveform.dtype == np.float32
    assert code2wav.streams == 0


BAD_CHUNKS: dict[str, tuple[CodecChunk, str]] = {
    "a code too large": (CodecChunk("s", 1, np.full((2, 4), 32, np.int32), NO_CODES, False), "0..31"),
    "a code below 0": (CodecChunk("s", 1, np.full((2, 4), -1, np.int32), NO_CODES, False), "0..31"),
    "too few codebooks": (CodecChunk("s", 1, np.zeros((2, 3), np.int32), NO_CODES, False), r"\[frames, 4\]"),
    "frames without codes": (CodecChunk("s", 1, np.zeros((2, 0), np.int32), NO_CODES, False), r"\[frames, 4\]"),
    "one dimension": (CodecChunk("s", 1, np.zeros(4, np.int32), NO_CODES, False), r"\[frames, 4\]"),
    "too many frames": (CodecChunk("s", 1, np.zeros((513, 4), np.int32), NO_CODES, False), "at most 512"),
    "a late reference": (CodecChunk("s", 1, random_codes(1, 0), random_codes(1, 0), False), "chunk 0"),
    "the same index again": (CodecChunk("s", 0, random_codes(2, 0), NO_CODES, False), "chunk 1 was due"),
    "an index too early": (CodecChunk("s", 2, random_codes(2, 0), NO_CODES, True), "chunk 1 was due"),
    "a negative index": (CodecChunk("s", -1, random_codes(2, 0), NO_CODES, False), "chunk 1 was due"),
    "a stream that is not open": (CodecChunk("t", 1, random_codes(2, 0), NO_CODES, False), "begins with chunk 0"),
    "a bad reference": (CodecChunk("t", 0, random_codes(2, 0), np.full((2, 4), 32, np.int32), False), "context_codes"),
    "a long reference": (CodecChunk("t", 0, random_codes(2, 0), np.zeros((513, 4), np.int32), False), "context_codes"),
}


@pytest.mark.parametrize("case", BAD_CHUNKS)
def test_a_bad_chunk_is_refused_and_no_stream_notices(decoder: CodecDecoder, case: str) -> None:
    chunk, text = BAD_CHUNKS[case]
    code2wav, codes = make(decoder), random_codes(12, 1)
    first, second = chunks_of("s", codes, [5, 7])
    before = decode_one(code2wav, first).waveform
    with pytest.raises(InvalidArgument, match=text):
        raise decode_error(code2wav, chunk)
    assert code2wav.streams == 1 and code2wav.is_open("s")
    # Beside a bad chunk of the same length, too.
    bad = CodecChunk("u", 1, second.payload, NO_CODES, False)
    error, after = code2wav.decode([bad, second])
    assert isinstance(error, InvalidArgument) and isinstance(after, Decoded)
    assert_same_audio(np.concatenate((before, after.waveform)), whole(decoder, codes))


def test_a_batch_that_fails_is_decoded_one_by_one(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that makes it fail ends; the others go on unharmed."""
    code2wav, poison = make(decoder), 31
    codes = {name: random_codes(20, i) % 31 for i, name in enumerate("abc")}
    chunks = {name: chunks_of(name, each, [4, 6, 10]) for name, each in codes.items()}
    chunks["b"][1].payload[:] = poison
    real, widths = decoder.decode_chunk, []

    def fragile(piece: torch.Tensor, state: StreamState) -> torch.Tensor:
        widths.append(len(piece))
        if (piece == poison).any():
            raise RuntimeError("the decoder broke")
        return real(piece, state)

    monkeypatch.setattr(decoder, "decode_chunk", fragile)
    heard: dict[str, list[NDArray[np.float32]]] = {name: [] for name in codes}
    for step in range(3):
        live = [name for name in codes if code2wav.is_open(name) or step == 0]
        for name, outcome in zip(live, code2wav.decode([chunks[name][step] for name in live]), strict=True):
            if (name, step) == ("b", 1):
                assert isinstance(outcome, Internal) and "broke" not in str(outcome)
            else:
                assert isinstance(outcome, Decoded)
                heard[name].append(outcome.waveform)
    assert widths == [3, 3, 1, 1, 1, 2]
    for name in "ac":
        assert_same_audio(np.concatenate(heard[name]), whole(decoder, codes[name]))
    assert len(heard["b"]) == 1 and code2wav.streams == 0


def test_a_stream_whose_audio_is_not_finite_ends_alone(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    code2wav = make(decoder)
    codes = {name: random_codes(8, i) for i, name in enumerate("ab")}
    for name in codes:
        decode_one(code2wav, CodecChunk(name, 0, codes[name][:4], NO_CODES, False))
    real = StreamState.stack

    def poisoned(states: list[StreamState]) -> StreamState:
        state = real(states)
        for buffer in state.buffers:
            buffer[0] = float("nan")  # the history of the first stream
        return state

    monkeypatch.setattr(StreamState, "stack", staticmethod(poisoned))
    bad, good = code2wav.decode([CodecChunk(name, 1, codes[name][4:], NO_CODES, False) for name in codes])
    assert isinstance(bad, Internal) and isinstance(good, Decoded)
    assert_same_audio(good.waveform, whole(decoder, codes["b"])[4 * SAMPLES :])
    assert not code2wav.is_open("a") and code2wav.is_open("b")


def test_a_reference_that_fails_opens_nothing(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    code2wav, codes = make(decoder), random_codes(4, 0)

    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "prime", broken)
        bad, good = code2wav.decode(
            [CodecChunk("a", 0, codes, random_codes(5, 1), False), CodecChunk("b", 0, codes, NO_CODES, False)]
        )
    assert isinstance(bad, Internal) and isinstance(good, Decoded)
    assert code2wav.streams == 1 and code2wav.primed_bytes == 0
    assert decode_one(code2wav, CodecChunk("a", 0, codes, random_codes(5, 1), False)).primed == "miss"


def test_open_streams_are_bounded(decoder: CodecDecoder) -> None:
    code2wav, codes = make(decoder, max_state_bytes=3 * STATE_BYTES + 1), random_codes(2, 0)
    assert code2wav.max_streams == 3
    for name in "abc":
        decode_one(code2wav, CodecChunk(name, 0, codes, NO_CODES, False))
    assert code2wav.stream_bytes == 3 * STATE_BYTES
    assert isinstance(decode_error(code2wav, CodecChunk("d", 0, codes, NO_CODES, False)), Overloaded)
    decode_one(code2wav, CodecChunk("a", 1, codes, NO_CODES, True))
    decode_one(code2wav, CodecChunk("d", 0, codes, NO_CODES, False))


def test_idle_streams_are_swept(decoder: CodecDecoder) -> None:
    clock = Clock()
    code2wav, codes = make(decoder, idle_seconds=60.0, clock=clock), random_codes(2, 0)
    for name in "abc":
        decode_one(code2wav, CodecChunk(name, 0, codes, NO_CODES, False))
    clock.now += 50
    decode_one(code2wav, CodecChunk("b", 1, codes, NO_CODES, False))
    assert code2wav.sweep() == []
    clock.now += 11
    assert code2wav.sweep(waiting={"c"}) == ["a"]
    assert code2wav.is_open("b") and code2wav.is_open("c")
    assert isinstance(decode_error(code2wav, CodecChunk("a", 1, codes, NO_CODES, False)), InvalidArgument)


def test_a_known_reference_gives_identical_audio(decoder: CodecDecoder) -> None:
    code2wav, codes, context = make(decoder), random_codes(30, 0), random_codes(40, 1)
    heard, seen = [], []
    for name in "abc":
        first, *rest = chunks_of(name, codes, [1, 2, 27], context)
        decoded = decode_one(code2wav, first)
        seen.append(decoded.primed)
        heard.append(np.concatenate([decoded.waveform, stream(code2wav, rest)]))
        # A stream with another past in between changes nothing.
        stream(code2wav, chunks_of("x", random_codes(9, 5), [4, 5], random_codes(12, 6)))
    assert seen == ["miss", "hit", "hit"]
    np.testing.assert_array_equal(heard[1], heard[0])
    np.testing.assert_array_equal(heard[2], heard[0])
    assert_same_audio(heard[0], whole(decoder, codes, context))
    assert code2wav.primed_bytes == 2 * STATE_BYTES
    assert decode_one(code2wav, CodecChunk("n", 0, codes, NO_CODES, True)).primed == "none"


def test_two_streams_of_one_reference_run_side_by_side(decoder: CodecDecoder) -> None:
    code2wav, context = make(decoder), random_codes(20, 0)
    codes = {name: random_codes(24, i) for i, name in enumerate("ab")}
    rounds = zip(*(chunks_of(name, each, [4, 8, 12], context) for name, each in codes.items()), strict=True)
    outcomes = [code2wav.decode(batch) for batch in rounds]
    for i, name in enumerate(codes):
        parts = [outcome[i] for outcome in outcomes]
        heard = np.concatenate([part.waveform for part in parts if isinstance(part, Decoded)])
        assert_same_audio(heard, whole(decoder, codes[name], context))


def primed(code2wav: Code2Wav, voice: int) -> str:
    """Whether the state after a voice's reference was in memory for a new stream."""
    return decode_one(code2wav, CodecChunk("s", 0, random_codes(1, 0), random_codes(5, voice), True)).primed


def test_known_references_are_bounded_in_bytes(decoder: CodecDecoder) -> None:
    code2wav = make(decoder, primed_bytes=2 * STATE_BYTES)
    seen = [primed(code2wav, voice) for voice in (1, 2, 1, 3, 1, 2)]
    assert seen == ["miss", "miss", "hit", "miss", "hit", "miss"]
    assert code2wav.primed_bytes == 2 * STATE_BYTES
    small = make(decoder, primed_bytes=STATE_BYTES - 1)
    assert [primed(small, 1), primed(small, 1)] == ["miss", "miss"]
    assert small.primed_bytes == 0


def test_known_references_are_forgotten_in_time(decoder: CodecDecoder) -> None:
    clock = Clock()
    code2wav = make(decoder, primed_seconds=600.0, clock=clock)
    assert [primed(code2wav, 1), primed(code2wav, 2)] == ["miss", "miss"]
    clock.now += 500
    assert primed(code2wav, 1) == "hit"
    clock.now += 200
    code2wav.sweep()  # a voice is forgotten without a request for it
    assert code2wav.primed_bytes == STATE_BYTES
    assert [primed(code2wav, 1), primed(code2wav, 2)] == ["hit", "miss"]
    clock.now += 601
    assert primed(code2wav, 1) == "miss"


def test_references_of_different_shapes_never_meet(decoder: CodecDecoder) -> None:
    """Same bytes, another number of frames: the one with the wrong shape is refused, not found."""
    code2wav, codes, context = make(decoder), random_codes(1, 0), random_codes(6, 1)
    decode_one(code2wav, CodecChunk("a", 0, codes, context, True))
    assert isinstance(decode_error(code2wav, CodecChunk("b", 0, codes, context.reshape(12, 2), True)), InvalidArgument)
    changed = context.copy()
    changed[0, 0] = (changed[0, 0] + 1) % 32
    assert decode_one(code2wav, CodecChunk("c", 0, codes, changed, True)).primed == "miss"
    assert decode_one(code2wav, CodecChunk("d", 0, codes, np.asfortranarray(context), True)).primed == "hit"


def test_references_of_different_voices_never_meet() -> None:
    """Whatever differs: the frames, a value, or the name of a value."""
    context, x, y = random_codes(6, 1), np.zeros(3, np.float32), np.ones(3, np.float32)
    references = [
        Reference(context),
        Reference(random_codes(6, 2)),
        *(Reference(context, voice) for voice in ({"a": x}, {"a": y}, {"b": x}, {"a": x, "b": y}, {"a": y, "b": x})),
    ]
    assert len({reference.key for reference in references}) == len(references)
    assert Reference(context, {"b": y, "a": x}).key == Reference(context, {"a": x, "b": y}).key


def test_a_stream_reports_its_time(decoder: CodecDecoder) -> None:
    code2wav, codes = make(decoder), random_codes(9, 0)
    first, second, third = (decode_one(code2wav, chunk) for chunk in chunks_of("s", codes, [1, 3, 5]))
    assert 0 < first.spent_ms < second.spent_ms < third.spent_ms
    assert first.first_ms >= first.spent_ms and first.first_ms == third.first_ms


def test_warm_up_leaves_nothing_behind(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    code2wav, real, shapes = make(decoder), decoder.decode_chunk, []

    def watched(piece: torch.Tensor, state: StreamState) -> torch.Tensor:
        shapes.append((piece.shape[0], piece.shape[2]))
        return real(piece, state)

    monkeypatch.setattr(decoder, "decode_chunk", watched)
    code2wav.warm_up((1, 2, 4, 4, 1000), (1, 3), seconds=60.0)
    assert shapes == [(b, n) for b in (1, 3) for n in (1, 2, 4, PIECE_FRAMES)]
    code2wav.warm_up((1, 2), (1,), seconds=-1.0)
    assert len(shapes) == 8
    monkeypatch.setattr(type(decoder), "any_shape", True)
    code2wav.warm_up((1, 2), (1, 3), seconds=-1.0)
    assert shapes[8:] == [(1, 1)], "the next start would compile what this one has not"
    assert code2wav.streams == 0 and code2wav.primed_bytes == 0


def test_a_reference_prepared_for_a_stream_gives_it_the_same_audio(decoder: CodecDecoder) -> None:
    code2wav, codes, context = make(decoder), random_codes(6, 0), random_codes(40, 1)
    code2wav.prepare(Reference(context))
    assert code2wav.streams == 0 and code2wav.primed_bytes == STATE_BYTES
    first = decode_one(code2wav, CodecChunk("a", 0, codes, context, True))
    later = decode_one(code2wav, CodecChunk("b", 0, codes, context, True))
    assert (first.primed, later.primed) == ("miss", "hit"), "it was computed for the first one"
    plain = decode_one(make(decoder), CodecChunk("a", 0, codes, context, True))
    np.testing.assert_array_equal(first.waveform, plain.waveform)
    np.testing.assert_array_equal(later.waveform, plain.waveform)


def test_a_known_reference_is_not_prepared_again(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    code2wav, none_fits = make(decoder), make(decoder, primed_bytes=STATE_BYTES - 1)
    assert primed(code2wav, 1) == "miss"
    monkeypatch.setattr(decoder, "prime", None)
    code2wav.prepare(Reference(random_codes(5, 1)))
    code2wav.prepare(Reference(NO_CODES))
    none_fits.prepare(Reference(random_codes(5, 1)))
    assert primed(code2wav, 1) == "hit"
    with pytest.raises(InvalidArgument, match="context_codes"):
        code2wav.prepare(Reference(random_codes(5, 1) + 32))


def test_restored_references_are_known(decoder: CodecDecoder) -> None:
    """As many as fit, the first ones; when newer ones come, the last of them goes first."""
    code2wav = make(decoder, primed_bytes=3 * STATE_BYTES)
    foreign = random_codes(5, 9) + 32
    references = [foreign, *(random_codes(5, voice) for voice in (1, 2, 3, 4))]
    assert code2wav.restore(map(Reference, references), seconds=60.0) == 3
    assert [primed(code2wav, voice) for voice in (3, 2, 1)] == ["hit"] * 3
    code2wav = make(decoder, primed_bytes=3 * STATE_BYTES)
    code2wav.restore(map(Reference, references), seconds=60.0)
    assert [primed(code2wav, voice) for voice in (5, 2, 1)] == ["miss", "hit", "hit"]
    assert primed(code2wav, 3) == "miss"


def test_restoring_ends_in_time(decoder: CodecDecoder) -> None:
    code2wav = make(decoder)
    assert code2wav.restore([Reference(random_codes(5, voice)) for voice in range(3)], seconds=-1.0) == 0
    assert code2wav.primed_bytes == 0


def test_a_forgotten_voice_leaves_no_state(decoder: CodecDecoder) -> None:
    """Neither the one that is there, nor one of a stream that found the voice before; the streams themselves go on."""
    code2wav, context, codes = make(decoder), random_codes(9, 1), random_codes(6, 2)
    [first, *_] = chunks_of("s", codes, [6], context)
    before = replace(first, stream_id="before", origin=Origin("7", time.monotonic()))
    late = replace(first, stream_id="late", origin=Origin("7", time.monotonic()))
    expected = decode_one(code2wav, before).waveform
    assert code2wav.forget(()).voices == {"7"}
    assert code2wav.forget(["8"]).entries == 1
    assert code2wav.forget(["7"]) == (0, 0, frozenset()) and code2wav.primed_bytes == 0
    decoded = decode_one(code2wav, late)
    assert decoded.primed == "miss" and np.array_equal(decoded.waveform, expected)
    code2wav.prepare(Reference(context, origin=late.origin))
    assert code2wav.forget(()).entries == 0
    again = replace(first, stream_id="again", origin=Origin("9", time.monotonic()))
    assert decode_one(code2wav, again).primed == "miss" and code2wav.forget(()).voices == {"9"}


@pytest.mark.parametrize("before", ["speak", "prepare", "restore"])
def test_owners_of_one_clip_share_no_state(decoder: CodecDecoder, before: str) -> None:
    code2wav, context = make(decoder), random_codes(9, 1)
    [chunk, *_] = chunks_of("ada", random_codes(6, 2), [6], context)
    origins = {name: Origin.unknown()._replace(scope=f"of {name}") for name in ("ada", "bob")}
    if before == "prepare":
        code2wav.prepare(Reference(context, origin=origins["ada"]))
        code2wav.prepare(Reference(context, origin=origins["bob"]))
        assert code2wav.forget(()).entries == 2
        return
    if before == "restore":
        code2wav.restore([Reference(context, origin=origins["ada"])], 60.0)
    decoded = [decode_one(code2wav, replace(chunk, stream_id=name, origin=origins[name])) for name in origins]
    assert [each.primed for each in decoded] == ["hit" if before == "restore" else "miss", "miss"]
    assert np.array_equal(decoded[0].waveform, decoded[1].waveform)
