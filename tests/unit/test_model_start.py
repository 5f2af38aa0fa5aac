"""A process that serves a model imports less, and computes the same.

Triton's program for such a process has a built-in module by which the package knows it; here a plain Python pretends to
have it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PRETEND = "import sys\nsys.builtin_module_names = (*sys.builtin_module_names, 'c_python_backend_utils')\n"
IMPORTS = """
import sys
import voice_clone, torch, gc
print("torch._refs" in sys.modules, gc.isenabled())
"""
NETWORK = """
from torch import nn
from voice_clone.stages.loading import empty
torch.manual_seed(5)
network = empty(lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.GELU(), nn.LSTM(8, 5)))
assert all(weight.is_meta for weight in network.parameters())
filled = network.to_empty(device="cpu")
for weight in filled.parameters():
    nn.init.normal_(weight)
with torch.inference_mode():
    found, _ = filled(torch.randn(2, 4, 10))
    mixed = nn.functional.scaled_dot_product_attention(found[None], found[None], found[None])
print(found.double().sum().item().hex(), mixed.double().sum().item().hex(), torch.fft.rfft(mixed).abs().sum().item())
"""
MARK = """
import voice_clone
from voice_clone.marking.mark_filter import pattern
from voice_clone.marking.network import PerthNetwork
from voice_clone.marking.weights import load_weights
print(pattern(PerthNetwork(load_weights())).tolist())
"""
LOADED = """
from voice_clone.model_start import loaded
loaded()
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""


def _python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_models_process_imports_less_and_computes_the_same() -> None:
    imports, numbers, mark = _python(IMPORTS + NETWORK + MARK).splitlines()
    assert imports == "True True"
    fewer, same_numbers, garbage = _python(PRETEND + IMPORTS + NETWORK + LOADED).splitlines()
    assert fewer == f"{bool(list(Path('/dev').glob('nvidia*')))} False", "and it collects no garbage while it loads"
    assert same_numbers == numbers
    assert garbage == "True True", "but once it has loaded, without what stays"
    assert _python(PRETEND + MARK) == mark, "in a process of its own: it needs an import that others may make"


def test_no_family_imports_numba() -> None:
    """Only the process that compiles kernels does."""
    stages = [path for path in sorted((ROOT / "voice_clone" / "families").rglob("*.py")) if path.stem != "__init__"]
    assert len(stages) > 50
    imports = [f"import {'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in stages]
    assert _python("\n".join(["import sys", *imports, "print({'numba', 'llvmlite'} & set(sys.modules))"])) == "set()"
