"""Networks that come out of the cache of packed weights compute bit for bit as those that were just packed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.families.factories import CheckpointFactory
from tools.families.fish_speech import checkpoint_maker as fish_maker
from tools.families.fish_speech.pickle_converter import convert
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone.array_kinds import in_kind_of, on_host
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech import decoder_stage as fish_decoder
from voice_clone.families.fish_speech import talker_stage as fish_talker
from voice_clone.families.qwen3_tts import decoder_stage as qwen_decoder
from voice_clone.families.qwen3_tts import talker_stage as qwen_talker
from voice_clone.families.qwen3_tts.checkpoint import CODEC, Checkpoint
from voice_clone.native import compilation, packed_file
from voice_clone.native.arrays import Array
from voice_clone.settings import PRECISIONS, Settings

ROOT = Path(__file__).parents[3]

LOADERS = {
    "qwen3_tts": (qwen_talker.load_network, qwen_decoder.load_codec_decoder),
    "fish_speech": (fish_talker.load_network, lambda settings: [fish_decoder.load_decoder(settings).decoder]),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packed"
    monkeypatch.setattr(compilation, "writable_folder", lambda name: folder)
    monkeypatch.setattr(packed_file, "WORTH", 1)
    return folder


@pytest.fixture(params=LOADERS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fish") / "checkpoint"
    fish_maker.make_checkpoint("tiny", 0, folder)
    convert(folder)
    return folder


@pytest.fixture
def environ(family: str, checkpoint_folder: CheckpointFactory, fish: Path) -> dict[str, str]:
    folder = checkpoint_folder("tiny", 0) if family == "qwen3_tts" else fish
    return {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"}


def decoded(decoder: Any) -> Array:
    books = 10 if hasattr(decoder, "_books") else 16
    codes = np.arange(books * 5).reshape(1, books, 5) % 7
    samples: Array = decoder.decode_chunk(codes, decoder.new_state(1))
    return samples


def spoken(talker: Any) -> list[Array]:
    """A prompt's hidden state, and what head and predictor make of it."""
    stack, head = talker.stack, talker.head
    embeds = np.random.default_rng(0).standard_normal((7, stack.hidden_size), np.float32)
    hidden = stack.prefill(stack.new_cache(1, 8), 0, embeds)[None]
    projected = on_host(head.predictor.project(in_kind_of(stack.like, hidden)))
    logits = on_host(head.logits(in_kind_of(stack.like, hidden)))
    return [hidden, logits, *(each(projected) for each in head.predictor.lm_head[:2])]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_talker_that_is_found_computes_as_one_that_was_packed(
    family: str, precision: str, environ: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load: Callable[[Settings], Any] = LOADERS[family][0]
    settings = Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision})
    fresh = spoken(load(settings)[0])
    kept = len(list(cache.iterdir()))
    assert kept == (2 if family == "qwen3_tts" else 1), "of Qwen3-TTS the rotary tables, too"
    monkeypatch.setattr("voice_clone.autoregressive.stack.native_stack.pack", None)  # nothing is packed again
    for one, other in zip(fresh, spoken(load(settings)[0]), strict=True):
        np.testing.assert_array_equal(one, other)
    without = Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision, "VOICE_CLONE_PACKED_BYTES": "0"})
    with pytest.raises(TypeError):  # it is packed
        load(without)


def test_a_decoder_that_is_found_computes_as_one_that_was_packed(
    family: str, environ: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load: Callable[[Settings], Any] = LOADERS[family][1]
    fresh = decoded(load(Settings({}, environ))[0])
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(CheckpointFiles, "load", None)  # the checkpoint's weights are not read
    np.testing.assert_array_equal(fresh, decoded(load(Settings({}, environ))[0]))


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
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the file is missing"):
        Checkpoint(folder).identity("model")


def printed(program: str, *arguments: object) -> list[str]:
    """The words that a Python program prints in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


WITHOUT_TORCH = """
import sys
from pathlib import Path
import numpy as np
from voice_clone.native import compilation
compilation.writable_folder = lambda name: Path(sys.argv[1])
from voice_clone.codec.chunk import Reference
from voice_clone.families.qwen3_tts.decoder_stage import load_decoder
from voice_clone.settings import DecoderSettings, Settings
given = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": sys.argv[2]})
settings, stage = DecoderSettings.of(given), load_decoder(given)
streams = stage.streams(settings, stage.chunk_frames)
codes = np.arange(16 * 70).reshape(70, 16) % 7
first, second = (streams.open(Reference(codes[:each], {}))[0] for each in (0, 5))
samples = streams.decode([first, second], [codes, codes])
print("torch" in sys.modules, *(np.abs(each).sum() for each in samples))
"""


TALKER_WITHOUT_TORCH = """
import sys
from pathlib import Path
from voice_clone.native import compilation
compilation.writable_folder = lambda name: Path(sys.argv[1])
from voice_clone.families.qwen3_tts.talker_stage import load_talker
from voice_clone.settings import Settings
environ = {"VOICE_CLONE_CHECKPOINT_DIR": sys.argv[2], "VOICE_CLONE_PRECISION": sys.argv[3]}
stage = load_talker(Settings({}, environ))
generator = stage.source
print("torch" in sys.modules)
generator.start(0, stage.example(64, 20))
frames = [generator.step([0])[0].payload for _ in range(20)]
print("torch" in sys.modules, *(code for frame in frames if frame is not None for code in frame))
"""


ENCODER_WITHOUT_TORCH = """
import sys
from pathlib import Path
import numpy as np
from voice_clone.native import compilation
compilation.writable_folder = lambda name: Path(sys.argv[1])
from voice_clone.families.qwen3_tts.encoder_stage import load_encoder
from voice_clone.settings import Settings
stage = load_encoder(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": sys.argv[2]}))
made = stage.encode(np.sin(np.arange(30_000, dtype=np.float32) ** 1.1), "icl")
print("torch" in sys.modules, *stage.fingerprints.values(), *(each.tobytes().hex() for each in made.values()))
"""


def test_an_encoder_that_finds_its_weights_packed_imports_no_torch(
    checkpoint_folder: CheckpointFactory, cache: Path
) -> None:
    """It makes the same voice, under the same fingerprints."""
    program, folder = ENCODER_WITHOUT_TORCH, checkpoint_folder("tiny", 0)
    (packs, *first), (finds, *second) = (printed(program, cache, folder) for _ in range(2))
    assert (packs, finds) == ("True", "False")
    assert first == second and len(first) == 4 and all(len(each) >= 64 for each in first)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_talker_that_finds_what_torch_has_made_imports_none(
    precision: str, checkpoint_folder: CheckpointFactory, cache: Path
) -> None:
    """It makes the same codes. In fp32 only the rotary tables are kept."""
    program, folder = TALKER_WITHOUT_TORCH, checkpoint_folder("tiny", 0)
    runs = [printed(program, cache, folder, precision) for _ in range(2)]
    (*packs, first), (*finds, second) = ((*out[:2], out[2:]) for out in runs)
    assert (packs, finds) == (["True", "True"], ["False", "False"])
    assert first == second and len(set(first)) > 10


def test_code2wav_that_finds_its_weights_packed_imports_no_torch(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, cache: Path
) -> None:
    """It speaks the same as in a process that has packed them."""
    program, folder = WITHOUT_TORCH, checkpoint_folder("tiny", 0)
    (packs, *expected), (finds, *heard) = (printed(program, cache, folder) for _ in range(2))
    assert (packs, finds) == ("True", "False")
    assert heard == expected and float(heard[0]) > 1
