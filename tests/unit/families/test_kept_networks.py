"""What is found packed: which files count, and that no process imports torch for it; the rest is in test_contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.families.factories import CheckpointFactory
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone import compute
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.checkpoint import CODEC, Checkpoint
from voice_clone.native import packed_file

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packed"
    monkeypatch.setattr(compute, "writable_folder", lambda name: folder)
    monkeypatch.setattr(packed_file, "WORTH", 1)
    return folder


def test_any_change_of_the_weight_file_is_another_checkpoint(
    checkpoint_folder: CheckpointFactory, tmp_path: Path
) -> None:
    source = checkpoint_folder("tiny", 0)
    folder = tmp_path / "changed"
    for path in source.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (folder / path.relative_to(source)).write_bytes(path.read_bytes())
    file = folder / f"{CODEC}.safetensors"
    before = Checkpoint(folder).identity(CODEC)
    assert before == Checkpoint(folder).identity(CODEC) != Checkpoint(source).identity(CODEC)
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    with file.open("r+b") as opened:  # in place, and the time of change set back
        opened.write(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns
    assert before != Checkpoint(folder).identity(CODEC)


def test_each_shard_counts(tmp_path: Path) -> None:
    make_checkpoint("tiny", 0, tmp_path / "sharded", shards=3)
    checkpoint = Checkpoint(tmp_path / "sharded")
    before = checkpoint.identity("model")
    assert len(before) == 3
    last = tmp_path / "sharded" / before[-1][0]
    last.touch()
    assert [one == other for one, other in zip(before, checkpoint.identity("model"), strict=True)] == [
        True,
        True,
        False,
    ]


def test_a_missing_weight_file_is_reported(tmp_path: Path, checkpoint_folder: CheckpointFactory) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in checkpoint_folder("tiny", 0).iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).symlink_to(path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*missing"):
        Checkpoint(folder).identity("model")


def printed(program: str, *arguments: object) -> list[str]:
    """The words that a Python program prints in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


STAGE = """
import sys
from pathlib import Path
import numpy as np
from tests.support.families.bare import Bare, run
from voice_clone_server.families.cards import card_of
from voice_clone import compute
from voice_clone.codec.chunk import Reference
from voice_clone.native import packed_file
cache, folder, family, stage, precision = sys.argv[1:]
compute.writable_folder, packed_file.WORTH = lambda name: Path(cache), 1
own, names = Bare(*card_of(family), folder, PRECISION=precision), []
if stage == "talker":
    loaded = own.talker.source and "torch" in sys.modules
    [(made, _)] = run(own.talker.source, [own.talker.example(64, 20)])
elif stage == "voice_encoder":
    [encoder] = own.encoders
    names, loaded = encoder.fingerprints.values(), "torch" in sys.modules
    artifacts = encoder.encode(np.sin(np.arange(30_000, dtype=np.float32) ** 1.1), None)
    made = np.concatenate([each.reshape(-1) for each in artifacts.values()])
else:
    form = own.decoder.form
    frames = np.arange(form.payload.width * 70).reshape(70, -1) % 7
    if form.limits is None:
        frames = np.sin(frames).astype(np.float32)
    loaded = "torch" in sys.modules
    streams = [own.streams.open(Reference(frames[:each]))[0] for each in (0, 5)]
    made = np.concatenate(own.streams.decode(streams, [frames, frames]))
assert not {"numba", "llvmlite"} & set(sys.modules)
print(loaded, "torch" in sys.modules, np.unique(made).size, *names, made.tobytes().hex())
"""
TORCH_FREE = {
    ("fish_speech", "code2wav"): ["auto"],
    ("pocket_tts", "code2wav"): ["auto"],
    ("pocket_tts", "voice_encoder"): ["auto"],
    ("voxcpm2", "code2wav"): ["auto"],
    ("voxcpm2", "voice_encoder"): ["auto"],
}
"""The processes that need no torch on a CPU once their weights are packed, and in which precisions this is tried."""


NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(name)
sys.meta_path.insert(0, NoTorch())
"""
NEVER_TORCH = {
    ("cosyvoice3", "talker"): ["fp32", "int4"],
    ("fish_speech", "talker"): ["bf16", "int4"],
    ("pocket_tts", "talker"): ["fp32", "bf16", "int4"],
    ("qwen3_tts", "code2wav"): ["auto"],
    ("qwen3_tts", "talker"): ["fp32", "bf16", "int8", "int4"],
    ("qwen3_tts", "voice_encoder"): ["auto"],
    ("voxcpm2", "talker"): ["fp32", "bf16", "int4"],
    ("voxtral", "code2wav"): ["auto"],
    ("voxtral", "talker"): ["fp32", "bf16", "int4"],
}
"""Those that need none to pack their weights, either."""


def tries(table: dict[tuple[str, str], list[str]]) -> pytest.MarkDecorator:
    rows = [(*key, each) for key, precisions in table.items() for each in precisions]
    return pytest.mark.parametrize(("family", "stage", "precision"), rows)


@tries(NEVER_TORCH)
def test_a_stage_needs_no_torch(
    family: str, stage: str, precision: str, checkpoint: Callable[[str], Path], cache: Path
) -> None:
    """Where it packs its weights and where it finds them, it makes the same."""
    order = cache, checkpoint(family), family, stage, precision
    first, second = (printed(NO_TORCH + STAGE, *order) for _ in range(2))
    assert first == second and first[:2] == ["False", "False"] and int(first[2]) > 10


def test_what_speaks_imports_nothing_that_reads_clips() -> None:
    program = """
import sys
import voice_clone.families.qwen3_tts.codec, voice_clone.families.qwen3_tts.talker, voice_clone.speakers.opening
print(*{"importlib.metadata", "scipy", "soundfile", "soxr", "torch"} & set(sys.modules))
"""
    assert printed(program) == []


def test_the_doctor_of_a_qwen3_tts_needs_no_torch(checkpoint_folder: CheckpointFactory) -> None:
    program = "from voice_clone_server.doctor import main; main(['--checkpoint', sys.argv[1], '--json'])"
    found = json.loads(" ".join(printed(NO_TORCH + program, checkpoint_folder("tiny", 0))))
    assert found["machine"]["gpu"] is None and found["speed"][0]["frame"] > 0


@tries(TORCH_FREE)
def test_a_stage_that_finds_what_torch_has_made_imports_none(
    family: str, stage: str, precision: str, checkpoint: Callable[[str], Path], cache: Path
) -> None:
    """It makes the same frames and samples."""
    order = cache, checkpoint(family), family, stage, precision
    (*packs, values), (*finds, again) = ((*out[:2], out[2:]) for out in (printed(STAGE, *order) for _ in range(2)))
    assert (packs, finds) == (["True", "True"], ["False", "False"])
    assert values == again and int(values[0]) > 10
