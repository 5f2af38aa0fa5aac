"""The rest of a model: after minutes without work it gives its memory back, and the next request loads it again.

A model at rest stays loaded for Triton: it is ready, and answers what needs no network, such as which voices it keeps.
The request that wakes it waits until it has loaded what it gave back, and so do those that come meanwhile. It gives
back networks with their packed weights, keys and values of streams and voices, graphs, and what torch and the C library
keep of freed memory. A GPU's context stays, because only the end of the process frees that. So do the modules in
memory.

The files of a checkpoint may have been replaced meanwhile. Then the other models of its family still have the old ones,
and their parts would not fit. So the model does not wake up until the server is started again. A file that is new does
not count: it may be no part of the model.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from voice_clone.checkpoint_folder import files_below
from voice_clone.errors import CheckpointError, Overloaded
from voice_clone.gpu import Work, log_failure
from voice_clone.metrics import Series
from voice_clone.model_start import loaded, trim
from voice_clone.native.thread_pool import computing_threads, release_arguments, use_threads

T = TypeVar("T")

LOOKS = 20  # in the seconds after which a model rests
LONGEST = 5.0  # seconds between two looks

log = logging.getLogger(__name__)


class Rest:
    """Loads what a model gives back at rest: on construction, and whenever it is wanted after a rest. Thread-safe.

    Args:
        load: loads, and keeps what it loads as attributes of the model. What it raises, the constructor raises.
        attributes: of the model. Those that `load` added are closed at rest if they have a `close`, the last one first,
            and dropped.
        busy: whether the model works, though it is in no `run` and no request is open.
        pending: whether a request is open. The model does not rest then, but it is no work.
        seconds: without work after which the model rests; 0: it never does.
        folder: of the checkpoint; None: there is none.
        wakes: counts how often the model was loaded again.
        clock: seconds, monotonic.

    Attributes:
        awake: whether everything is loaded.
    """

    def __init__(
        self,
        load: Work,
        attributes: dict[str, Any],
        *,
        busy: Callable[[], bool],
        pending: Callable[[], bool] = lambda: False,
        seconds: float = 0.0,
        folder: Path | None = None,
        wakes: Series | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._attributes, self._busy, self._pending = load, attributes, busy, pending
        self._seconds, self._folder, self._wakes, self._clock = seconds, folder, wakes, clock
        self._lock = threading.Lock()
        self._running = 0  # calls of `run`
        self._added: list[str] = []
        self._threads = computing_threads()
        checked = files_below(folder) if folder is not None and seconds else ()
        self._files = {path: _state(path) for path in checked if path.is_file()}  # a link may lead nowhere
        self.awake = False
        self._fill()
        self._worked = clock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        if seconds:
            self._thread.start()

    def run(self, work: Callable[[], T], *, needs_nothing: bool = False) -> T:
        """Do some work of the model, which is awake meanwhile.

        Args:
            needs_nothing: the work can be done at rest. It does not wake the model, and does not count as work.

        Raises:
            CheckpointError: files of the checkpoint have changed, or cannot be read.
            Overloaded: the model cannot be loaded now; the next call tries again.
            Exception: what `work` raises.
        """
        with self._lock:
            if needs_nothing:
                return work()
            if not self.awake:
                self._wake()
            self._running += 1
        try:
            return work()
        finally:
            with self._lock:
                self._running -= 1
                self._worked = self._clock()

    def when_awake(self, work: Work) -> None:
        """Do some work now if the model is awake, and none if it rests. It does not go to rest meanwhile."""
        with self._lock:
            if not self.awake:
                return
            self._running += 1
        try:
            work()
        finally:
            with self._lock:
                self._running -= 1

    def look(self) -> None:
        """Go to rest if the model had no work for long enough; its thread calls this again and again."""
        with self._lock:
            if self._running or (self.awake and self._busy()):
                self._worked = self._clock()
            elif self.awake and self._clock() - self._worked >= self._seconds and not self._pending():
                self._empty()
                log.info("rests, after %g s without work", self._seconds)

    def close(self) -> None:
        """Drop everything; no request is open any more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            self._drop()

    def _run(self) -> None:
        while not self._closing.wait(min(self._seconds / LOOKS, LONGEST)):
            try:
                self.look()
            except Exception as error:
                log_failure(log, error, "this model could not go to rest")

    def _wake(self) -> None:
        self._check_files()
        began = self._clock()
        if not self._filled():
            self._empty()  # behind the exception, which holds what was loaded so far
            raise Overloaded(
                "this model was at rest and could not be loaded again; the server's log says why; try again later"
            )
        loaded()
        trim()
        if self._wakes is not None:
            self._wakes.add()
        log.info("awake again, after %.2f s", self._clock() - began)

    def _filled(self) -> bool:
        try:
            self._fill()
        except Exception as error:
            log_failure(log, error, "loading again failed")
            return False
        return True

    def _fill(self) -> None:
        before = set(self._attributes)
        use_threads(self._threads)  # native code leaves one to torch, which loads with all of them
        try:
            self._load()
        finally:
            self._added = [name for name in self._attributes if name not in before]
        self.awake = True

    def _empty(self) -> None:
        self._drop()
        release_arguments()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        trim()

    def _drop(self) -> None:
        self.awake = False
        while self._added:
            part = self._attributes.pop(self._added.pop(), None)
            try:
                getattr(part, "close", lambda: None)()
            except Exception as error:
                log_failure(log, error, "a part of the model could not be closed")

    def _check_files(self) -> None:
        """Raises: CheckpointError: files that were there at the load have changed, or cannot be read."""
        try:
            changed = any(_state(path) != state for path, state in self._files.items())
        except OSError as error:
            log.error("a file of the checkpoint cannot be read: %s", error)
            raise CheckpointError(
                "files of the checkpoint cannot be read; this model works again when they are back"
            ) from None
        if changed:
            raise CheckpointError(
                "the files of the checkpoint have changed since the server loaded it; start the server again"
            )


def _state(path: Path) -> tuple[int, int, int]:
    """Of a file, what changes with its contents."""
    status = path.stat()
    return status.st_size, status.st_ino, status.st_mtime_ns
