"""A training run that may be stopped at any time and continues as if it had not been.

Batches and noise of a step depend on the seed and the step's number alone. The state is on disk after every
`SAVE_SECONDS` and when a signal asks for the end; a run that is killed loses what came after the last save.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.demo_voice.files import save_state
from tools.demo_voice.muon import Muon

SAVE_SECONDS = 60.0
REPORT_SECONDS = 20.0
TEST_SECONDS = 300.0
TEST_STEPS = 8
SLOW = 0.2


Loss = Callable[[int], tuple[Tensor, dict[str, float]]]  # a step's number -> its loss, and what to report of it


class Stopped(Exception):
    """A signal asked for the end; the state is saved."""


@dataclass(frozen=True)
class Plan:
    """Length and pace of a run.

    Attributes:
        steps: of the whole run.
        rate: the learning rate between warm-up and cool-down.
        warm_up: steps of linear rise.
        cool_down: share of the steps, at the end, in which the rate falls linearly to zero.
        average: decay of the running average of the weights, which is what is exported.
        weight_decay: of matrices.
    """

    steps: int
    rate: float
    warm_up: int = 100
    cool_down: float = 0.3
    average: float = 0.998
    weight_decay: float = 0.01

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / self.warm_up)
        falling = (self.steps - step) / max(1.0, self.cool_down * self.steps)
        return self.rate * min(rising, max(0.0, min(1.0, falling)))


class Run:
    """The state of a training run: weights, their average, optimiser, step.

    Args:
        model: its parameters that require gradients are trained; its state dict is saved.
        path: of the state; if the file is there, the run continues from it.
        hidden: names of the matrices and convolutions between hidden layers. Muon trains them; a convolution counts as
            a matrix with one row for each slice of its first dimension. AdamW trains the others.
        slow: how the names begin of parameters that learn at a fifth of the rate.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, path: Path, hidden: Collection[str] = (), slow: str | None = None
    ) -> None:
        self.model, self.plan, self.path = model, plan, path
        self.step = 0
        self.seconds = 0.0
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        groups: list[dict[str, Any]] = []
        for pace, chosen in ((1.0, False), (SLOW, True)):
            plain = [each for name, each in trained.items() if name not in hidden and _begins(name, slow) == chosen]
            for matrices, decay in ((True, plan.weight_decay), (False, 0.0)):
                own = [each for each in plain if (each.ndim > 1) == matrices]
                groups.append({"params": own, "weight_decay": decay, "pace": pace})
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.98), fused=True)
        ]
        self._matrices = [(trained[name], _as_matrix(trained[name])) for name in hidden]
        if hidden:
            between: dict[str, Any] = {"params": [matrix for _, matrix in self._matrices], "pace": 1.0}
            dtype = torch.bfloat16 if halves_pay(self._matrices[0][0].device) else torch.float32
            self.optimizers.append(Muon([between], plan.rate, plan.weight_decay, dtype))
        self.average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        if path.exists():
            self._load(torch.load(path, map_location="cpu", weights_only=True))

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, tensor in self.average.items():
            tensor.copy_(state["average"][name])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the state."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "average": self.average,
            "step": self.step,
            "seconds": self.seconds,
        }
        save_state(self.path, state)

    def advance(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["pace"] * self.plan.rate_at(self.step)
        self.model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for parameter, matrix in self._matrices:
            matrix.grad = None if parameter.grad is None else parameter.grad.view(matrix.shape)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        decay = min(self.plan.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                self.average[name].lerp_(tensor, 1 - decay)

    def finish(self, loss_of: Loss, test: Loss | None = None, stop_after: int | None = None) -> None:
        """Take the steps that are left.

        Args:
            loss_of: of a step.
            test: the same of data that is not learned: a training that learns its data by heart shows here alone.
            stop_after: end after so many steps of this call, with the state saved.

        Raises:
            Stopped: a signal asked for the end.
        """
        last = self.plan.steps if stop_after is None else min(self.plan.steps, self.step + stop_after)
        saved = reported = began = time.monotonic()
        tested = -math.inf
        found: list[dict[str, float]] = []
        with _signals() as asked:
            while self.step < last and not asked():
                loss, figures = loss_of(self.step)
                if not math.isfinite(loss.item()):
                    raise FloatingPointError(f"the loss of step {self.step} is not finite")
                self.advance(loss)
                found.append(figures)
                now = time.monotonic()
                self.seconds += now - began
                began = now
                if now - reported > REPORT_SECONDS:
                    self._report(f"{self.seconds:.0f} s", found)
                    reported, found = now, []
                if test is not None and now - tested > TEST_SECONDS:
                    self._test(test)
                    tested = time.monotonic()
                if now - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.monotonic()
            self.save()
            if asked():
                raise Stopped
            if test is not None:
                self._test(test)

    @torch.no_grad()
    def _test(self, test: Loss) -> None:
        self._report("not learned:", [test(step)[1] for step in range(TEST_STEPS)])

    def _report(self, what: str, found: Sequence[Mapping[str, float]]) -> None:
        """Print the means of figures."""
        means = "  ".join(f"{name} {sum(each[name] for each in found) / len(found):.3f}" for name in found[0])
        print(f"{self.path.stem} step {self.step}/{self.plan.steps}  {what}  {means}", flush=True)


def _as_matrix(parameter: nn.Parameter) -> nn.Parameter:
    """The same weights as a matrix; they share their memory."""
    return parameter if parameter.ndim == 2 else nn.Parameter(parameter.data.view(len(parameter), -1))


def _begins(name: str, start: str | None) -> bool:
    return start is not None and name.startswith(start)


def halves_pay(device: torch.device) -> bool:
    """Whether products in half precision are faster: on GPUs, and on processors with instructions for them."""
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()


def averaged(path: Path) -> dict[str, Tensor]:
    """The averaged weights of a run."""
    average: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["average"]
    return average


def generator_of(seed: int, step: int) -> torch.Generator:
    """The source of all chance in a step."""
    return torch.Generator().manual_seed((seed << 32) + step)


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Within it, SIGTERM and SIGINT only note the wish to end."""
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        asked = True
        print("Stopping after this step ...", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
