"""perf/compare_rivals: what it reads off other engines, whom it compares with whom, and what its table says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.bench import compare_rivals as compare
from perf.bench import report
from perf.bench.rivals import qwentts
from perf.bench.rivals.contestants import Failed, finish, last_words

pytestmark = pytest.mark.thorough

LOG = """\
[Prompt] Built: 53 ids, N_text=45, N_instruct=0, T_ctx=56, hidden=1024, lang=english (id=2050)
[Perf] PromptBuild 40.0 ms
[Perf] Prefill 610.5 ms (T_ctx prefill)
[Perf] TTFA 800.0 ms (first frame codes)
[Perf] TalkerDecode 1200.0 ms (24 frames, 50.00 ms/frame)
[Perf] CodePredictor 2400.0 ms (100.00 ms/frame)
[Perf] HostCompose 0.5 ms (c0 sample + next emb)
[Perf] CodecDecode 2500.0 ms
[Perf] Total 6751.0 ms (24 frames, 150.02 ms/frame AR, audio 1.92 s, RTF 3.516)
"""


def test_times_of_qwentts() -> None:
    positions, spent = qwentts.times(LOG)
    assert positions == 56
    assert spent["Prefill"] == pytest.approx(0.6105) and spent["CodecDecode"] == pytest.approx(2.5)


@pytest.mark.parametrize("missing", ["T_ctx=", "CodecDecode"])
def test_a_log_of_qwentts_without_its_times(missing: str) -> None:
    rest = "\n".join(line for line in LOG.splitlines() if missing not in line)
    with pytest.raises(ValueError, match=f"lacks {missing.rstrip('=')}"):
        qwentts.times(rest)


def figures(
    engine: str, positions: int, precision: str = "int8", floor: float | None = None, **times: float
) -> dict[str, Any]:
    """Those of a case whose speeches took one time each; what is not given took a second."""
    names = (*compare.MEASURES, "megabytes")
    return {
        "engine": engine,
        "precision": precision,
        "kind": precision,
        "positions": positions,
        "same": None,
        **{name: report.summary([times.get(name, 1.0)]) for name in names},
        "floor": report.summary([] if floor is None else [floor]),
    }


def test_ours_is_compared_where_the_prompt_is_about_as_long() -> None:
    first = figures("ours", 58, floor=0.05, prompt=0.2, frame=0.06)
    along = figures("ours, text along", 9, prompt=0.1, frame=0.06)
    slower = figures("qwentts", 56, prompt=0.3, frame=0.07, whole=2.0)
    assert compare.behind([first, along, slower]) == []
    faster = figures("vox", 9, prompt=0.15, frame=0.05, whole=1.0)  # its prompt is faster only than the longer one
    [line] = compare.behind([first, along, slower, faster])
    assert line.startswith("frame: ours, text along int8 60 ms, vox int8 50 ms (1.2 times as long)")
    longer = figures("vox", 60, frame=0.05)
    assert any(line.endswith("floor 50 ms") for line in compare.behind([first, along, longer]))


def test_nothing_is_compared_with_another_precision_or_with_what_did_not_speak() -> None:
    faster = figures("vox", 58, "int4", frame=0.01)
    absent = {"engine": "vox", "precision": "int8", "kind": "q8", "reason": "not installed: no --vox"}
    assert compare.behind([figures("ours", 58), faster, absent]) == []


def test_frames_are_the_same_until_one_differs() -> None:
    ours = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 1920))
    theirs = ours + 1e-4
    theirs[2] = ours[1]  # and the frame after it is the same again
    assert compare.same_frames(ours.reshape(-1), theirs.reshape(-1), 4) == 2
    assert compare.same_frames(ours.reshape(-1), ours.reshape(-1), 4) == 4
    assert compare.same_frames(ours.reshape(-1), ours[:3].reshape(-1), 4) == 0


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    assert (
        last_words("loading\nx.c:1: GGML_ASSERT(a == b) failed\nat gdb\n", 134) == "x.c:1: GGML_ASSERT(a == b) failed"
    )
    assert last_words("", 3) == "exit status 3"
    with pytest.raises(Failed, match="no such model"):
        finish([sys.executable, "-c", "raise SystemExit('no such model')"])
    with pytest.raises(Failed, match="cannot be started"):
        finish([str(tmp_path / "python")])
    assert finish([sys.executable, "-c", "print('spoken')"]) == "spoken\n"
