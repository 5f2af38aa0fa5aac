"""tools/doctor: what it finds and how it tells it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.families.cosyvoice3 import make_cosyvoice3
from tests.support.families.factories import CheckpointFactory
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.families.voxtral import make_voxtral
from tools.doctor import main, released
from tools.families.toolkit import workloads
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.native.arrays import Array
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.settings import PRECISIONS, ComputeSettings
from voice_clone_server import doctor
from voice_clone_server.demo import SHIPPED
from voice_clone_server.diagnosis import machine, needs, speed
from voice_clone_server.diagnosis.memory import WEIGHT_BYTES, server_bytes, stream_bytes
from voice_clone_server.diagnosis.served import served_speed
from voice_clone_server.triton_binary import ServerFailed

pytestmark = pytest.mark.thorough

TINY = StackConfig(64, 128, 2, 4, 2, 32, 1e-6, 1e4)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "ENOUGH", 1 << 20)


class Decoder:
    """Counts what it decodes."""

    device = None
    frames = 0

    def new_state(self, batch: int) -> None:
        return None

    def decode_chunk(self, codes: Array, state: None) -> None:
        Decoder.frames += codes.shape[2]


def test_it_reports_all_it_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-speed"]) == 0
    text = capsys.readouterr().out
    for heading in ("Machine", "Needs", "Memory"):
        assert heading in text.replace("\n", " ")
    assert "Speed" not in text and max(map(len, text.splitlines())) < 200
    assert main(["--no-speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["used"] == str(INSTRUCTIONS)
    assert found["machine"]["threads"] == torch.get_num_threads() and found["speed"] == []
    assert {need["name"] for need in found["needs"]} >= {"tritonserver", "shared memory", "voice folder"}
    assert {row["precision"] for row in found["memory"]} == set(PRECISIONS)


def test_what_is_missing_is_reported_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(scratch: Path) -> Any:
        raise ServerFailed("no tritonserver")

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(needs, "server_command", nowhere)
    monkeypatch.setattr(needs, "SHARED_MEMORY", tmp_path / "nothing")
    monkeypatch.setattr(needs, "writable_folder", lambda name: None)
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("VOICE_CLONE_VOICE_DIR", str(tmp_path / "file" / "voices"))
    assert main(["--no-speed"]) == 1
    reported = {line.split("  ")[1]: line for line in capsys.readouterr().out.splitlines() if "  " in line}
    assert [name for name, line in reported.items() if "MISSING" in line] == [
        "tritonserver",
        "shared memory",
        "voice folder",
    ]
    assert "NUMBA_CACHE_DIR" in reported["cache"] and "PyAV is missing" in reported["formats of clips"]


def test_a_container_s_limits_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("4000000000\n")
    found = machine.machine(ComputeSettings(device="cpu"))
    assert found["core_quota"] == 1.5 and found["memory_limit_bytes"] == 4_000_000_000
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    found = machine.machine(ComputeSettings(device="cpu"))
    assert found["core_quota"] is None and found["memory_limit_bytes"] is None
    idle = {**found, "device": "cpu", "threads": found["cores"], "load": 0.0}
    assert machine.hints(idle, True) == []
    [threads] = machine.hints({**idle, "threads": found["cores"] + 1}, True)
    assert f"OMP_NUM_THREADS={found['cores']}" in threads
    busy = {**idle, "load": 2.0 * found["cores"]}
    assert "other programs" in machine.hints(busy, True)[0] and machine.hints(busy, False) == []


def test_bytes_of_a_weight() -> None:
    """A float32 scale for each 128 weights of int8, a bf16 one for each 32 of int4."""
    assert {name: round(size, 3) for name, size in WEIGHT_BYTES.items()} == {
        "fp32": 4.0,
        "bf16": 2.0,
        "int8": 1.031,
        "int4": 0.562,
    }


def test_released_models_have_their_sizes() -> None:
    models = workloads("qwen3_tts")
    assert list(models) == ["0.6b", "1.7b"]
    small, large = models["0.6b"], models["1.7b"]
    layers = speed.stack_weights(small.talker)
    assert layers == 28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072)
    assert speed.stack_weights(large.talker) == 28 * (2048 * 4096 + 2048 * 2048 + 3 * 2048 * 6144)
    assert small.pace is not None
    assert small.pace.frame_seconds == pytest.approx(0.08) and small.pace.passes == 15
    each = [server_bytes(small, precision) for precision in PRECISIONS]
    assert each == sorted(each, reverse=True) and server_bytes(large, "int4") > each[-1]
    assert stream_bytes(small) == 28 * 8 * 128 * 2 * 4 * 1000


def test_voxtral_is_in_the_table_of_memory_alone() -> None:
    [voxtral] = workloads("voxtral").values()
    assert voxtral.pace is None
    layer = 3072 * (2 * 4096 + 2 * 1024) + 3 * 3072 * 9216
    assert speed.stack_weights(voxtral.talker) == 26 * layer and speed.stack_weights(voxtral.predictor) == 3 * layer
    assert 8.0e9 < server_bytes(voxtral, "bf16") < 9.0e9 and stream_bytes(voxtral) == 26 * 8 * 128 * 2 * 4 * 1000
    rows = doctor.examine(None, measure=False, works=lambda: [voxtral])["memory"]
    assert [row["precision"] for row in rows] == list(PRECISIONS)


def test_all_families_are_in_the_table_of_memory() -> None:
    rows = doctor.examine(None, measure=False, works=released)["memory"]
    assert {row["model"] for row in rows} == {
        *("Qwen3-TTS 0.6B", "Qwen3-TTS 1.7B"),
        *("Fish Speech S2 Pro", "Voxtral TTS 4B", "CosyVoice3 0.5B", "VoxCPM2 2B"),
        "OmniVoice 0.6B",
        *(f"Pocket TTS {size}" for size in ("100m", "100m-2026-01", "336m", "18m", "7m", "2m")),
    }
    [fish], [cosy], [voxcpm] = (workloads(name).values() for name in ("fish_speech", "cosyvoice3", "voxcpm2"))
    [omni] = workloads("omnivoice").values()
    layer = 2560 * (2 * 4096 + 2 * 1024) + 3 * 2560 * 9728
    assert speed.stack_weights(fish.talker) == 36 * layer and speed.stack_weights(fish.predictor) == 4 * layer
    assert stream_bytes(fish) == 36 * 8 * 128 * 2 * 4 * 1600
    layer = 896 * (2 * 896 + 2 * 128) + 3 * 896 * 4864
    assert speed.stack_weights(cosy.talker) == 24 * layer and speed.stack_weights(cosy.predictor) == 0
    layer = 2048 * (2 * 2048 + 2 * 256) + 3 * 2048 * 6144
    assert speed.stack_weights(voxcpm.talker) == 36 * layer and speed.stack_weights(voxcpm.predictor) == 0
    assert stream_bytes(voxcpm) == 36 * 2 * 128 * 2 * 4 * 700
    layer = 1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072
    assert speed.stack_weights(omni.talker) == 28 * layer and speed.stack_weights(omni.predictor) == 0
    assert 0 < stream_bytes(omni) < 0.3e9  # no keys and values
    for work in (fish, cosy, voxcpm, omni):
        each = [server_bytes(work, precision) for precision in PRECISIONS]
        assert each == sorted(each, reverse=True)


def test_a_checkpoint_whose_decoder_makes_many_frames_at_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    assert main(["--checkpoint", str(make_cosyvoice3(tmp_path / "cosyvoice3"))]) == 2
    assert "perf/load measures a server" in capsys.readouterr().err


def test_checkpoints_of_presets_alone_and_of_latents_are_measured(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    for name, folder in (
        ("voxtral", make_voxtral(tmp_path / "voxtral")),
        ("voxcpm2", make_voxcpm2(tmp_path / "voxcpm2")),
    ):
        main(["--checkpoint", str(folder), "--json"])
        [row] = json.loads(capsys.readouterr().out)["speed"]
        assert row["model"] == name and min(row["position"], row["frame"], row["decoder"]) > 0


def test_a_kind_of_a_family_is_measured(
    short: None,
    checkpoint_folder: CheckpointFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its code is that of the family."""
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    main(["--checkpoint", str(checkpoint_folder("tiny-custom", 0)), "--json"])
    [row] = json.loads(capsys.readouterr().out)["speed"]
    assert min(row["position"], row["frame"], row["decoder"]) > 0


def test_speeds_grow_with_the_work(short: None) -> None:
    work = replace(workloads("qwen3_tts")["0.6b"], talker=TINY, predictor=TINY, head_weights=0)
    assert work.pace is not None
    pace = replace(work.pace, codebooks=3, decoder=Decoder)
    measurement = speed.Measurement(TINY)
    for precision in PRECISIONS:
        one = measurement.speed(work, pace, precision)
        deeper = measurement.speed(replace(work, talker=replace(TINY, num_hidden_layers=4)), pace, precision)
        assert 0 < one.frame < deeper.frame and deeper.position == pytest.approx(2 * one.position)
        assert one.real_time_factor(0.08) == pytest.approx((one.frame + one.decoder) / 0.08)
    assert Decoder.frames == 4 * 4, "the decoder is the same for all: measured once"


def test_a_checkpoint_is_measured_as_it_is_served(
    short: None, checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    monkeypatch.setenv("VOICE_CLONE_PRECISION", "int8")
    row = served_speed("qwen3_tts", checkpoint_folder("tiny", 0))
    assert row["precision"] == "int8" and min(row["position"], row["frame"], row["decoder"]) > 0


def test_a_checkpoint_that_ends_its_speech_early_is_measured(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's checkpoint ends a speech of nothing after some frames."""
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    row = served_speed("qwen3_tts", SHIPPED)
    assert min(row["position"], row["frame"], row["decoder"]) > 0 and row["spread"] >= 1


def test_of_several_rounds_the_fastest_counts_and_the_spread_is_reported(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best, spread = speed.fastest([speed.Speed(3.0, 1.0, 0.2), speed.Speed(1.0, 3.0, 0.1), speed.Speed(5.0, 1.0, 0.3)])
    assert best == speed.Speed(1.0, 1.0, 0.1) and spread == 6 / 4
    row = {"model": "a", "precision": "fp32", "real_time_factor": 2.0, "spread": spread, **asdict(best)}
    found = doctor.examine(None, measure=False, works=released)
    [reported] = [line for line in doctor.lines({**found, "speed": [row], "memory": []}) if "the slowest round" in line]
    assert "up to 1.5 times as long" in reported and "measure again" in reported
    steady = doctor.lines({**found, "speed": [{**row, "spread": 1.1}], "memory": []})
    assert "measure again" not in "".join(steady) and any("1.10 x" in line for line in steady)


def test_a_folder_without_a_checkpoint_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure: Callable[[list[str]], int] = main
    assert measure(["--checkpoint", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("tools/doctor: ")


def test_what_is_known_is_shown_at_once_and_stays_after_ctrl_c(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    measured = iter(range(3))

    def measure(self: Any, work: Any, pace: Any, precision: str) -> speed.Speed:
        shown.append(capsys.readouterr().out)
        if next(measured, None) is None:
            signal.raise_signal(signal.SIGINT)
        return speed.Speed(1e-3, 1e-3, 1e-3)

    monkeypatch.setattr(speed.Measurement, "speed", measure)
    assert main([]) == 128 + signal.SIGINT
    assert "Machine" in shown[0] and "Needs" in shown[0] and "Speed" not in shown[0]
    end = capsys.readouterr()
    assert "Speed" in end.out and "stopped" in end.err
    measured = iter(range(3))
    assert main(["--json"]) == 128 + signal.SIGINT
    assert len(json.loads(capsys.readouterr().out)["speed"]) == 3
