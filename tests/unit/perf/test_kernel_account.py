"""perf/kernels: it counts what it says, and a frame takes no more kernels than it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perf.bench.families import FAMILIES
from perf.on_gpu import kernels
from perf.on_gpu.kernel_account import (
    ATTENTION,
    ATTENTION_POSITION,
    ATTENTION_START,
    COPY,
    FLASH,
    MASK,
    Account,
    Counting,
)
from perf.on_gpu.kernels import chunk, frame, on_gpu
from perf.on_gpu.pretend_gpu import pretend_gpu
from tests.support.families.small_codec import SMALL
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.varlen_attention import Starts, VarlenDecode
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.attention import additive_mask

pytestmark = pytest.mark.thorough

MOST = {
    "qwen3_tts": 1607,
    "fish_speech": 1215,
    "voxtral": 679,
    "voxcpm2": 2285,
}  # kernels of a frame of the released shape
MOST_OF_A_CHUNK = {"qwen3_tts": 440, "fish_speech": 440, "voxtral": 285, "voxcpm2": 339}  # at any usual length, fp32
PLACES_OF_A_CHUNK = {
    "qwen3_tts": 4,
    "fish_speech": 4,
    "voxtral": 17,
    "voxcpm2": 1,
}  # its four transformers have windows of their own
ATTENTIONS = {
    "qwen3_tts": (28, 5 * 15),
    "fish_speech": (36, 4 * 9),
    "voxtral": (26, 3 * 7),
    "voxcpm2": (36, 12 * 9),
}  # of talker and head
RATES = {torch.float32: 1e30, torch.bfloat16: 1e30}  # arithmetic takes no time


def test_of_known_operators() -> None:
    counting = Counting(1.0, 100.0, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        weight, x = torch.zeros(50, 10, device="cuda"), torch.zeros(2, 10, device="cuda")
        rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        counting.account = Account()
        torch.nn.functional.linear(x, weight).view(-1)
        assert counting.account.bytes == 4 * (500 + 20 + 100) and counting.account.flops == 2 * 2 * 10 * 50
        assert counting.account.seconds == pytest.approx(4 * 620 / 100)
        torch.nn.functional.embedding(rows, weight)
        x.topk(2)
        assert counting.account.kernels == {"linear": 1, "embedding": 1, "topk": 2}
        rows_read, picked = 4 * 30, 2 * 2 * (4 + 8)
        assert counting.account.bytes == 4 * 620 + (24 + 2 * rows_read) + (80 + picked)


def test_the_longest_of_three_counts() -> None:
    seconds = []
    for floor, bandwidth, rate in ((7.0, 1e30, 1e30), (1.0, 1240.0, 1e30), (1.0, 1e30, 500.0)):
        counting = Counting(floor, bandwidth, {torch.float32: rate})
        with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
            x, weight = torch.zeros(2, 10, device="cuda"), torch.zeros(50, 10, device="cuda")
            counting.account = Account()
            torch.nn.functional.linear(x, weight)
            seconds.append(counting.account.seconds)
    assert seconds == pytest.approx([7.0, 4 * 620 / 1240, 2000 / 500])


def test_arithmetic_of_the_decoder_is_what_torch_counts() -> None:
    """But for the projections of the codes' vectors, which a GPU keeps."""
    with torch.device("meta"):
        empty, codes = CodecDecoder(SMALL), torch.zeros(3, SMALL.num_quantizers, 5, dtype=torch.int64)
    with FlopCounterMode(display=False) as whole, torch.inference_mode():
        empty.decode_chunk(codes, empty.new_state(3))
    with FlopCounterMode(display=False) as projections, torch.inference_mode():
        empty.quantizer.decode(codes)
    counting = Counting(1e-6, 1e12, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        decoder = on_gpu(lambda: CodecDecoder(SMALL), torch.float32)
        codes = torch.zeros(3, SMALL.num_quantizers, 5, dtype=torch.int64, device="cuda")
        for _ in range(2):  # the first keeps what the weights alone decide
            counting.account = Account()
            decoder.decode_chunk(codes, decoder.new_state(3))
    assert counting.account.flops == whole.get_total_flops() - projections.get_total_flops() > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_host_launches(name: str, tmp_path: Path) -> None:
    """A frame: two graphs, a copy each way, a kernel for the texts. A chunk: one graph, three copies."""
    family = FAMILIES[name]
    networks = family.networks(family.shape, tmp_path)
    with pretend_gpu(empty=True) as gpu, torch.inference_mode():
        for batch in (1, 3):
            assert kernels.launches(family, networks, batch, gpu) == {"frame": 5, "chunk": 4, "stream": 3}


def test_attention_over_each_streams_own_length() -> None:
    """Counted are the positions that are given, whatever the cache has room for."""
    counting, config = Counting(1e-9, 100.0, RATES), StackConfig(24, 40, 1, 4, 2, 16, 1e-5, 100.0)
    counting.positions = 50
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        device = torch.device("cuda")
        projected, cache = (
            torch.zeros(*shape, dtype=torch.bfloat16, device=device) for shape in ((3, 8, 16), (5, 4, 999, 16))
        )
        starts = Starts.of(3, config, 999, device)
        own = VarlenDecode.of(starts, torch.zeros(3, dtype=torch.int64, device=device), 998)
        counting.account = Account()
        own.attend(projected, cache)
    account = counting.account
    assert account.kernels == {FLASH: 1}
    assert account.bytes == 2 * (2 * 3 * 8 * 16 + 2 * 3 * 2 * 50 * 16)
    assert account.seconds == pytest.approx(account.bytes / 100)


def test_what_torch_does_on_a_gpu_of_its_own_accord() -> None:
    """Copies of rows that are not whole; masks of bools, and of lengths that are no multiple of 8."""
    counting = Counting(1e-9, 1e30, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        x, keys = torch.zeros(4, 6, 8, device="cuda"), torch.zeros(1, 2, 16, 8, device="cuda")
        masks = [torch.zeros(6, 16, device="cuda"), torch.zeros(6, 16, dtype=torch.bool, device="cuda")]
        short = torch.zeros(6, 13, dtype=torch.bool, device="cuda")
        added, odd = [additive_mask(short, torch.float32)], torch.zeros(6, 13, device="cuda")
        counting.account = Account()
        torch.nn.functional.rms_norm(x, (8,))
        assert counting.account.kernels == {"rms_norm": 1}
        torch.nn.functional.rms_norm(x[:, :3], (8,))
        assert counting.account.kernels[COPY] == 1
        for mask, conversions in ((None, 0), (masks[0], 0), (masks[1], 2), (short, 6), (*added, 6), (odd, 8)):
            seen = keys if mask is None else keys[:, :, : mask.shape[-1]]
            before = counting.account.seconds
            torch.nn.functional.scaled_dot_product_attention(keys[:, :, :6], seen, seen, attn_mask=mask)
            assert counting.account.kernels[MASK] == conversions
            took = counting.account.seconds - before
            assert took == pytest.approx(ATTENTION_START + ATTENTION_POSITION * seen.shape[2], rel=0.01)
        assert counting.account.kernels[ATTENTION] == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_order_of_attentions_results(dtype: torch.dtype, masked: bool) -> None:
    """With a mask, and in fp32, two heads of one group are copied before they are joined."""
    counting = Counting(1e-9, 1e30, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        q, keys = (torch.zeros(3, 4, size, 8, dtype=dtype, device="cuda") for size in (2, 16))
        mask = torch.zeros(2, 16, dtype=dtype, device="cuda") if masked else None
        counting.account = Account()
        out = torch.nn.functional.scaled_dot_product_attention(q, keys, keys, attn_mask=mask)
        out.transpose(1, 2).flatten(2)
        copied = counting.account.kernels["clone"]
        out.reshape(3, 8, 8)
        copies = (copied, counting.account.kernels["clone"] - copied)
    assert copies == ((0, 1) if masked or dtype == torch.float32 else (1, 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chunk_of_the_released_shape(name: str, tmp_path: Path) -> None:
    """What the weights alone decide, and what is the same in all layers, is not computed at each replay."""
    family = FAMILIES[name]
    networks = family.networks(family.shape, tmp_path)
    counting = Counting(1e-6, 1e12, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        found = chunk(family, networks, 2, counting, "fp32", 1e30)
    assert set(found) == set(family.chunk_frames)
    for account in found.values():
        assert 0.9 * MOST_OF_A_CHUNK[name] < account.count <= MOST_OF_A_CHUNK[name]
        for operator in ("exp", "reciprocal", "div", "pow", MASK):
            assert operator not in account.kernels
        assert account.kernels["index"] == account.kernels["index_put_"] == 2  # the streams' states and positions
        assert account.kernels["clamp"] + account.kernels["tanh"] == 1, "that of the samples"
        assert account.kernels["arange"] <= PLACES_OF_A_CHUNK[name]


def test_of_half_precision_no_layer_converts_tables() -> None:
    counting = Counting(1e-6, 1e12, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        decoder = on_gpu(lambda: CodecDecoder(SMALL), torch.bfloat16)
        codes, state = torch.zeros(1, SMALL.num_quantizers, 2, dtype=torch.int64, device="cuda"), decoder.new_state(1)
        decoder.decode_chunk(codes, state)
        counting.account = Account()
        decoder.decode_chunk(codes, state)
    assert counting.account.kernels["_to_copy"] == 3, "positions, cosine and sine"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_frame_of_the_released_shape(name: str, tmp_path: Path) -> None:
    """With the usual sampling of the family."""
    family = FAMILIES[name]
    networks = family.networks(family.shape, tmp_path)
    counting = Counting(1e-6, 1e12, RATES)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        parts = frame(family, networks, 2, 512, counting)
    assert (parts["talker"].kernels[FLASH], parts["predictor"].kernels[ATTENTION]) == ATTENTIONS[name]
    searched = parts["predictor"].kernels["searchsorted"]
    if name in ("voxtral", "voxcpm2"):
        assert searched == 0, "its frames are not drawn number by number"
    else:
        assert searched >= networks.form.payload.width, "each codebook is drawn"
    count = parts["talker"].count + parts["predictor"].count
    assert 0.6 * MOST[name] < count <= MOST[name]


@pytest.mark.parametrize(
    ("family", "longest", "keys"), [("qwen3_tts", "12", 0.01), ("fish_speech", "16", 0.01), ("voxtral", "12", 0.1)]
)
def test_the_whole(
    family: str,
    longest: str,
    keys: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`keys`: the share of arithmetic that grows with the keys in a chunk."""
    target, small = tmp_path / "figures.json", ["--shape", "tiny", "--batches", "1", "4"]
    monkeypatch.setattr("sys.argv", ["kernels", "--family", family, *small, "--output", str(target)])
    assert kernels.main() == 0
    figures = json.loads(target.read_text())
    one, four = (figures["frames"][batch] for batch in ("1", "4"))
    assert figures["estimated"] and four["talker"]["kernels"] >= one["talker"]["kernels"] > 40
    assert one["talker"]["bytes"] < four["talker"]["bytes"]
    assert set(figures["code2wav"]) == {"fp32", "tf32", "bf16"}
    fp32, tf32 = (figures["code2wav"][way]["4"] for way in ("fp32", "tf32"))
    assert set(fp32) == {"1", "2", "4", "8", longest}
    assert fp32[longest]["flops"] == pytest.approx(int(longest) * fp32["1"]["flops"], rel=keys)
    assert tf32[longest]["estimated_ms"] <= fp32[longest]["estimated_ms"]
    assert tf32[longest]["flops"] == fp32[longest]["flops"]
    assert [(each["streams"], each["decoder"]) for each in figures["together"]][:3] == [
        (1, way) for way in ("fp32", "tf32", "bf16")
    ]
    assert all(each["frame_ms"] > each["code2wav_ms"] > 0 for each in figures["together"])
    out = capsys.readouterr().out
    assert "not measured" in out and "GFLOP" in out


def test_more_streams_than_are_decoded_together() -> None:
    """They are decoded one batch after the other, in chunks of 12 frames."""
    parts = {"talker": Account(seconds=0.003), "predictor": Account(seconds=0.002)}
    chunks = {"fp32": {1: {12: Account(seconds=0.012)}, kernels.TOGETHER: {12: Account(seconds=0.12)}}}
    one, many = kernels.together({1: parts, 65: parts}, chunks, 0.08)
    assert one["code2wav_ms"] == pytest.approx(1) and one["frame_ms"] == pytest.approx(6)
    assert many["code2wav_ms"] == pytest.approx(30) and many["audio_a_second"] == pytest.approx(65 * 0.08 / 0.035)
