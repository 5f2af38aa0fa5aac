"""Each option of `qwen3_tts` through the server against the bare networks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_bare import BareQwen3
from tests.support.official.phone_clips import RATE, SAMPLES
from tests.support.servers.option_checks import CHECKS, DEFAULTS, Probe, Voice
from tests.support.servers.running import running
from tools.families.qwen3_tts.checkpoint_config import GENERATION
from tools.families.qwen3_tts.checkpoint_maker import make_endless


@pytest.fixture(scope="module")
def checkpoint(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny one, endless, with defaults of its own."""
    assert DEFAULTS.keys() == GENERATION.keys()
    assert not [name for name in DEFAULTS if DEFAULTS[name] == GENERATION[name]]
    folder = make_endless(checkpoint_folder("tiny", 0), tmp_path_factory.mktemp("options") / "checkpoint")
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(DEFAULTS))
    return folder


@pytest.fixture(scope="module")
def voices(reference_clip: bytes, reference_text: str) -> dict[str, Voice]:
    """Two, of which one is the shipped clip and the other the same backwards."""
    other = io.BytesIO()
    soundfile.write(other, 0.5 * SAMPLES[::-1], RATE, format="WAV")
    return {
        "Harbour": Voice("Harbour", reference_clip, reference_text),
        "Second": Voice("Second", other.getvalue(), "These words belong to nobody."),
    }


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareQwen3:
    return BareQwen3(checkpoint)


@pytest.fixture(scope="module")
def probe(
    checkpoint: Path, bare: BareQwen3, voices: dict[str, Voice], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Probe]:
    folder = tmp_path_factory.mktemp("options-server")
    with running(checkpoint, folder, VOICE_CLONE_PRECISION="fp32") as server:
        probe = Probe(server, bare, voices)
        probe.register()
        yield probe


@pytest.mark.parametrize("check", CHECKS)
def test_an_option_does_what_it_says(probe: Probe, check: str) -> None:
    CHECKS[check](probe)
