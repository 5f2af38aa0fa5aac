"""Memory goes back when it is not needed, and is not taken before."""

from __future__ import annotations

import gc
import mmap
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.families.factories import CheckpointFactory
from tests.support.families.talkers import read_config
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.qwen3_tts import talker as talker_stage
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.model_start import trim
from voice_clone.settings import Settings

pytestmark = pytest.mark.thorough

MB = 1 << 20


def resident() -> int:
    size: int = psutil.Process().memory_info().rss
    return size


def test_trim_gives_back_what_lies_between_what_is_used() -> None:
    blocks = [np.ones(12_500) for _ in range(1000)]  # 100 kB each: too small for pages of their own
    used = blocks[::10]
    del blocks
    before = resident()
    trim()
    assert before - resident() > 50 * MB
    assert all((block == 1).all() for block in used)


def test_a_cache_takes_memory_as_it_is_written_to(tmp_path: Path) -> None:
    config = StackConfig.of(read_config("equal", tmp_path).talker)
    before = resident()
    cache = KVCache(config, 64, 8192, torch.zeros(1))
    assert cache.nbytes > 500 * MB
    assert resident() - before < 50 * MB
    assert not cache.keys[0, 3].any() and not cache.values[-1, 63].any()
    cache.keys[0, 1, 0, 5] = 1.0
    assert cache.keys.sum() == config.head_dim and not cache.values[0].any()
    cache.values.fill_(1.0)
    filled = resident()
    cache.clear()
    assert filled - resident() > 200 * MB
    assert not cache.keys.any() and not cache.values[:, ::7].any()


def mapped(file: Path) -> dict[str, str]:
    """What /proc/self/smaps says of each mapping of a file, by address."""
    areas = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return {area.split("-")[0]: area for area in areas if f"{file}\n" in area}


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_only_the_text_embedding_of_the_checkpoint_stays_mapped(
    kind: str, checkpoint_folder: CheckpointFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_folder("tiny", 0), folder)
    file = folder / "model.safetensors"
    save_file({name: tensor.to(getattr(torch, kind)) for name, tensor in load_file(file).items()}, file)
    gc.collect()  # what is freed later leaves an address to the area that is looked for
    assert not mapped(file)
    talker = talker_stage.load_network(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder)}))
    [area] = mapped(file).values()
    size = 1024 * int(re.search(r"(?m)^Size: +(\d+) kB", area)[1])  # type: ignore[index]
    assert isinstance(talker, NativeTalker)
    assert 0 <= size - talker.text_table.nbytes <= 2 * mmap.PAGESIZE
    assert talker.text_table.dtype == (np.uint16 if kind == "bfloat16" else np.float32)


def test_loading_a_talker_does_not_import_the_compiler_of_torch(checkpoint_folder: CheckpointFactory) -> None:
    """It would take 100 MB."""
    code = (
        "import sys; from voice_clone.families.qwen3_tts import talker;"
        "from voice_clone.settings import Settings;"
        "talker.load_talker(Settings({})).source; print('torch._dynamo' in sys.modules)"
    )
    environment = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)), "PATH": "/usr/bin:/bin"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["False"]
