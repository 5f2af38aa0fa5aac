"""When words are spoken, as LiveKit's plugins and Pipecat's services tell it, unmodified, of a gateway whose speech and
aligner are doubles: so each word has a known time. What of a text was heard, both find by these times. They are also
interrupted in a speech of flite, which knows when it speaks a word, and which our aligner hears.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.bench.word_times import Spoken, compiled, spoken
from tests.support.doubles.speech_double import FRAME, RATE, Double
from tests.support.doubles.triton_double import AlignerDouble
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.waiting import WAIT
from voice_clone.aligner.speech import AlignedSpeech
from voice_clone.aligner.sphinx import PocketSphinx
from voice_clone.audio import resample

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


LONG = "The birch canoe slid on the smooth planks, and nobody saw it go, but the old captain told the story again."
LATE = 0.15  # seconds by which a busy machine may be late


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """A sentence of flite."""
    if not (Path("/usr/include/flite/flite.h").exists() and shutil.which("cc")):
        pytest.skip("no flite on this machine (Debian: apt-get install flite1-dev gcc)")
    found = spoken(compiled(tmp_path_factory.mktemp("flite")), "rms", LONG)
    assert len(found.times) == len(LONG.split())
    return found


def aligner() -> Callable[[dict[str, Any]], Any]:
    """Ours, as the server's model runs it."""
    engine, speeches = PocketSphinx(), dict[bytes, AlignedSpeech]()

    def align(inputs: dict[str, Any]) -> Any:
        id = inputs["alignment"]
        if "text" in inputs:
            speeches[id] = AlignedSpeech(engine, inputs["text"].decode(), int(inputs["sample_rate"][0]), "en")
        words = speeches[id].feed(inputs["audio"])
        words = speeches[id].end() if inputs["final"][0] else words
        assert not any(word["estimated"] for word in words)
        return {"words": words, "reason": None}

    return align


@pytest.mark.parametrize("vendor", ["elevenlabs", "cartesia"])
@pytest.mark.parametrize("app", ["livekit", "pipecat"])
def test_what_was_heard_at_an_interruption(app: str, vendor: str, said: Spoken) -> None:
    """Pipecat keeps the words that have begun. LiveKit tells words at a pace that follows their times by the syllable,
    so it may be up to two behind those that have ended, with the true times, too."""
    samples = resample(said.samples, said.rate, RATE)
    sounds = np.split(samples, [round(end * RATE) for _, end in said.times[:-1]])
    moments = [sum(said.times[at]) / 2 for at in (6, 16)]

    async def test(gateway: Gateway) -> None:
        script = ROOT / "tests" / "support" / "official" / "apps" / f"{app}_interruption.py"
        command = [str(PYTHON), str(script), vendor, f"http://127.0.0.1:{gateway.port}", "ada", LONG]
        process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
        try:
            asked = "".join(f"{moment}\n" for moment in moments).encode()
            printed, _ = await asyncio.wait_for(process.communicate(asked), 4 * WAIT)
        finally:
            if process.returncode is None:
                process.kill()
        lines = [json.loads(line) for line in printed.splitlines()]
        assert len(lines) == 2 * len(moments)
        for played, heard in (
            (first["played"], second["heard"]) for first, second in zip(lines[::2], lines[1::2], strict=True)
        ):
            words = heard.split()
            assert words == LONG.split()[: len(words)]
            begun = [sum(start <= played + late for start, _ in said.times) for late in (-LATE, LATE)]
            ended = sum(end <= played - LATE for _, end in said.times)
            least = begun[0] if app == "pipecat" else ended - 2
            assert least <= len(words) <= begun[1], (played, words)

    run(test, Double(align=aligner(), sounds=sounds))
