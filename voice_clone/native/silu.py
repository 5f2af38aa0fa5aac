"""SiLU, an activation, of arrays and of tensors."""

from __future__ import annotations

import numpy as np

from voice_clone.array_kinds import Numbers
from voice_clone.native.kernel import Kernel

silu_in_place = Kernel("silu.silu_in_place")


def silu(x: Numbers) -> Numbers:
    """x / (1 + e ** -x)."""
    if isinstance(x, np.ndarray):
        out = np.array(x)
        silu_in_place(out.reshape(-1))
        return out
    from torch.nn import functional as F

    return F.silu(x)
