"""A training that is stopped, killed or interrupted continues as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tools.demo_voice.training import TEST_STEPS, Plan, Run, Stopped, averaged, generator_of

pytestmark = pytest.mark.thorough

PLAN = Plan(steps=12, rate=0.01, warm_up=3)
ROOT = Path(__file__).resolve().parents[4]


def new_run(folder: Path) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Run(model, PLAN, folder / "run.pt", hidden=["0.weight"])


def loss_of(run: Run, step: int) -> tuple[Tensor, dict[str, float]]:
    x = torch.randn(16, 4, generator=generator_of(3, step))
    loss: Tensor = (run.model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    return loss, {"loss": loss.item()}


def weights(run: Run) -> list[Tensor]:
    return [*run.model.state_dict().values(), *run.average.values()]


def test_in_pieces_as_in_one(tmp_path: Path) -> None:
    whole = new_run(tmp_path / "whole")
    whole.finish(lambda step: loss_of(whole, step))
    for _ in range(4):
        piece = new_run(tmp_path / "pieces")
        piece.finish(lambda step, run=piece: loss_of(run, step), stop_after=3)  # type: ignore[misc]
    assert piece.step == whole.step == PLAN.steps
    assert all(torch.equal(one, other) for one, other in zip(weights(piece), weights(whole), strict=True))
    average = averaged(tmp_path / "whole" / "run.pt")
    assert all(torch.equal(average[name], tensor) for name, tensor in whole.average.items())


def test_it_learns(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    before = loss_of(run, 99)[0].item()
    run.finish(lambda step: loss_of(run, step))
    assert loss_of(run, 99)[0].item() < before


def test_what_is_not_learned_is_reported_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, tested = new_run(tmp_path / "plain"), new_run(tmp_path / "tested")
    plain.finish(lambda step: loss_of(plain, step))
    tested.finish(lambda step: loss_of(tested, step), test=lambda step: loss_of(tested, 1000 + step))
    assert all(torch.equal(one, other) for one, other in zip(weights(tested), weights(plain), strict=True))
    first, last = (line.split() for line in capsys.readouterr().out.splitlines())
    expected = sum(loss_of(tested, 1000 + step)[1]["loss"] for step in range(TEST_STEPS)) / TEST_STEPS
    assert last == ["run", "step", f"{PLAN.steps}/{PLAN.steps}", "not", "learned:", "loss", f"{expected:.3f}"]
    assert float(last[-1]) < float(first[-1])


def test_a_convolution_is_trained_as_a_matrix(tmp_path: Path) -> None:
    matrix = new_run(tmp_path / "matrix")
    torch.manual_seed(0)
    first, last = nn.Conv1d(4, 8, 1), nn.Linear(8, 1)
    convolving = nn.Sequential(nn.Unflatten(1, (4, 1)), first, nn.Flatten(), nn.Tanh(), last)
    convolution = Run(convolving, PLAN, tmp_path / "convolution" / "run.pt", hidden=["1.weight"])
    for own, other in zip(convolving.parameters(), matrix.model.parameters(), strict=True):
        own.data.copy_(other.data.view(own.shape))
    for run in (matrix, convolution):
        run.finish(lambda step, run=run: loss_of(run, step))  # type: ignore[misc]
    for one, other in zip(convolving.parameters(), matrix.model.parameters(), strict=True):
        torch.testing.assert_close(one.view(other.shape), other)


def test_sigterm_saves_and_ends(tmp_path: Path) -> None:
    run = new_run(tmp_path)

    def loss(step: int) -> tuple[Tensor, dict[str, float]]:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss_of(run, step)

    with pytest.raises(Stopped):
        run.finish(loss)
    assert new_run(tmp_path).step == 5
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loss_that_is_not_finite_ends_the_run_and_spoils_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.finish(lambda step: loss_of(run, step), stop_after=2)
    with pytest.raises(FloatingPointError, match="step 2"):
        run.finish(lambda step: (loss_of(run, step)[0] * torch.nan, {}))
    assert all(bool(tensor.isfinite().all()) for tensor in weights(new_run(tmp_path)))


ENDLESS = """
import sys
from pathlib import Path
import torch
from torch import nn
from tools.demo_voice import training
training.SAVE_SECONDS = 0.0
run = training.Run(nn.Linear(300, 300), training.Plan(steps=10**9, rate=1e-3), Path(sys.argv[1]))
run.finish(lambda step: (run.model(torch.ones(1, 300)).square().mean(), {}))
"""


def test_kill_9_while_it_saves_leaves_a_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], cwd=ROOT)
        try:
            known = path.stat().st_mtime_ns if path.exists() else 0
            deadline = time.monotonic() + 120
            while not path.exists() or path.stat().st_mtime_ns == known:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
        state = torch.load(path, weights_only=True)
        assert state["step"] > 0
    assert Run(nn.Linear(300, 300), Plan(steps=10, rate=1e-3), path).step == state["step"]
