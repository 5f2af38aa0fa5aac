"""The file of one speaker, and the bundle of several files. Both are safetensors.

The file of a speaker has the record in its header:

    metadata  format   "voice-clone speaker 1"
              record   JSON of the SpeakerRecord
              digests  JSON {tensor name: SHA-256 of its type, shape and bytes}
              seal     SHA-256 of record and digests
    tensors   audio                            uint8 [bytes]: the clip as it was uploaded; absent for a ready embedding
              <model_type>/<mode>/<tensor>     the artifacts as the encoder named them
              ~<style>/audio, ~<style>/<model_type>/<mode>/<tensor>
                                               the same of a further clip

The seal proves at start that the header is what was written, without reading a tensor; a digest proves it for each
tensor when it is read.

A bundle carries speakers from one server to another:

    metadata  format       "voice-clone bundle 1"
    tensors   0, 1, 2 ...  uint8 [bytes]: the file of one speaker
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from voice_clone.errors import InvalidArgument
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.tensor_file import Damaged, bytes_of, check_header, metadata_of, opened

Tensors = Mapping[str, NDArray[Any]]
FORMAT = "voice-clone speaker 1"
BUNDLE_FORMAT = "voice-clone bundle 1"
AUDIO = "audio"
MAX_FILE_BYTES = 512 << 20
MAX_HEADER_BYTES = 2 << 20  # the longest transcripts of all clips and the digests of many tensors need a part
MAX_BUNDLE_HEADER_BYTES = 2 << 20  # about 80 for each voice


class Header(NamedTuple):
    """The header of a speaker's file."""

    record: SpeakerRecord
    digests: Mapping[str, str]


def tensor_name(artifact: ArtifactId, name: str) -> str:
    """The name of an artifact in the file."""
    return f"{_of_style(artifact.style)}{artifact.model_type}/{artifact.mode}/{name}"


def audio_name(style: str) -> str:
    """The name of the clip of a style in the file."""
    return _of_style(style) + AUDIO


def _of_style(style: str) -> str:
    return f"~{style}/" if style else ""


def file_tensors(audio: Mapping[str, bytes], artifacts: Mapping[ArtifactId, Tensors]) -> dict[str, NDArray[Any]]:
    """All tensors of a file, by their names in it. `audio`: the clips by their styles."""
    tensors = {audio_name(style): np.frombuffer(clip, np.uint8) for style, clip in audio.items()}
    for artifact, named in artifacts.items():
        tensors |= {tensor_name(artifact, name): tensor for name, tensor in named.items()}
    return tensors


def pack(record: SpeakerRecord, tensors: Tensors, known: Mapping[str, str] | None = None) -> bytes:
    """The bytes of the file, the same each time.

    Args:
        known: digests of an older file, kept with its tensors so that damage still shows.
    """
    digests = json.dumps({name: (known or {}).get(name) or digest(tensor) for name, tensor in sorted(tensors.items())})
    text = record.to_json()
    metadata = {"format": FORMAT, "record": text, "digests": digests, "seal": _seal(text, digests)}
    data = save(dict(tensors), metadata)  # with its metadata in any order
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]) | {"__metadata__": metadata}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(data)[start:]))


def read_header(path: Path) -> Header:
    """The header of the file; reads no tensor.

    Raises:
        Damaged: the file is torn, foreign or altered.
        OSError: the file cannot be read.
    """
    with opened(path, MAX_FILE_BYTES, MAX_HEADER_BYTES) as file:
        return _header(file.metadata, file.entries)


def read(path: Path, wanted: Callable[[str], bool]) -> tuple[Header, dict[str, NDArray[Any]]]:
    """The header, and the tensors whose names are `wanted`, not yet verified.

    Raises: as `read_header`.
    """
    with opened(path, MAX_FILE_BYTES, MAX_HEADER_BYTES) as file:
        return _header(file.metadata, file.entries), file.tensors([name for name in file.entries if wanted(name)])


def read_artifacts(path: Path, artifact: ArtifactId) -> tuple[Header, dict[str, NDArray[Any]]]:
    """The header, and the verified artifacts under the names the encoder gave them; none if the file has none.

    Raises: as `read_header`; Damaged also if a tensor is not what was written.
    """
    prefix = tensor_name(artifact, "")
    header, tensors = read(path, lambda name: name.startswith(prefix))
    verify(header, tensors)
    return header, {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def unpack(data: bytes) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Header and verified tensors of a file given as bytes.

    Raises:
        Damaged: torn, foreign or altered.
    """
    try:
        check_header(data, MAX_HEADER_BYTES)
        tensors = load(data)
        metadata = metadata_of(data)
    except Exception as error:
        raise Damaged(str(error)) from None
    header = _header(metadata, tensors)
    verify(header, tensors)
    return header, tensors


def verify(header: Header, tensors: Tensors) -> None:
    """Check that the tensors are those that were written.

    Raises:
        Damaged: one is not; the message names it.
    """
    for name, tensor in tensors.items():
        if header.digests[name] != digest(tensor):
            raise Damaged(f"the tensor {name} is not what was written")


def digest(tensor: NDArray[Any]) -> str:
    """SHA-256 of a tensor's type, shape and bytes."""
    head = f"{tensor.dtype.str}{list(tensor.shape)}".encode()
    return hashlib.sha256(head + b"\0" + tensor.tobytes()).hexdigest()


def _header(metadata: Mapping[str, str], names: Iterable[str]) -> Header:
    if metadata.get("format") != FORMAT:
        raise Damaged("not a speaker's file")
    try:
        if metadata["seal"] != _seal(metadata["record"], metadata["digests"]):
            raise Damaged("the header is not what was written")
        record = SpeakerRecord.from_json(metadata["record"])
        digests: dict[str, str] = json.loads(metadata["digests"])
        if set(digests) != set(names):
            raise Damaged("the tensors are not those of the record")
    except Damaged:
        raise
    except Exception as error:  # the seal is no secret, so the header may hold anything
        raise Damaged(f"the record cannot be read: {error}") from None
    return Header(record, digests)


def _seal(record: str, digests: str) -> str:
    return hashlib.sha256(f"{len(record)} {record}{digests}".encode()).hexdigest()


def pack_bundle(files: Iterable[bytes], most: int, bundle: BinaryIO) -> str:
    """Write the bundle of these speakers' files, `most` at most, of which one after the other is in memory.

    Args:
        bundle: an empty file.

    Returns: a digest of it.
    """
    header: dict[str, Any] = {"__metadata__": {"format": BUNDLE_FORMAT}}
    room = 8 + 64 + 88 * most  # for the header, which spaces fill
    digest = hashlib.sha256()
    bundle.seek(room)
    for index, file in enumerate(files):
        begin = bundle.tell() - room
        header[str(index)] = {"dtype": "U8", "shape": [len(file)], "data_offsets": [begin, begin + len(file)]}
        bundle.write(file)
        digest.update(file)
    begun = (room - 8).to_bytes(8, "little") + json.dumps(header, separators=(",", ":")).encode().ljust(room - 8)
    bundle.seek(0)
    bundle.write(begun)
    digest.update(begun)
    return digest.hexdigest()


def unpack_bundle(data: bytes) -> list[tuple[Header, dict[str, NDArray[Any]]]]:
    """Header and verified tensors of each speaker.

    Raises:
        InvalidArgument: the data is not a bundle, or it is damaged.
    """
    no_bundle = InvalidArgument("this is no bundle of voices, or a damaged one; send what an export answered")
    try:
        metadata, files = bytes_of(data, MAX_BUNDLE_HEADER_BYTES)
        if metadata.get("format") != BUNDLE_FORMAT:
            raise no_bundle
        names = sorted(files, key=lambda name: (len(name), name))
        return [unpack(bytes(files[name])) for name in names]
    except InvalidArgument:
        raise
    except Exception:  # a bundle may hold anything
        raise no_bundle from None


def clips_of(header: Header, tensors: Tensors) -> dict[str, bytes]:
    """The clips of a speaker's file by their styles."""
    names = {style: audio_name(style) for style in header.record.clips}
    return {style: tensors[name].tobytes() for style, name in names.items() if name in tensors}


def group_artifacts(header: Header, tensors: Tensors) -> dict[ArtifactId, dict[str, NDArray[Any]]]:
    """The tensors of a speaker's file except its clips, grouped by the artifacts to which they belong.

    Raises:
        InvalidArgument: the record lists other artifacts.
    """
    clips = header.record.clips
    groups: dict[ArtifactId, dict[str, NDArray[Any]]] = {each: {} for clip in clips.values() for each in clip.artifacts}
    for name, tensor in tensors.items():
        if name not in map(audio_name, clips):
            style, _, rest = name[1:].partition("/") if name.startswith("~") else ("", "", name)
            model_type, _, rest = rest.partition("/")
            mode, _, short = rest.partition("/")
            group = groups.get(ArtifactId(model_type, mode, style))
            if group is None:
                raise InvalidArgument("the bundle of voices holds artifacts that its record does not know")
            group[short] = tensor
    if not all(groups.values()):
        raise InvalidArgument("the bundle of voices lacks artifacts of its record")
    return groups
