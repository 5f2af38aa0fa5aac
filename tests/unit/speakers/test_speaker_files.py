"""Whatever lies in the directory of the voices: it is set aside or left alone, and everything else is served."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import Overloaded, VoiceCloneError
from voice_clone.speakers.disk.store import FileStore, KnownInDirectory
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.voice_file import digest

Make = Callable[..., Voices]
NAME = "0" * 64 + ".safetensors"
DEEP = "[" * 100_000


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


def seal(path: Path, change: Callable[[dict[str, Any]], Any], **tensors: Any) -> None:
    """Write a voice's file again, with a right seal: its record changed, or replaced by a text; tensors added."""
    metadata, held = metadata_of(path), {**load_file(path), **tensors}
    record = json.loads(metadata["record"])
    changed = change(record)
    text = changed if isinstance(changed, str) else json.dumps(record)
    digests = json.dumps({name: digest(tensor) for name, tensor in held.items()})
    whole = hashlib.sha256(f"{len(text)} {text}{digests}".encode("utf-8", "surrogatepass")).hexdigest()
    save_file(held, path, {**metadata, "record": text, "digests": digests, "seal": whole})


def put(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update(values)


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep nesting": lambda record: DEEP,
    "deep nesting inside": lambda record: json.dumps(record)[:-1] + f',"x":{DEEP}' + "]" * 100_000 + "}",
    "no object": lambda record: "[]",
    "a huge number": lambda record: json.dumps(record)[:-1] + ',"x":' + "9" * 9999 + "}",
    "generation too large": put(generation=2**60),
    "generation negative": put(generation=-1),
    "created never": put(created_at=1e300),
    "NaN": put(duration=float("nan")),
    "infinity": put(created_at=float("inf")),
    "a lone surrogate": put(consent="\ud800"),
    "a number as text": put(description=5),
    "extraction_ms NaN": put(artifacts=[["qwen3_tts", "x_vector", "f", float("nan")]]),
    "extraction_ms negative": put(artifacts=[["qwen3_tts", "x_vector", "f", -1.0]]),
    "a time as text": put(artifacts=[["qwen3_tts", "x_vector", "f", 1.0, "now"]]),
    "more than a time": put(artifacts=[["qwen3_tts", "x_vector", "f", 1.0, 5.0, 6.0]]),
    "fingerprint long": put(artifacts=[["qwen3_tts", "x_vector", "f" * 1000, 1.0]]),
    "artifacts no list": put(artifacts=7),
    "many artifacts": put(artifacts=[[f"m{i}", "x_vector", "f", 1.0] for i in range(1000)]),
    "a bad name": put(name="../up"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_sealed_record_may_hold_anything(voices: Voices, case: str) -> None:
    voices.upload("Ada", 1)
    [ada] = (voices.directory / "voices").iterdir()
    voices.upload("Bob", 2)
    voices.cache.close()
    seal(ada, RECORDS[case])
    voices.restart()
    assert [each["name"] for each in voices.call("list").result["speakers"]] == ["Bob"]
    assert len(list((voices.directory / "quarantine").iterdir())) == 1
    assert json.loads(json.dumps(voices.call("list").result, allow_nan=False))


ODD: dict[str, Callable[[Path], object]] = {
    "zero bytes": lambda folder: (folder / NAME).write_bytes(b""),
    "a directory": lambda folder: (folder / NAME).mkdir(),
    "a full directory": lambda folder: ((folder / NAME).mkdir(), (folder / NAME / "x").write_text("x")),
    "a directory being written": lambda folder: (folder / ".temporary-x").mkdir(),
    "a FIFO": lambda folder: os.mkfifo(folder / NAME),
    "a FIFO being written": lambda folder: os.mkfifo(folder / ".temporary-x"),
    "a dangling link": lambda folder: (folder / NAME).symlink_to("/nowhere"),
    "a link to itself": lambda folder: (folder / NAME).symlink_to(NAME),
    "a link to a device": lambda folder: (folder / NAME).symlink_to("/dev/zero"),
    "a sparse file of 1 TB": lambda folder: os.truncate(os.open(folder / NAME, os.O_CREAT | os.O_RDWR), 1 << 40),
    "no UTF-8": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe\x80.safetensors")).write_bytes(b"x"),
    "a long name": lambda folder: (folder / ("n" * 255)).write_bytes(b"x"),
    "control characters": lambda folder: (folder / "a\nb\x1b[2J").write_bytes(b"x"),
    "a header that lies": lambda folder: (folder / NAME).write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
    "a header without end": lambda folder: (folder / NAME).write_bytes((2).to_bytes(8, "little") + DEEP.encode()),
    "a deep header": lambda folder: (folder / NAME).write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode()),
    "a generation that is a directory": lambda folder: (folder.parent / "generation").mkdir(),
    "a generation that is a FIFO": lambda folder: os.mkfifo(folder.parent / "generation"),
    "a huge generation": lambda folder: (folder.parent / "generation").write_bytes(b"9" * 10_000_000),
    "an import that is a directory": lambda folder: (folder.parent / "import").mkdir(),
    "an import that is a FIFO": lambda folder: os.mkfifo(folder.parent / "import"),
    "a deep import": lambda folder: (folder.parent / "import").write_text(DEEP),
    "an import of paths": lambda folder: (folder.parent / "import").write_text('["../../x", "/etc/passwd"]'),
    "an import of nothing": lambda folder: (folder.parent / "import").write_text(json.dumps([NAME])),
}


@pytest.mark.parametrize("case", ODD)
def test_anything_may_lie_there(voices: Voices, case: str) -> None:
    voices.upload("Ada", 1)
    voices.cache.close()
    if case.startswith(("a generation", "a huge generation")):
        (voices.directory / "generation").unlink()
    ODD[case](voices.directory / "voices")
    for _ in range(2):
        voices.restart()
        assert voices.resolve("Ada").result["status"] == "restored"
        assert len(list(KnownInDirectory(voices.directory).latest(ArtifactId("qwen3_tts", "x_vector")))) == 1
        assert voices.upload("Bob", 2)["generation"] > voices.get("Ada")["generation"]
        voices.call("delete", name="Bob")
    assert {path.name for path in voices.directory.iterdir()} == {"lock", "generation", "voices", "quarantine"}
    assert len(list((voices.directory / "voices").iterdir())) == 1


@pytest.mark.parametrize("name", ["lock", "quarantine", "voices"])
@pytest.mark.parametrize("kind", ["file", "directory", "FIFO", "socket"])
def test_anything_may_have_the_name_of_ours(tmp_path: Path, name: str, kind: str, monkeypatch: Any) -> None:
    directory = tmp_path / "speakers"
    directory.mkdir()
    monkeypatch.chdir(directory)
    if kind == "file":
        (directory / name).write_bytes(b"\xff\0" * 10)
    elif kind == "directory":
        (directory / name).mkdir()
    elif kind == "FIFO":
        os.mkfifo(directory / name)
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    voices = Voices(directory)
    voices.upload("Ada", 1)
    voices.restart()
    assert voices.resolve("Ada").result["status"] == "restored"
    voices.cache.close()


def test_many_things_that_are_no_voices(voices: Voices, caplog: pytest.LogCaptureFixture) -> None:
    voices.upload("Ada", 1)
    voices.cache.close()
    for number in range(3000):
        (voices.directory / "voices" / f"{number:064x}.safetensors").write_bytes(b"")
    voices.restart()
    assert voices.call("list").result["count"] == 1
    assert len(list((voices.directory / "quarantine").iterdir())) == 3000
    assert caplog.text.count("set") < 100, "a line for each would take longer than the start may"


@pytest.mark.parametrize("files", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_mutated_files(make_voices: Make, files: int) -> None:
    """Bytes of a voice's file changed, cut, doubled, swapped or replaced, with and without a right seal."""
    rng = random.Random(files)
    voices = make_voices()
    voices.upload("Ada", 1, reference_text="Hello.", consent="signed")
    [path] = (voices.directory / "voices").iterdir()
    good = path.read_bytes()
    for _ in range(files):
        if rng.random() < 0.4:
            path.write_bytes(good)
            seal(path, lambda record: mutated(rng, json.dumps(record).encode()).decode("utf-8", "replace"))
        else:
            path.write_bytes(mutated(rng, good))
        list(KnownInDirectory(voices.directory).latest(ArtifactId("qwen3_tts", "icl")))
        voices.cache.close()
        voices.restart()
        for name in [each["name"] for each in voices.call("list").result["speakers"]]:
            try:
                voices.resolve(name)
            except VoiceCloneError as error:
                assert error.slug != "internal" or "upload it again" in str(error)
        if not path.exists():
            path.write_bytes(good)


def mutated(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(made)) if rng.random() < 0.5 else rng.randrange(min(len(made), 1200))
        kind = rng.randrange(6)
        if kind == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at] = rng.randrange(256)
        elif kind == 2:
            del made[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            made[at:at] = rng.choice([b"[" * 5000, b"{", b'"', b"\\ud800", b"NaN", b"-1", b"9" * 400, rng.randbytes(9)])
        elif kind == 4:
            made[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little")])
        else:
            made = made[: max(1, at)]
        made = made or bytearray(b"x")
    return bytes(made)


def test_artifacts_of_a_type_that_numpy_does_not_have(voices: Voices) -> None:
    voices.upload("Ada", 1)
    voices.cache.close()
    [path] = (voices.directory / "voices").iterdir()
    head = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"\0\0")
    list(KnownInDirectory(voices.directory).latest(ArtifactId("qwen3_tts", "x_vector")))
    voices.restart()
    assert voices.call("list").result["count"] == 0


def test_artifacts_that_no_encoder_makes_are_made_again(voices: Voices) -> None:
    voices.upload("Ada", 1)
    before = voices.resolve("Ada").artifacts
    for spoilt in (np.full(1024, np.nan, np.float32), np.zeros(3, np.float32), np.zeros(1024, np.float64)):
        voices.cache.close()
        [path] = (voices.directory / "voices").iterdir()
        seal(path, lambda record: None, **{"qwen3_tts/x_vector/speaker_embedding": spoilt})
        voices.restart()
        assert voices.resolve("Ada").artifacts == before
        assert voices.encoder.extractions == 1


def test_a_bundle_may_hold_anything(voices: Voices) -> None:
    voices.upload("Ada", 1, reference_text="Hello.")
    good = voices.call("export").artifacts or b""
    rng = random.Random(0)
    before = voices.call("list").result
    for number in range(300):
        data = mutated(rng, good) if number else save({"0": np.frombuffer(DEEP.encode(), np.uint8)})
        try:
            voices.call("import", audio=data)
        except VoiceCloneError as error:
            assert error.slug == "invalid_argument", error
            assert voices.call("list").result == before
        before = voices.call("list").result
    assert clip(1)


def test_a_server_starts_on_a_full_disk(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    voices = make_voices()
    voices.upload()
    before = voices.resolve().artifacts

    def full(handle: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        voices.restart()
    assert voices.resolve().artifacts == before
    with pytest.raises(Overloaded, match="in use by another process"):
        FileStore(voices.directory)


def test_a_server_starts_on_a_disk_that_takes_no_writes(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    voices = make_voices()
    voices.upload()
    before = voices.resolve().artifacts
    voices.cache.close()
    really = os.open

    def open_read_only(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and voices.directory in Path(path).parents:
            raise OSError(errno.EROFS, "read-only")
        return really(path, flags, *mode, **more)

    def refused(*given: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_read_only)
        for change in ("chmod", "mkdir", "replace", "unlink", "ftruncate", "pwrite"):
            patch.setattr(os, change, refused)
        voices.restart()
        assert voices.resolve().artifacts == before
        with pytest.raises(Overloaded, match="nothing was changed, try again later"):
            voices.upload("Bob", 1)
        with pytest.raises(Overloaded, match="Read-only file system"):
            voices.call("delete", name="Ada")
        assert voices.stats()["store"]["write_failures"] == 2
    voices.upload("Bob", 1)
    voices.call("delete", name="Ada")


def test_one_server_alone_changes_a_directory_whose_lock_was_removed(make_voices: Make) -> None:
    first = make_voices()
    first.upload("Ada", 0)
    (first.directory / "lock").unlink()
    first.upload("Bob", 1)  # it takes the lock again
    with pytest.raises(Overloaded, match="in use by process"):
        FileStore(first.directory)
    (first.directory / "lock").unlink()
    second = make_voices()  # it is quicker
    second.upload("Ada", 2, replace=True)
    for change in (lambda: first.upload("Cid", 3), lambda: first.call("delete", name="Ada")):
        with pytest.raises(Overloaded, match="in use by process"):
            change()
    assert first.stats()["store"]["write_failures"] == 2
    assert [each["name"] for each in second.call("list").result["speakers"]] == ["Ada", "Bob"]
    second.restart()
    assert [each["name"] for each in second.call("list").result["speakers"]] == ["Ada", "Bob"]
