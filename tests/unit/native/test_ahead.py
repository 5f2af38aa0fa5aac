"""Native code that is compiled ahead, for processors that are not at hand: it is all that a speech calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perf.bench.rivals.ours import Engine, Prompt
from tests.unit.native.test_kernel import CALLED
from voice_clone.native.instructions import FEATURES, PROCESSORS, VARIABLE, choose, features
from voice_clone.native.kernel import Kernel
from voice_clone.settings import PRECISIONS, Settings

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "voice_clone" / "native" / "kernels" / "ahead.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_that_a_speech_calls_is_compiled_ahead(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called, entry = set(), Kernel.entry

    def noted(kernel: Kernel, kind: object) -> object:
        called.add(f"{kernel.name} {json.dumps(kind)}")
        return entry(kernel, kind)

    monkeypatch.setattr(Kernel, "entry", noted)
    environment = {"CHECKPOINT_DIR": str(ROOT / "tools/data/demo_voice"), "DEVICE": "cpu", "PRECISION": precision}
    engine = Engine(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environment.items()}))
    embedding = np.zeros(engine.config.talker.hidden_size, np.float32)
    text = engine.tokenizer.text_ids("A key.")
    engine.speak(
        Prompt(role_ids=engine.tokenizer.role_ids, text_ids=text, speaker_embedding=embedding, language_id=None), 4
    )
    assert len(called) > 5 and called <= {line.partition(" ")[2] for line in LINES}


HERE = [each for each in PROCESSORS if all(features().get(feature) for feature in each)]


@pytest.mark.parametrize("processor", HERE, ids=lambda each: each[-1] if each else "plain")
def test_it_has_the_bits_of_code_for_the_processor_at_hand(processor: tuple[str, ...], tmp_path: Path) -> None:
    choice = choose("", dict.fromkeys(processor, True), "x86_64").name
    found = [
        subprocess.run(
            [sys.executable, "-c", CALLED],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / name), name: value},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for name, value in ((FEATURES, " ".join(processor)), (VARIABLE, choice))
    ]
    assert found[0] == found[1]
