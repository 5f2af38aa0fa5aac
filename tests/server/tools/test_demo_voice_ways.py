"""The shipped checkpoint in every way that a voice can come about: each speaks about as well as fp32."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from perf.bench.demo_voice import MODES, measure
from tools.demo_voice.dataset import make_data
from tools.demo_voice.evaluation import PARTS, Evaluation
from tools.demo_voice.options import Options

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("flite") is None, reason="no flite, whose voices are cloned (apt-get install flite)"
    ),
]
SENTENCES = 24  # of each kind of speakers
ROUNDED = ("bf16", "int8", "int4")
EXACT = ("restored", "eager")
WORDS, WORDS_OF_INT4, VOICES = 0.1, 0.2, 0.15  # more of them may be wrong than with fp32


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """What was heard, by way and mode."""
    work = tmp_path_factory.mktemp("demo-voice-ways")
    options = Options()
    for _ in make_data(work, options.seed, 0, options.shard_size, options.jobs):
        pass
    found = measure(Evaluation(work, SENTENCES), ["fp32", *ROUNDED, *EXACT])
    return {(row["way"], row["mode"]): row for row in found}


def words(row: Mapping[str, Any]) -> float:
    """The rate of wrong words, of all speakers, where each is one of 20."""
    parts = [row[f"grammar {part}"] for part in PARTS]
    return float(sum(part["wrong"] for part in parts) / sum(part["words"] for part in parts))


def voices(row: Mapping[str, Any]) -> float:
    """The rate of held-out speakers that were taken for another one."""
    right, trials = row["right"]
    return float(1 - right / trials)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ROUNDED)
def test_a_rounded_talker_speaks_about_as_well(way: str, mode: str, rows: Any) -> None:
    row, exact = rows[way, mode], rows["fp32", mode]
    assert words(row) <= words(exact) + (WORDS_OF_INT4 if way == "int4" else WORDS)
    assert voices(row) <= voices(exact) + VOICES


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["fp32", *EXACT])
def test_other_ways_say_the_same(way: str, mode: str, rows: Any) -> None:
    """Nearly always: where two codes are almost equally likely, rounding decides, and the rest is another speech."""
    equal, spoken = rows[way, mode]["equal"]
    assert spoken == 2 * SENTENCES and equal >= 0.9 * spoken
    assert words(rows[way, mode]) <= words(rows["fp32", mode]) + WORDS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["fp32", *ROUNDED, "restored"])
def test_streams_do_not_click(way: str, mode: str, rows: Any) -> None:
    clicks, borders = rows[way, mode]["clicks"]
    assert borders > SENTENCES and clicks == 0
