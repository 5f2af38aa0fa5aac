"""Read a checkpoint folder without torch: JSON files, places of weights, ONNX files, the tokenizer."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, get_type_hints

from voice_clone.errors import CheckpointError
from voice_clone.tensor_header import Entries, parsed

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

T = TypeVar("T")

FLOATS = ("F32", "F16", "BF16")  # types of weights
MAX_HEADER = 100_000_000  # bytes, by the format of safetensors
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
MOST_SIZE, MOST_PARTS = 1 << 16, 64  # of a network whose sizes are read from its tensors
_NUMBER, _BYTES, _GRAPH = 0, 2, 7  # kinds of values in a protobuf message, and the field of an ONNX file's graph


def check_folder(folder: Path) -> None:
    """Check that there is a checkpoint folder.

    Raises:
        CheckpointError: there is none.
    """
    if not folder.is_dir():
        raise CheckpointError("the checkpoint folder does not exist; set checkpoint_dir or VOICE_CLONE_CHECKPOINT_DIR")


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones, in a fixed order. A folder counts once, whatever links lead to it."""
    seen = set[Path]()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = Path(place).resolve()
        if real in seen:  # a link may lead to a folder above it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def missing(name: str) -> CheckpointError:
    """Return the error for a missing file."""
    return CheckpointError(f"{name}: the file is missing from the checkpoint folder")


def sizes_of(
    shapes: Mapping[str, tuple[int, ...]],
    file: str,
    sizes: Mapping[str, tuple[str, int, int]],
    counts: Mapping[str, str],
) -> dict[str, int]:
    """Sizes of a network, from the names and shapes of its tensors.

    Args:
        file: of the tensors, for the error.
        sizes: by the size's name, a tensor, the number of its dimensions, and which of them it is.
        counts: by the count's name, the prefix of the numbered parts, without the dot.

    Raises:
        CheckpointError: a tensor is missing or of a wrong shape, or the parts are not numbered 0, 1, 2, ...
    """
    found = {}
    for name, (tensor, dimensions, place) in sizes.items():
        shape = shapes.get(tensor, ())
        if len(shape) != dimensions or not 0 < shape[place] <= MOST_SIZE:
            raise CheckpointError(f"{file}: the tensor {tensor} is missing or has a wrong shape")
        found[name] = shape[place]
    for name, before in counts.items():
        numbers = {
            each.removeprefix(f"{before}.").partition(".")[0] for each in shapes if each.startswith(f"{before}.")
        }
        if not 0 < len(numbers) <= MOST_PARTS or numbers != {str(number) for number in range(len(numbers))}:
            raise CheckpointError(f"{file}: the parts of {before} are missing, or not numbered 0, 1, 2, ...")
        found[name] = len(numbers)
    return found


def check_file(folder: Path, name: str) -> None:
    """Check that the folder has a file.

    Raises:
        CheckpointError: it is missing.
    """
    if not (folder / name).is_file():
        raise missing(name)


def check_converted(folder: Path, weights: str, pickles: str) -> None:
    """Check that pickles were converted. No server opens them.

    Args:
        weights: the file that the conversion makes, without its ending.
        pickles: the file or folder.

    Raises:
        CheckpointError: they are there, and the file is not.
    """
    if not (folder / f"{weights}.safetensors").is_file() and (folder / pickles).exists():
        raise CheckpointError(
            f"{pickles} is not converted yet; run once: voice-clone-server convert-pickles CHECKPOINT"
        )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder/name`.

    Raises:
        CheckpointError: the file is missing or holds no JSON object.
    """
    try:
        loaded = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(name) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name}: not readable as JSON ({type(error).__name__})") from None
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{name}: holds no JSON object")
    return loaded


def read_recognised(folder: Path, mark: str) -> dict[str, Any]:
    """Read the JSON file that only checkpoints of a family have.

    Args:
        mark: FILE: KEY=VALUE, as of `Family.recognised_by`.

    Raises:
        CheckpointError: the folder or the file is missing, or the checkpoint is that of another family.
    """
    name, _, pair = mark.partition(": ")
    key, _, right = pair.partition("=")
    check_folder(folder)
    values = read_json(folder, name)
    if values.get(key) != right:
        raise CheckpointError(f"{name}: {key} is {values.get(key)!r}, not {right!r}")
    return values


def multiple_of(other: str) -> dict[str, str]:
    """Metadata of a field whose number must be a multiple of that of the field `other`; `parse` checks it."""
    return {"multiple_of": other}


def parse(cls: type[T], values: Any, where: str, *, positive: bool = False) -> T:
    """Build the dataclass `cls`, with nested dataclasses, from a JSON object; unknown keys are ignored.

    Args:
        where: the file and the key, for the error.
        positive: whether all numbers must be above 0.

    Raises:
        CheckpointError: a key is missing, of a wrong type or out of its limits.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{where}: expected a JSON object")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    arguments: dict[str, Any] = {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        if values.get(entry.name) is None:
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                raise CheckpointError(f"{where}: the key {entry.name!r} is missing")
            continue
        arguments[entry.name] = _convert(hints[entry.name], values[entry.name], f"{where}: {entry.name}", positive)
    made = cls(**arguments)
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        if other := entry.metadata.get("multiple_of"):
            number, unit = getattr(made, entry.name), getattr(made, other)
            if unit < 1 or number % unit:
                raise CheckpointError(f"{where}: {entry.name} {number} is no multiple of {other} {unit}")
    return made


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def check_fixed(values: Mapping[str, Any], fixed: Mapping[str, Any], where: str, *, null: bool = False) -> None:
    """Refuse values that no released checkpoint has, because the networks would not compute them.

    Args:
        values: a JSON object; a missing key is right.
        fixed: the only value of each key.
        where: what the error puts before the key, such as "config.json: text_config.".
        null: whether null is right, too; the official code takes it for a missing key.

    Raises:
        CheckpointError: a value is another one.
    """
    for name, right in fixed.items():
        value = values.get(name, right)
        if value != right and not (null and value is None):
            raise CheckpointError(f"{where}{name} is {value!r}; only {right!r} is supported")


def _convert(kind: Any, value: Any, where: str, positive: bool) -> Any:
    if dataclasses.is_dataclass(kind):
        return parse(kind, value, where, positive=positive)  # type: ignore[arg-type]
    if positive and any(_is_number(each) and each <= 0 for each in (value if isinstance(value, list) else [value])):
        raise CheckpointError(f"{where} is {value!r}; it must be above 0")
    if kind is float and _is_number(value):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    if kind == tuple[int, ...] and isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if kind == tuple[float, ...] and isinstance(value, list) and all(map(_is_number, value)):
        return tuple(float(item) for item in value)
    for item_kind in (int, str):
        right = kind == Mapping[str, item_kind] and isinstance(value, dict)  # type: ignore[valid-type]
        if right and all(type(item) is item_kind for item in value.values()):
            return dict(value)
    raise CheckpointError(f"{where}: unexpected value {value!r}")


def _is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def shard_files(folder: Path, file: str) -> dict[str, str] | None:
    """Return the file of each tensor if weights are in shards, which `file.safetensors.index.json` names.

    Args:
        file: the weight file, without its ending.

    Returns:
        Tensors' names -> files relative to `folder`; None: there is a whole file, which the official packages prefer,
        or neither it nor an index.

    Raises:
        CheckpointError: the index cannot be read, or names a file elsewhere.
    """
    whole, index = f"{file}.safetensors", f"{file}.safetensors.index.json"
    if (folder / whole).is_file() or not (folder / index).is_file():
        return None
    shards = read_json(folder, index).get("weight_map")
    if not isinstance(shards, dict):
        raise CheckpointError(f"{index}: holds no weight_map")
    located = {}
    for name, shard in shards.items():
        if shard is None:
            continue  # as if the index did not have it
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index}: tensor {name} is not in a file of this folder")
        located[name] = str(Path(file).with_name(shard))
    return located


def check_weights(folder: Path, file: str) -> None:
    """Check from their first bytes that the weight files of a checkpoint are there and whole.

    Args:
        file: the weight file, without its ending; if it is in shards, these are checked.

    Raises:
        CheckpointError: a file is missing or cut short.
    """
    shards = shard_files(folder, file)
    for name in [f"{file}.safetensors"] if shards is None else sorted(set(shards.values())):
        _names_in(folder, name)


def weight_names(folder: Path, file: str) -> set[str]:
    """Return the names of all tensors in a weight file, whole or in shards. Arguments and errors are those of
    `check_weights`.
    """
    shards = shard_files(folder, file)
    return _names_in(folder, f"{file}.safetensors") if shards is None else set(shards)


def tensor_file(shards: Mapping[str, str] | None, file: str, name: str) -> str:
    """Return the file of a tensor: the whole file if there is one, as the official packages do, else its shard.

    Args:
        shards: of `shard_files`.
        file: the weight file, without its ending.

    Raises:
        CheckpointError: no shard has it.
    """
    if shards is None:
        return f"{file}.safetensors"
    if name not in shards:
        raise CheckpointError(f"{file}.safetensors.index.json: tensor {name} is missing")
    return shards[name]


def check_tensor(file: str, name: str, kind: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Check a tensor's shape and type, as safetensors names it.

    Raises:
        CheckpointError: the shape is not the expected one, or it holds no floating-point numbers.
    """
    if found != expected:
        raise CheckpointError(f"{file}: {name}: shape {found}, expected {expected}")
    if kind not in FLOATS:
        raise CheckpointError(f"{file}: {name}: type {kind}, expected one of {', '.join(FLOATS)}")


def not_whole(name: str) -> CheckpointError:
    """Return the error for a damaged weight file."""
    return CheckpointError(f"{name}: not a whole safetensors file; it may have been cut short")


def _names_in(folder: Path, name: str) -> set[str]:
    """Return the names of the tensors in one weight file. Errors are those of `check_weights`."""
    return set(weight_header(folder, name)[1])


def weight_header(folder: Path, name: str) -> tuple[int, Entries]:
    """Return where the tensors of a weight file begin, and what its header says of each.

    Raises:
        CheckpointError: it is missing, or not whole.
    """
    try:
        with (folder / name).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size) if size <= MAX_HEADER else b""
            _, entries = parsed(header, os.fstat(file.fileno()).st_size - 8 - size)
    except FileNotFoundError:
        raise missing(name) from None
    except (OSError, ValueError):
        raise not_whole(name) from None
    return 8 + size, entries


def tensor_bytes(folder: Path, file: str, name: str) -> bytes:
    """Return the bytes of a tensor; `file` is as in `check_weights`.

    Raises:
        CheckpointError: a file is missing or cut short, or the tensor is missing.
    """
    shard = tensor_file(shard_files(folder, file), file, name)
    start, entries = weight_header(folder, shard)
    if name not in entries:
        raise CheckpointError(f"{shard}: tensor {name} is missing")
    begin, end = entries[name]["data_offsets"]
    with (folder / shard).open("rb") as opened:
        opened.seek(start + begin)
        return opened.read(end - begin)


def same_bytes(file: Path, other: Path) -> bool:
    """Whether two large files are alike. Their sizes and `SAMPLES` evenly spread pieces are compared.

    Weights of different trainings differ everywhere, so a few pieces show it.
    """
    size = file.stat().st_size
    if size != other.stat().st_size:
        return False
    with file.open("rb") as first, other.open("rb") as second:
        for place in range(0, size, max(1, size // SAMPLES)):
            first.seek(place)
            second.seek(place)
            if first.read(SAMPLE_BYTES) != second.read(SAMPLE_BYTES):
                return False
    return True


def check_graph(folder: Path, name: str) -> None:
    """Check from its outermost fields that an ONNX file is there and whole.

    The file is a protobuf message, a sequence of fields. A field has a varint with its number and the kind of its
    value, and then a varint, or a length and that many bytes. The graph is field 7.
    https://protobuf.dev/programming-guides/encoding, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto

    Args:
        name: of the file, with its ending.

    Raises:
        CheckpointError: the file is missing, cut short, or something else.
    """
    numbers = set()
    try:
        size = (folder / name).stat().st_size
        with (folder / name).open("rb") as file:
            while file.tell() < size:
                key = _varint(file)
                value = _varint(file)
                if key & 7 == _BYTES:
                    file.seek(value, os.SEEK_CUR)
                elif key & 7 != _NUMBER:
                    raise ValueError("a kind of value that the message has not")
                numbers.add(key >> 3)
            whole = file.tell() == size and _GRAPH in numbers
    except FileNotFoundError:
        raise missing(name) from None
    except (OSError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise CheckpointError(f"{name}: not a whole ONNX file; it may have been cut short")


def _varint(file: BinaryIO) -> int:
    """Read the next number. It has seven bits a byte, the lowest first, and its last byte is below 128."""
    number = 0
    for place in range(0, 70, 7):
        [byte] = file.read(1)
        number |= (byte & 127) << place
        if byte < 128:
            return number
    raise ValueError("a number of more than ten bytes")


def read_tokenizer(folder: Path, name: str) -> tokenizers.Tokenizer:
    """Read the tokenizer in a `tokenizer.json`. It neither cuts nor pads.

    Raises:
        CheckpointError: the file is missing or cannot be read.
    """
    import tokenizers

    check_file(folder, name)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / name))
    except Exception:  # the library raises plain Exception
        raise CheckpointError(f"{name}: not a tokenizer that can be read") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    keep_no_words(tokenizer)
    return tokenizer


def keep_no_words(tokenizer: tokenizers.Tokenizer) -> None:
    """Turn off the word cache of a byte-level BPE tokenizer.

    It would hold the last 10,000 different words, also of transcripts of deleted voices, and saves no measurable time.
    """
    from tokenizers import models

    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model._resize_cache(0)
