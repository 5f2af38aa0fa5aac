"""A bundle carries speakers from one server to another: safetensors whose tensors are the speakers' files.

metadata  format       "voice-clone bundle 1"
tensors   0, 1, 2 ...  uint8 [bytes]: the file of one speaker (see `voice_file`)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from voice_clone.errors import InvalidArgument
from voice_clone.speakers.disk import voice_file
from voice_clone.speakers.disk.voice_file import AUDIO, Header, Tensors
from voice_clone.speakers.record import ArtifactId

FORMAT = "voice-clone bundle 1"


def pack_bundle(files: Sequence[bytes]) -> bytes:
    """The bundle of these speakers' files."""
    tensors = {str(index): np.frombuffer(file, np.uint8) for index, file in enumerate(files)}
    return save(tensors, {"format": FORMAT})


def unpack_bundle(data: bytes) -> list[tuple[Header, dict[str, NDArray[Any]]]]:
    """Header and verified tensors of each speaker.

    Raises:
        InvalidArgument: the data is not a bundle, or it is damaged.
    """
    try:
        files = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
        if metadata.get("format") != FORMAT:
            raise InvalidArgument("this is no bundle of voices; send what an export answered")
        names = sorted(files, key=lambda name: (len(name), name))
        return [voice_file.unpack(files[name].tobytes()) for name in names]
    except InvalidArgument:
        raise
    except Exception:  # a bundle may hold anything
        raise InvalidArgument("the bundle of voices is damaged; export it again") from None


def group_artifacts(header: Header, tensors: Tensors) -> dict[ArtifactId, dict[str, NDArray[Any]]]:
    """The tensors of a speaker's file except the audio, grouped by the artifacts to which they belong.

    Raises:
        InvalidArgument: the record lists other artifacts.
    """
    groups: dict[ArtifactId, dict[str, NDArray[Any]]] = {artifact: {} for artifact in header.record.artifacts}
    for name, tensor in tensors.items():
        if name != AUDIO:
            model_type, _, rest = name.partition("/")
            mode, _, short = rest.partition("/")
            group = groups.get(ArtifactId(model_type, mode))
            if group is None:
                raise InvalidArgument("the bundle of voices holds artifacts that its record does not know")
            group[short] = tensor
    if not all(groups.values()):
        raise InvalidArgument("the bundle of voices lacks artifacts of its record")
    return groups
