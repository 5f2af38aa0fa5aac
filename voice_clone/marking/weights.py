"""The weights of Perth, which the package resemble-perth brings along.

Only that file is used. The package's code cannot be imported beside ours: it needs `pkg_resources`, torchaudio and
librosa and names none of them as requirements. `network` computes what the code computes.

The file is a pickle. It is opened only if it is the one that is known by its digest, and torch reads nothing but
tensors from it.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from voice_clone.errors import Unsupported

PACKAGE, VERSION = "resemble-perth", "1.0.1"
INSTALL = f"pip install {PACKAGE}=={VERSION}"
_FILE = "perth/perth_net/pretrained/implicit/perth_net_250000.pth.tar"
_SHA256 = "a15bce457ebc53ce5e6c9c3f11df78cf7ee2bf9cdab0a798902135b4c4027670"


def load_weights() -> dict[str, Tensor]:
    """The tensors by their names, float32 on the CPU.

    Raises:
        Unsupported: the package is not installed, or is another version.
    """
    try:
        file = Path(str(metadata.distribution(PACKAGE).locate_file(_FILE)))
        content = file.read_bytes()
    except (metadata.PackageNotFoundError, OSError):
        raise Unsupported(f"marks need the package {PACKAGE}, which is not installed: {INSTALL}") from None
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise Unsupported(f"the weights of {PACKAGE} are not those of version {VERSION}: {INSTALL}")
    weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)["model"]
    return weights
