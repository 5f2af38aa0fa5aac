"""CosyVoice3's decoder stage by its settings, behind code2wav, and the references of stored voices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.families.cosyvoice_decoder import (
    flow_streams,
    in_chunks,
    make_cosyvoice_decoder,
    some_reference,
    some_tokens,
)
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import Code2Wav, load_code2wav
from voice_clone.errors import InvalidArgument
from voice_clone.families.cosyvoice3 import codec as decoder_stage
from voice_clone.families.cosyvoice3.codec import FORM, FlowDecoderStage, flow_dtype, load_decoder
from voice_clone.families.cosyvoice3.config import (
    CROSS_LINGUAL,
    FRAME_SAMPLES,
    MEL,
    SPEAKER,
    TOKENS,
    ZERO_SHOT,
    stream_chunks,
)
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.networks.flow import Block, Span
from voice_clone.lru_cache import Origin
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.store import KnownVoices

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint")
    environ = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PAGE_BYTES": "30000000"}
    return Settings({}, {f"VOICE_CLONE_COSYVOICE3_{name}": value for name, value in environ.items()}, "cosyvoice3")


@pytest.fixture(scope="module")
def stage(given: Settings) -> FlowDecoderStage:
    return load_decoder(given)


def code2wav_of(stage: FlowDecoderStage, given: Settings) -> Code2Wav:
    settings = DecoderSettings.of(given)
    return load_code2wav(settings, stage.streams(settings, stage.chunk_frames), stage.form)


def test_a_stream_through_code2wav(stage: FlowDecoderStage, given: Settings) -> None:
    """In the chunks that the talker plans: the first one is heard, the last one ends with all samples."""
    voice, tokens = some_reference(40), some_tokens(100, 1)
    code2wav, done, heard = code2wav_of(stage, given), 0, []
    plan = stream_chunks(40)
    sizes = [*plan, 100]
    for index, size in enumerate(sizes):
        part = tokens[done : done + size]
        done += len(part)
        first = voice if index == 0 else some_reference(0)
        context, needed = first.context, voice.voice if index == 0 else {}
        chunk = CodecChunk("a", index, part, context, final=index == len(sizes) - 1, voice=needed, origin=first.origin)
        [decoded] = code2wav.decode([chunk])
        assert isinstance(decoded, Decoded) and len(decoded.waveform)
        heard.append(decoded.waveform)
    assert done == 100 and code2wav.streams == 0
    streams = stage.streams(DecoderSettings.of(given), stage.chunk_frames)
    np.testing.assert_array_equal(np.concatenate(heard), np.concatenate(in_chunks(streams, voice, tokens, [100])))
    assert sum(map(len, heard)) == FRAME_SAMPLES * 100


def test_chunks_that_are_refused(stage: FlowDecoderStage, given: Settings) -> None:
    code2wav, voice = code2wav_of(stage, given), some_reference(4)
    wrong = np.full((4, 1), 6561, np.uint16)
    for payload, context, needed, message in (
        (some_tokens(4), voice.context, {}, "needs the voice"),
        (wrong, voice.context, voice.voice, r"codes must lie in 0..6560"),
        (some_tokens(4), wrong, voice.voice, r"context_codes must lie in 0..6560"),
        (some_tokens(4), some_tokens(3), voice.voice, r"INT16 \[6, 80\]"),
    ):
        [refused] = code2wav.decode([CodecChunk("a", 0, payload, context, final=False, voice=needed)])
        with pytest.raises(InvalidArgument, match=message):
            raise cast(Exception, refused)


def test_a_cpu_decodes_one_stream_at_a_time(stage: FlowDecoderStage, given: Settings) -> None:
    """Unless the settings ask for more: streams that share no products gain nothing by a batch."""
    settings = DecoderSettings.of(given)
    assert code2wav_of(stage, given).max_batch == 1
    settings = DecoderSettings(**{**vars(settings), "max_decode_batch": 3})
    assert load_code2wav(settings, stage.streams(settings, stage.chunk_frames), stage.form).max_batch == 3


def test_page_bytes_bound_the_pages(stage: FlowDecoderStage, given: Settings) -> None:
    streams = stage.streams(DecoderSettings.of(given), stage.chunk_frames)
    assert FORM.needs_voice and stage.flow.page_bytes < 3_000_000
    in_chunks(streams, some_reference(200), some_tokens(200), [200])
    assert 0 < streams.primed_bytes <= streams.pages.nbytes <= 30_000_000


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_with_bf16_computes_the_flow_in_it(
    given: Settings, monkeypatch: pytest.MonkeyPatch, bf16: bool, dtype: torch.dtype
) -> None:
    """If it is asked to; the pages are half as large then, and any chunks make the same bits."""
    monkeypatch.setattr(decoder_stage, "INSTRUCTIONS", INSTRUCTIONS._replace(bf16_dots=bf16))
    settings = DecoderSettings(**{**vars(DecoderSettings.of(given)), "precision": "bf16"})
    assert flow_dtype(settings) == dtype and flow_dtype(DecoderSettings.of(given)) == torch.float32
    checkpoint = DecoderCheckpoint(settings.checkpoint_dir)
    flow, wide = (checkpoint.load_flow(each, torch.device("cpu")) for each in (dtype, torch.float32))
    assert flow.page_bytes == wide.page_bytes * dtype.itemsize // 4 == flow.new_page(0).nbytes
    vocoder = checkpoint.load_vocoder(torch.device("cpu"))
    voice, tokens = some_reference(60), some_tokens(40, 1)
    streams = flow_streams(flow, vocoder)
    whole, single = (np.concatenate(in_chunks(streams, voice, tokens, sizes)) for sizes in ([40], [1] * 40))
    np.testing.assert_array_equal(whole, single)
    block = Block(torch.randn(50, 80), torch.randn(50, 80))
    [[mel]], [[right]] = (each.solve([Span(torch.zeros(80), [], [block], [None])], False) for each in (flow, wide))
    assert float((mel - right).abs().max()) <= (0.1 if dtype == torch.bfloat16 else 0)


def test_references_of_stored_voices_are_as_long_as_both_artifacts(stage: FlowDecoderStage) -> None:
    """The tokenizer makes a token more of some clips; a voice of another version is left out."""
    artifacts: dict[str, NDArray[Any]] = {
        TOKENS: some_tokens(11)[:, 0],
        MEL: np.arange(21 * 80, dtype=np.int16).reshape(21, 80),
        SPEAKER: np.ones(192, np.float32),
    }
    origin = Origin("Ada", 1.0)

    class Voices:
        def latest(self, artifact: ArtifactId) -> Iterator[tuple[Any, Any]]:
            assert artifact.model_type == "cosyvoice3" and artifact.mode in (ZERO_SHOT, CROSS_LINGUAL)
            if artifact.mode == ZERO_SHOT:
                yield SimpleNamespace(origin=origin), artifacts
                yield SimpleNamespace(origin=origin), {TOKENS: artifacts[TOKENS]}

    [reference] = stage.known_references(cast(KnownVoices, Voices()))
    np.testing.assert_array_equal(reference.context[:, 0], artifacts[TOKENS][:10])
    np.testing.assert_array_equal(reference.voice[MEL], artifacts[MEL][:20])
    assert reference.origin == origin and reference.voice.keys() == {MEL, SPEAKER}


def test_the_model_names_the_stage() -> None:
    text = (Path(__file__).parents[4] / "model_repository/cosyvoice3_code2wav/1/model.py").read_text(encoding="utf-8")
    assert f"import {load_decoder.__name__}" in text and load_decoder.__module__ in text
