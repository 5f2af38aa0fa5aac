"""A process that serves a model imports less, and computes the same.

Triton's program for such a process has a built-in module by which the package knows it; here a plain Python pretends to
have it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRETEND = "import sys\nsys.builtin_module_names = (*sys.builtin_module_names, 'c_python_backend_utils')\n"
NETWORK = """
import voice_clone, torch
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
ENCODERS = (
    "qwen3_tts.encoder_stage",
    "fish_speech.encoder_stage",
    "voxtral.encoder_stage",
    "cosyvoice3.encoder_stages",
    "omnivoice.encoder_stage",
)


def _python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_torch_computes_the_same_with_less_imported() -> None:
    assert _python(PRETEND + NETWORK) == _python(NETWORK)


def test_the_mark_is_the_same() -> None:
    code = """
import voice_clone
from voice_clone.marking.mark_filter import pattern
from voice_clone.marking.network import PerthNetwork
from voice_clone.marking.weights import load_weights
print(pattern(PerthNetwork(load_weights())).tolist())
"""
    assert _python(PRETEND + code) == _python(code)


def test_only_a_models_process_imports_less() -> None:
    asked = "import voice_clone, torch, gc\nprint('torch._refs' in sys.modules, gc.isenabled())"
    assert _python(f"import sys\n{asked}") == "True True"
    assert _python(PRETEND + asked) == f"{bool(list(Path('/dev').glob('nvidia*')))} False"


def test_garbage_is_collected_once_the_model_has_loaded() -> None:
    code = "import gc, voice_clone\nfrom voice_clone.model_start import loaded\nloaded()\n"
    assert _python(PRETEND + code + "print(gc.isenabled(), gc.get_freeze_count() > 1000)") == "True True"


def test_no_encoder_imports_numba() -> None:
    # Its code for the machine is the talker's and the decoder's alone. VoxCPM2's encoder reads clips by native code.
    imports = "\n".join(f"import voice_clone.families.{each}; print('numba' in sys.modules)" for each in ENCODERS)
    assert _python(f"import sys\n{imports}").split() == ["False"] * len(ENCODERS)
