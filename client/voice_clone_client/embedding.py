"""Files of speaker embeddings and of directions, and interpolation between two embeddings.

A file is `.npy` (one array of shape [dimension]) or `.safetensors` (a tensor `speaker_embedding` of that shape).
"""

from __future__ import annotations

import io
import os
import re
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors
from voice_clone_program.whole_file import whole_file

from .errors import InvalidArgument, quoted
from .sources import Source, content, name
from .types import INSTRUCTIONS, NEUTRAL

Method = Literal["linear", "spherical"]
SUFFIXES = (".npy", ".safetensors")
_TENSOR = "speaker_embedding"
_NPY = b"\x93NUMPY"
_NEAR = 1e-6  # radians; below it the sine of an angle has no precision left


def blend(first: ArrayLike, second: ArrayLike, weight: float, method: Method = "spherical") -> NDArray[np.float32]:
    """A speaker embedding between two others.

    `linear` interpolates (1 - w) a + w b. Between unlike voices the result is nearer to the origin than either of them.
    `spherical` rotates the direction at constant speed (Shoemake, "Animating Rotation with Quaternion Curves", SIGGRAPH
    1985) and interpolates the length linearly:

        ((1 - w) |a| + w |b|) (sin((1 - w) t) a/|a| + sin(w t) b/|b|) / sin t,    t the angle between a and b

    For equal directions it equals `linear`.

    Args:
        first, second: float [dimension], a and b.
        weight: 0 gives the first, exactly, 1 the second.
        method: `linear` or `spherical`.

    Raises:
        InvalidArgument: sizes differ, a value is not finite, the weight is outside 0..1, or, for `spherical`, one of
            the two is zero or they are opposite, so that no shortest path is unique.
    """
    a, b = _vector(first), _vector(second)
    if a.shape != b.shape:
        raise InvalidArgument(f"the embeddings have {a.size} and {b.size} values; both must be of the same model")
    if not 0.0 <= weight <= 1.0:
        raise InvalidArgument(f"`weight` is {weight:g}; it must lie in 0..1")
    if method == "linear":
        of_a, of_b = 1.0 - weight, weight
    elif method == "spherical":
        of_a, of_b = _spherical(a, b, weight)
    else:
        raise InvalidArgument(f"`method` is {quoted(method)}; it must be linear or spherical")
    return (of_a * a + of_b * b).astype(np.float32)


def _spherical(a: NDArray[np.float64], b: NDArray[np.float64], weight: float) -> tuple[float, float]:
    """Factors of a and b."""
    length_a, length_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if not length_a or not length_b:
        raise InvalidArgument("an embedding of zeros has no direction; blend it with the `method linear`")
    unit_a, unit_b = a / length_a, b / length_b
    # Twice the arc tangent of |a - b| / |a + b|: precise for small and for wide angles, unlike the arc cosine.
    half = np.arctan2(np.linalg.norm(unit_a - unit_b), np.linalg.norm(unit_a + unit_b))
    angle = 2.0 * float(half)
    if np.pi - angle < _NEAR:
        raise InvalidArgument(
            "the embeddings are opposite, so no shortest path between them is unique; use the `method linear`"
        )
    if angle < _NEAR:
        of_a, of_b = 1.0 - weight, weight
    else:
        of_a = float(np.sin((1.0 - weight) * angle) / np.sin(angle))
        of_b = float(np.sin(weight * angle) / np.sin(angle))
    length = (1.0 - weight) * length_a + weight * length_b
    return of_a * (length / length_a), of_b * (length / length_b)


def _vector(values: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not vector.size:
        raise InvalidArgument(f"an embedding must have the shape [dimension], not {list(vector.shape)}")
    if not np.isfinite(vector).all():
        raise InvalidArgument("an embedding holds NaN or infinity; every value must be finite")
    return vector


def is_file(name: str) -> bool:
    """Whether a name has the suffix of an embedding file."""
    return name.endswith(SUFFIXES)


def load(source: Source) -> NDArray[np.float32]:
    """The speaker embedding [dimension] in a file, whose format its suffix says, or else its first bytes.

    Raises:
        InvalidArgument: the file has none.
        OSError: it cannot be read.
    """
    data, called = content(source), name(source)
    tensors = called.endswith(".safetensors") or not (called.endswith(".npy") or data.startswith(_NPY))
    try:
        values = safetensors.load(data)[_TENSOR] if tensors else np.load(io.BytesIO(data), allow_pickle=False)
        return _vector(values).astype(np.float32)
    except KeyError:
        raise InvalidArgument(f"{called} has no tensor {_TENSOR!r}") from None
    except (ValueError, TypeError, EOFError, BadZipFile, SafetensorError):
        kind = ".safetensors" if tensors else ".npy"
        raise InvalidArgument(f"{called} is no {kind} file of numbers") from None


def save(path: str | os.PathLike[str], embedding: NDArray[np.float32]) -> None:
    """Write a speaker embedding [dimension]; the suffix of the path determines the format.

    Raises:
        InvalidArgument: the suffix is unknown.
        OSError: it cannot be written.
    """
    target = os.fspath(path)
    if not is_file(target):
        raise InvalidArgument(f"{target} must end with {' or '.join(SUFFIXES)}")
    with whole_file(target) as file:
        file.write(encoded(embedding, target))


def encoded(embedding: NDArray[np.float32], called: str) -> bytes:
    """A speaker embedding [dimension] as the bytes of a file of this name, whose suffix determines the format:
    .safetensors if it has none.
    """
    if not called.endswith(".npy"):
        return safetensors.save({_TENSOR: embedding})
    file = io.BytesIO()
    np.save(file, embedding)
    return file.getvalue()


def encoded_direction(name: str, vector: NDArray[np.float32], fingerprint: str) -> bytes:
    """A direction as the bytes of a safetensors file, for the folder `directions` of the server's checkpoint.

    Args:
        name: by which styles name it.
        vector, fingerprint: see `AsyncClient.direction`.

    Raises:
        InvalidArgument: styles cannot have this name.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", name) or name in (NEUTRAL, INSTRUCTIONS):
        raise InvalidArgument(
            f"the `name` of a direction is {quoted(name)}; it must be 1 to 64 of a-z, 0-9 and _ . -, begin with a "
            f"letter or digit, and be neither {NEUTRAL} nor {INSTRUCTIONS}"
        )
    return safetensors.save({name: vector}, {"fingerprint": fingerprint})
