"""perf/gpu: it runs as a whole without a GPU, says when there is none, and does not call equal what is not."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from perf.bench import engine
from perf.bench.engine import Ours
from perf.bench.families import qwen3_tts
from perf.bench.families.qwen3_tts import Qwen3TTS
from perf.bench.spent import Spent
from perf.on_gpu import command, decoder, engines
from perf.on_gpu.phases import Phases
from tests.support.families.factories import CheckpointFactory
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.settings import Settings

pytestmark = pytest.mark.thorough

SHORT = ["--frames", "3", "--runs", "1", "--batches", "1", "2", "--no-peers", "--phases", "engines"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    return command.main()


def test_on_a_cpu(checkpoint_folder: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--device", "cpu", "--checkpoint", str(checkpoint_folder("tiny", 0)), "--output", str(target)]
    assert run(monkeypatch, *arguments, *SHORT, "--timed", "fp32", "bf16") == 0
    figures = json.loads(target.read_text())["figures"]
    assert set(figures) == {"fp32", "bf16"}
    for of in figures.values():
        assert of["equal"]["codes"] == 1.0
        assert {name: set(streams) for name, streams in of["times"].items()} == {
            "ours, eager": {"1", "2"},
            "ours, graphs": {"1", "2"},
            "ours, as served": {"1", "2"},
        }


def test_a_server_sets_the_process_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before weights are loaded: TF32 and cuDNN's attention would make other figures, and other codes."""
    done: list[str] = []
    monkeypatch.setattr(engine.compute, "prepare", lambda settings: done.append(settings.device))

    def load(settings: Settings) -> None:
        done.append(settings.text("precision"))
        raise SystemExit

    monkeypatch.setattr(qwen3_tts, "load_network", load)
    with pytest.raises(SystemExit):
        Ours(Qwen3TTS, tmp_path, "bf16", "cuda")
    assert done == ["cuda", "bf16"]


def test_the_loop_that_is_a_step_ahead(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    """Its codes are those of steps in turn; the first frame is not among the times of the others."""
    folder = make_endless(checkpoint_folder("tiny", 0), tmp_path / "endless")
    in_turn, ahead = Ours(Qwen3TTS, folder, "fp32"), Ours(Qwen3TTS, folder, "fp32", slots=2)
    prompt = in_turn.model.a_prompt()
    codes = [each.speak(prompt, 5, 2, served=True)[0] for each in (in_turn, ahead)]
    assert ahead.generator(2).ahead and not in_turn.generator(2).ahead
    assert codes[0].shape == (5, 16) and np.array_equal(*codes)
    assert not np.array_equal(codes[0], in_turn.speak(prompt, 5, 2)[0])  # which is greedy


def test_what_is_slow_runs_less_often() -> None:
    given = Namespace(runs=3, frames=10)
    slow, fast = engines.PATIENCE / 1.5, 0.5
    ran: list[tuple[str, int]] = []

    def spoken(name: str, total: float) -> Callable[[int], Spent]:
        def speak(streams: int) -> Spent:
            ran.append((name, streams))
            return Spent(0.1, 0.1, 0.1, 0.1, total, 10)

        return speak

    found = engines.times(
        {"slow": spoken("slow", slow), "fast": spoken("fast", fast), "peer": spoken("peer", fast)},
        ["peer"],
        [1, 8],
        given,
        0.08,
    )
    assert Counter(ran) == {("slow", 1): 2, ("slow", 8): 2, ("fast", 1): 4, ("fast", 8): 4, ("peer", 1): 4}
    assert found["slow"][8]["frame"]["n"] == 1 and found["fast"][8]["frame"]["n"] == 3


def test_another_implementation_that_cannot_speak_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured all the same."""

    def absent(*args: Any) -> Callable[[int], Spent]:
        raise ImportError("No module named 'other'")

    def broken(frames: int) -> Spent:
        raise TypeError("it takes 2 arguments")

    def speak(frames: int) -> Spent:
        return Spent(0.1, 0.1, 0.1, 0.1, 0.2, frames)

    family = engines.FAMILIES["qwen3_tts"]
    loaders = {"absent": absent, "broken": lambda *args: broken, "right": lambda *args: speak}
    monkeypatch.setattr(family, "peers", loaders)
    given = Namespace(family="qwen3_tts", device="cpu", frames=5)
    found, missing = engines.peers(tmp_path, torch.float32, given)
    assert [*found] == ["right"] and found["right"](1).decoded == 5
    assert missing["absent"] == "ImportError: No module named 'other'"
    assert missing["broken"] == "TypeError: it takes 2 arguments"


def test_the_decoder_at_other_precisions(checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server's switches, and TF32 not left on."""
    before, prepared = torch.backends.cudnn.allow_tf32, []
    monkeypatch.setattr(decoder.compute, "prepare", lambda settings: prepared.append(settings.device))
    found = decoder.measure(checkpoint_folder("tiny", 0), Namespace(family="qwen3_tts", device="cpu", runs=1))
    assert found["fp32"][1]["apart"] == found["fp32"][32]["apart"] == 0
    assert 1e-4 < found["bf16"][32]["apart"] < 0.5 and found["bf16"][1]["chunk_s"]["n"] == decoder.CHUNKS
    assert torch.backends.cudnn.allow_tf32 == before and prepared == ["cpu"]


def test_a_difference_does_not_pass(
    checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = DecoderStack.decode_first

    def wrong(*args: Any) -> torch.Tensor:
        return 1.1 * exact(*args)

    monkeypatch.setattr(DecoderStack, "decode_first", wrong)
    folder = str(checkpoint_folder("tiny", 0))
    assert run(monkeypatch, "--device", "cpu", "--checkpoint", folder, "--precision", "fp32", *SHORT) == 1
    assert "fp32: FAILED" in capsys.readouterr().out


def test_what_a_gpu_has_no_memory_for() -> None:
    """It is left out and named; the smallest number of streams is tried in any case."""
    fitting, missing = engines.that_fit([1, 8, 64], 10**9, 20 * 10**9)
    assert fitting == [1, 8]
    assert missing == {
        "64 streams": "they take 64 GB, and 20 GB are free behind the weights, of which 80% are for streams"
    }
    assert engines.that_fit([8, 64], 10**9, 10**9)[0] == [8]
    assert engines.that_fit([1, 8, 64], 10**9, 80 * 10**9) == ([1, 8, 64], {})


def test_a_shape_of_another_family(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--family", "fish_speech", "--shape", "0.6b", "--device", "cpu")
    assert "fish_speech has tiny, s2-pro, s2-pro-2" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_phase_under_way_ends_with_the_time(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    found: dict[str, Any] = {}
    progress = Phases(file, found, 1000.0)
    with progress.ended_in_time():
        assert progress.begins("one")
        found["one"] = 1
        assert progress.begins("two")
        signal.raise_signal(signal.SIGALRM)
        found["two"] = 2
    assert json.loads(file.read_text())["one"] == 1 and "two" not in found
    assert [*found["left_out"]] == ["two"]
