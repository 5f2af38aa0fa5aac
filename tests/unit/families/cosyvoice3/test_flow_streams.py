"""Streams of CosyVoice3's decoder: the same bits however they are cut, with pages or without, alone or with others."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.cosyvoice_decoder import (
    CountedFlow,
    flow_streams,
    in_chunks,
    make_cosyvoice_decoder,
    some_reference,
    some_tokens,
)
from voice_clone.errors import InvalidArgument
from voice_clone.families.cosyvoice3.config import FRAME_SAMPLES, MEL, SPEAKER, stream_chunks
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.flow_streams import FlowStreams
from voice_clone.families.cosyvoice3.networks.flow import FlowNetwork
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
REFERENCE = 60  # tokens; two blocks of them depend on the voice alone
TOKENS = 83
NEIGHBOURS = 0.01  # of the samples' RMS, where streams share products; the phase makes more of a pitch's error


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> tuple[FlowNetwork, Vocoder]:
    checkpoint = DecoderCheckpoint(make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint"))
    return checkpoint.load_flow(torch.float32, CPU), checkpoint.load_vocoder(CPU)


Make = Callable[..., tuple[FlowStreams, CountedFlow]]


@pytest.fixture
def make(networks: tuple[FlowNetwork, Vocoder]) -> Make:
    def made(**options: Any) -> tuple[FlowStreams, CountedFlow]:
        counted = CountedFlow(networks[0])
        return flow_streams(counted, networks[1], **options), counted

    return made


@pytest.mark.parametrize("reference", [0, 2, 28, 50, 60])
def test_any_chunks_make_the_same_bits(make: Make, reference: int) -> None:
    voice, tokens = some_reference(reference), some_tokens(TOKENS, 1)
    streams, _ = make()
    whole = np.concatenate(in_chunks(streams, voice, tokens, [TOKENS]))
    assert len(whole) == FRAME_SAMPLES * TOKENS and 0.02 < whole.std() < 0.7
    plan = stream_chunks(reference)
    for sizes in ([1] * TOKENS, [40, 3, 40], [*plan, *[plan[-1]] * 2]):
        np.testing.assert_array_equal(np.concatenate(in_chunks(streams, voice, tokens, sizes)), whole)


@pytest.mark.parametrize("tokens", [1, 2, 3, 14, 15, 16, 40])
def test_a_stream_has_the_samples_of_its_tokens(make: Make, tokens: int) -> None:
    """Ends inside a block and at its border."""
    streams, _ = make()
    made = in_chunks(streams, some_reference(10), some_tokens(tokens, 1), [tokens])
    assert sum(map(len, made)) == FRAME_SAMPLES * tokens


def test_an_empty_stream_is_silent(make: Make) -> None:
    streams, _ = make()
    assert not sum(map(len, in_chunks(streams, some_reference(10), some_tokens(0), [])))


def test_first_audio_after_the_rest_of_the_block_and_three_tokens(make: Make) -> None:
    """For the third stream as for the first one."""
    streams, _ = make()
    for _ in range(3):
        made = in_chunks(streams, some_reference(REFERENCE), some_tokens(TOKENS, 1), [1] * TOKENS)
        first = next(place for place, each in enumerate(made) if len(each))
        rest = 25 - REFERENCE % 25
        assert first + 1 == rest + 3
        assert len(made[first]) == FRAME_SAMPLES * rest - 4 * 480 - 4  # the vocoder holds four frames back


@pytest.mark.parametrize("pages", [0, 1, 2.5, 4])
def test_without_pages_the_same_speech(make: Make, pages: float) -> None:
    """Of the six blocks some or all are solved again, about twice each of those that lack a page."""
    voice, tokens = some_reference(REFERENCE), some_tokens(TOKENS, 1)
    paged, counted = make()
    expected = np.concatenate(in_chunks(paged, voice, tokens, [1] * TOKENS))
    assert counted.blocks == 6
    short, counted = make(pages=pages)
    np.testing.assert_array_equal(np.concatenate(in_chunks(short, voice, tokens, [1] * TOKENS)), expected)
    assert 6 < counted.blocks < 3 * 6


def test_work_grows_with_the_length(make: Make) -> None:
    """With pages each block is solved once; without, a long stream solves at most three times its blocks."""
    tokens = some_tokens(24 * 25, 1)
    for pages, most in ((1000, 24), (0, 3 * 24)):
        streams, counted = make(pages=pages)
        made = np.concatenate(in_chunks(streams, some_reference(0), tokens, [25] * 24))
        assert len(made) == FRAME_SAMPLES * len(tokens) and np.isfinite(made).all()
        assert 24 <= counted.blocks <= most


def test_the_second_stream_of_a_voice_solves_nothing_of_it(make: Make) -> None:
    voice, tokens = some_reference(REFERENCE), some_tokens(20, 1)
    streams, counted = make()
    first, found = streams.open(voice)
    assert found == "miss" and counted.blocks == 2
    second, found = streams.open(voice)
    assert found == "hit" and counted.blocks == 2
    heard = [np.concatenate([*streams.decode([each], [tokens]), streams.flush(each)]) for each in (first, second)]
    np.testing.assert_array_equal(*heard)


def test_a_voice_is_prepared_before_its_stream(make: Make) -> None:
    streams, counted = make()
    voice = some_reference(REFERENCE)
    for _ in range(2):
        streams.prepare(voice)
    assert counted.blocks == 2 and streams.primed_bytes == 2 * counted.page_bytes
    assert [streams.open(voice)[1] for _ in range(2)] == ["miss", "hit"]
    streams.prepare(some_reference(20))  # no block is of the voice alone
    assert counted.blocks == 2 and streams.open(some_reference(20))[1] == "none"


def test_two_voices_with_the_same_tokens_never_meet(make: Make) -> None:
    streams, _ = make()
    voice, tokens = some_reference(REFERENCE), some_tokens(20, 1)
    mel, speaker = voice.voice[MEL], voice.voice[SPEAKER]
    others = [replace(voice, voice=each) for each in ({MEL: mel // 2, SPEAKER: speaker}, {MEL: mel, SPEAKER: -speaker})]
    heard = [np.concatenate(in_chunks(streams, each, tokens, [20])) for each in (voice, *others)]
    assert abs(heard[0] - heard[1]).max() > 0.01 and abs(heard[0] - heard[2]).max() > 0.01


@pytest.mark.parametrize("together", [False, True])
def test_company_changes_no_speech(make: Make, together: bool) -> None:
    """Eight streams at different places, their chunks in common batches; the same bits without shared products."""
    voices = [some_reference(12 * number, number) for number in range(8)]
    tokens = [some_tokens(60, number) for number in range(8)]
    alone, _ = make()
    expected = [np.concatenate(in_chunks(alone, *each, [60])) for each in zip(voices, tokens, strict=True)]
    streams, _ = make(together=together)
    assert streams.supports_ragged_batches == together
    numbers = [streams.open(voice)[0] for voice in voices]
    heard: list[list[Any]] = [[] for _ in voices]
    for done, size in ((0, 7), (7, 33), (40, 20)):
        batch = streams.decode(numbers, [each[done : done + size] for each in tokens])
        for own, samples in zip(heard, batch, strict=True):
            own.append(samples)
    for number, own, right in zip(numbers, heard, expected, strict=True):
        made = np.concatenate([*own, streams.flush(number)])
        if together:
            assert abs(made - right).max() < NEIGHBOURS * right.std()
        else:
            np.testing.assert_array_equal(made, right)


def test_mel_frames_beside_seven_others(make: Make) -> None:
    """Products that streams share may round otherwise."""
    found = []
    for together in (False, True):
        streams, counted = make(together=together)
        numbers = [streams.open(some_reference(12 * number, number))[0] for number in range(8)]
        streams.decode(numbers, [some_tokens(60, number) for number in range(8)])
        found.append([torch.cat(blocks, dim=-1) for blocks in counted.solved])
    assert len(found[0]) == len(found[1]) == 8
    errors = [float((one - other).abs().max() / one.std()) for one, other in zip(*found, strict=True)]
    assert max(errors) < 1e-4 and min(float(one.std()) for one in found[0]) > 0.1


def test_pages_are_returned(make: Make) -> None:
    streams, counted = make(pages=8)
    voices = [some_reference(REFERENCE, number, voice=f"voice {number}") for number in range(3)]
    for voice in voices:
        in_chunks(streams, voice, some_tokens(30, 1), [30])
    gc.collect()
    assert streams.primed_bytes == streams.pages.nbytes == 4 * counted.page_bytes  # half of all: of two voices
    assert streams.forget(["voice 1"]).voices == {"voice 2"}
    assert streams.pages.nbytes == 2 * counted.page_bytes
    streams.forget(["voice 2"])
    assert streams.primed_bytes == streams.pages.nbytes == 0


def test_of_a_long_voice_the_first_pages_are_kept(make: Make) -> None:
    voice, tokens = some_reference(160), some_tokens(30, 1)
    streams, counted = make()
    expected = np.concatenate(in_chunks(streams, voice, tokens, [30]))
    assert counted.blocks == 8
    streams, counted = make(pages=9)
    for solved, found in ((8, "miss"), (8 + 4, "hit")):  # four of its six blocks are not solved again
        assert streams.open(voice)[1] == found
        np.testing.assert_array_equal(np.concatenate(in_chunks(streams, voice, tokens, [30])), expected)
        assert counted.blocks == solved and streams.primed_bytes == 4 * counted.page_bytes


def test_open_streams_keep_the_pages_of_a_forgotten_voice(make: Make) -> None:
    streams, counted = make()
    voice, tokens = some_reference(REFERENCE, voice="Ada"), some_tokens(40, 1)
    expected = np.concatenate(in_chunks(streams, voice, tokens, [40]))
    stream, _ = streams.open(voice)
    streams.forget(["Ada"])
    assert streams.pages.nbytes == 2 * counted.page_bytes
    heard = [*streams.decode([stream], [tokens]), streams.flush(stream)]
    np.testing.assert_array_equal(np.concatenate(heard), expected)
    assert streams.stream_bytes > 2 * counted.page_bytes
    streams.close(stream)
    assert streams.pages.nbytes == 0 and streams.stream_bytes == 0


def test_stored_voices_are_restored_as_far_as_they_fit(make: Make) -> None:
    wrong = replace(some_reference(REFERENCE, 9), context=np.full((REFERENCE, 1), 6561, np.uint16))
    voices = [some_reference(REFERENCE, number) for number in range(4)]
    streams, counted = make(pages=8)
    assert streams.restore([wrong, some_reference(5), *voices], 60) == 2
    assert counted.blocks == 4
    assert [streams.open(voice)[1] for voice in voices[:3]] == ["hit", "hit", "miss"]
    streams, counted = make()
    assert streams.restore(voices, 0) == 0 and counted.blocks == 0


def test_a_stored_clip_is_restored_once(make: Make) -> None:
    """Of a voice that was used in both modes, and of two voices; each of them takes its pages along."""
    streams, counted = make()
    voice = some_reference(REFERENCE, voice="Ada")
    assert streams.restore([voice, voice, some_reference(REFERENCE, voice="Bob")], 60) == 1
    assert counted.blocks == 2 and streams.primed_bytes == 2 * counted.page_bytes
    streams.forget(["Bob"])
    assert streams.pages.nbytes == 0


def test_a_batch_that_fails_moves_no_stream(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    voice, tokens = some_reference(REFERENCE), some_tokens(40, 1)
    streams, counted = make()
    expected = np.concatenate(in_chunks(streams, voice, tokens, [40]))
    stream, _ = streams.open(voice)
    before = streams.pages.nbytes
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(counted, "solve", lambda spans, together: 1 / 0)
        streams.decode([stream], [tokens])
    gc.collect()
    assert streams.pages.nbytes == before
    heard = [*streams.decode([stream], [tokens]), streams.flush(stream)]
    np.testing.assert_array_equal(np.concatenate(heard), expected)


def test_a_warm_up_leaves_nothing(make: Make) -> None:
    for together, blocks in ((False, 2), (True, 8)):  # of one stream, and of one and then three; two blocks each
        streams, counted = make(together=together)
        streams.warm_up((28, 25), (1, 3), 60)
        gc.collect()
        assert counted.blocks == blocks and streams.pages.nbytes == streams.stream_bytes == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "this decoder needs the voice with chunk 0"),
        ({MEL: np.zeros((119, 80), np.int16)}, r"mel must be INT16 \[120, 80\]: 2 frames a token"),
        ({MEL: np.zeros((120, 80), np.float32)}, "mel must be INT16"),
        ({MEL: None}, "mel must be INT16"),
        ({SPEAKER: np.zeros(191, np.float32)}, r"speaker must be FP32 \[192\]"),
        ({SPEAKER: np.full(192, np.nan, np.float32)}, "speaker must be finite"),
    ],
)
def test_voices_that_are_refused(make: Make, change: dict[str, Any], message: str) -> None:
    streams, _ = make()
    voice = some_reference(REFERENCE)
    given = {name: each for name, each in {**voice.voice, **change}.items() if each is not None} if change else {}
    with pytest.raises(InvalidArgument, match=message):
        streams.open(replace(voice, voice=given))


def test_a_checkpoint_is_loaded_from_its_folder(tmp_path: Path) -> None:
    """Two seeds differ in flow and vocoder: the comparisons above are not empty."""
    heard = []
    for seed in (0, 1):
        checkpoint = DecoderCheckpoint(make_cosyvoice_decoder(tmp_path / str(seed), seed=seed))
        streams = flow_streams(checkpoint.load_flow(torch.float32, CPU), checkpoint.load_vocoder(CPU))
        heard.append(np.concatenate(in_chunks(streams, some_reference(5), some_tokens(10), [10])))
    assert abs(heard[0] - heard[1]).max() > 0.05
