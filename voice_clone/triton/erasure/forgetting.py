"""speaker_cache tells the talkers and code2wavs of all families that a voice is gone."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path
from typing import Any, NamedTuple

from voice_clone.errors import Unsupported

STAGES = ("talker", "code2wav")
PATIENCE = 1.0  # seconds that a delete waits for them; who takes longer is told nevertheless
PAUSE = 1.0  # seconds before one that failed is told again

log = logging.getLogger(__name__)


class _Order(NamedTuple):
    voices: Collection[str]
    done: Future[Mapping[str, Any] | None]


class Forgetting:
    """An `Elsewhere`: each model is told by a thread of its own, so that none waits for another one.

    A model that is not loaded keeps nothing, and one that is loading looks for itself (`kept_voices`).

    Args:
        repository: the folder of the models.
        ask: tells a model of these voices, and answers what it keeps; raises Unsupported if it is not loaded.
    """

    def __init__(self, repository: Path, ask: Callable[[str, Collection[str]], Mapping[str, Any]]) -> None:
        self._repository = repository
        self._ask = ask
        self._lock = threading.Lock()
        self._models: dict[str, queue.SimpleQueue[_Order | None]] = {}
        self._closing = threading.Event()

    def forget(self, voices: Collection[str]) -> None:
        """See `Elsewhere`."""
        for model, kept in self._tell(voices).items():
            if kept is None:
                log.warning("%s has not said yet that it dropped what it kept of a voice", model)

    def kept(self) -> Mapping[str, Mapping[str, Any] | None]:
        """See `Elsewhere`. For each model that is loaded; None if it did not answer in time."""
        told = self._tell(())
        return {
            model: None if kept is None else {**kept, "voices": len(kept["voices"])}
            for model, kept in told.items()
            if kept is None or kept
        }

    def close(self) -> None:
        """Stop telling."""
        self._closing.set()
        with self._lock:
            for orders in self._models.values():
                orders.put(None)

    def _tell(self, voices: Collection[str]) -> dict[str, Mapping[str, Any] | None]:
        """The answers of all models, empty for one that is not loaded; None: there was none in time."""
        done: dict[str, Future[Mapping[str, Any] | None]] = {}
        for path in sorted(path for stage in STAGES for path in self._repository.glob(f"*_{stage}")):
            done[path.name] = Future()
            self._of(path.name).put(_Order(voices, done[path.name]))
        until = time.monotonic() + PATIENCE
        answers: dict[str, Mapping[str, Any] | None] = {}
        for model, future in done.items():
            try:
                answers[model] = future.result(max(0.0, until - time.monotonic()))
            except NotDone:
                answers[model] = None
        return answers

    def _of(self, model: str) -> queue.SimpleQueue[_Order | None]:
        with self._lock:
            if model not in self._models:
                self._models[model] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(model,), name=f"tell {model}", daemon=True).start()
            return self._models[model]

    def _run(self, model: str) -> None:
        orders = self._models[model]
        while (order := orders.get()) is not None:
            while not self._closing.is_set():
                try:
                    answer = self._ask(model, order.voices)
                except Unsupported:
                    answer = {}
                except Exception as error:
                    log.error("%s could not be told that a voice is gone: %s", model, error)
                    if not order.voices:  # nothing to forget: it was only asked
                        order.done.set_result(None)
                        break
                    self._closing.wait(PAUSE)
                    continue
                order.done.set_result(answer)
                break
