"""A packed linear layer as a module of torch, in the place of an `nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import Packed, pack
from voice_clone.native.packed_file import Part
from voice_clone.settings import Precision


class NativeLinear(nn.Module):
    """A `PackedLinear` of tensors.

    Args:
        prompts: as of `Workspace`.

    Attributes:
        packed: the weight.
    """

    def __init__(self, packed: Packed, outputs: int, bias: Tensor | None = None, prompts: bool = False) -> None:
        super().__init__()
        self.packed = packed
        biases = None if bias is None else bias.detach().float().numpy()
        self._linear = PackedLinear(packed, outputs, biases, prompts)

    @classmethod
    def of(cls, linear: nn.Module, precision: Precision) -> NativeLinear:
        """The native form of an `nn.Linear`, its weight rounded to `precision`."""
        assert isinstance(linear, nn.Linear)
        return cls(pack(linear.weight.detach(), precision), linear.out_features, linear.bias)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """float32 [..., I] -> float32 [..., O]."""
        return torch.from_numpy(self._linear(x.numpy()))


def use_native_linears(
    owner: nn.Module,
    names: Sequence[str],
    precision: Precision,
    part: Part,
    fill: Callable[[], None] | None = None,
    prompts: bool = False,
) -> None:
    """Replace `nn.Linear`s of a module by their native forms.

    Args:
        owner: the module.
        names: its attributes.
        precision: to which their weights are rounded. Biases stay exact.
        part: finds the packed weights.
        fill: loads the module, and is called if they must be packed; None: it is loaded.
        prompts: as of `Workspace`.
    """

    def made() -> list[Array]:
        if fill is not None:
            fill()
        linears = [getattr(owner, name) for name in names]
        return [array for linear in linears for array in pack(linear.weight.detach(), precision).arrays]

    arrays = part(made)
    for place, name in enumerate(names):
        linear, weight = getattr(owner, name), Packed(*arrays[2 * place : 2 * place + 2])
        setattr(owner, name, NativeLinear(weight, linear.out_features, linear.bias, prompts))
