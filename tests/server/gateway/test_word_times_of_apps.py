"""When words are spoken, as LiveKit's plugins and Pipecat's services tell it, unmodified, of a gateway whose speech and
aligner are doubles: so each word has a known time. What of a text was heard, both find by these times.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.doubles.speech_double import FRAME, RATE, Double
from tests.support.doubles.triton_double import AlignerDouble
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv" / "apps" / "bin" / "python"  # made by tools/test
TEXT = "Good morning, all of you. This is the second one."


@pytest.mark.parametrize(
    ("app", "vendor", "options", "unit"),
    [
        ("livekit", "elevenlabs", ['{"encoding": "pcm_24000"}'], 1.0),  # sentence by sentence, its default
        ("livekit", "elevenlabs", ['{"encoding": "pcm_24000", "auto_mode": false}'], 1.0),  # word by word
        ("livekit", "cartesia", ["{}"], 1.0),
        ("pipecat", "elevenlabs", [], 1e-9),
        ("pipecat", "cartesia", [], 1e-9),
    ],
)
def test_words_and_their_times(app: str, vendor: str, options: list[str], unit: float) -> None:
    async def test(gateway: Gateway) -> None:
        script = ROOT / "tests" / "support" / "official" / "apps" / f"{app}_stream.py"
        command = [str(PYTHON), str(script), vendor, f"http://127.0.0.1:{gateway.port}", "ada", TEXT, *options]
        process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
        try:
            printed, _ = await asyncio.wait_for(process.communicate(b"\n"), 4 * WAIT)
        finally:
            if process.returncode is None:
                process.kill()
        first, interrupted, again = map(json.loads, printed.splitlines())
        assert interrupted == {"interrupted": True}
        for said in (first, again):
            assert "".join(f"{word.strip()} " for word, _ in said["words"]).strip() == TEXT
            starts = [unit * start for _, start in said["words"]]
            steps = [later - start for start, later in pairwise(starts)]
            assert steps == pytest.approx([FRAME / RATE] * len(steps), abs=2e-3)
            assert app == "pipecat" or starts[0] == 0, "of the text; Pipecat's are of its clock"

    run(test, Double(align=AlignerDouble(FRAME)))
