"""How a client waits: in threads, or in the tasks of an event loop. All else of both clients is written once.

It is written as coroutines that wait by a backend alone. What they await of `THREADS` blocks the thread until it is
there, so they never suspend, and `now` runs them to their end: without an event loop, and without a further thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent import futures
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from .errors import ConnectionFailed, from_status

END_SECONDS = 2.0  # the server ends a stream within this time after its last message
_HERE = "Locally cancelled by application!"  # grpc's words for a call that this process has cancelled

T = TypeVar("T")
Job = asyncio.Task[T] | futures.Future[T]
"""Work in the background."""


def now(work: Awaitable[T]) -> T:
    """Run a coroutine that waits by `THREADS` alone, and return its result."""
    steps: Any = work
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise RuntimeError("a coroutine of a blocking client has waited for an event loop")


def iterated(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate an asynchronous generator that waits by `THREADS` alone."""
    try:
        while True:
            yield now(anext(items))
    except StopAsyncIteration:
        return
    finally:
        now(items.aclose())  # type: ignore[attr-defined]


async def each(items: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
    """Iterate either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class Changes(ABC):
    """Says that something has changed. In its `with` block no other thread sees or changes it."""

    @abstractmethod
    def __enter__(self) -> Any: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    async def wait(self) -> None:
        """Wait for the next change, in the block."""

    @abstractmethod
    def notify_all(self) -> None:
        """Wake all that wait, in the block."""

    async def wait_for(self, there: Callable[[], bool]) -> None:
        """Wait until it is there, in the block."""
        while not there():
            await self.wait()


class Backend(ABC):
    """How a client waits."""

    grpc: Any
    """The module that makes its channels."""

    @abstractmethod
    def start(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        """Start work in the background, in a copy of the current context. Only who asks for its result gets its
        error."""

    @abstractmethod
    def begin(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        """Begin work that a function without `await` needs. A thread does it at once, and raises its error here."""

    @abstractmethod
    async def wait(self, job: Job[Any], seconds: float | None = None) -> bool:
        """Wait until a job is done. Returns whether it is."""

    @abstractmethod
    async def result(self, job: Job[T]) -> T:
        """Wait for the result of a job. A task that is cancelled meanwhile cancels the job, too."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait so long."""

    @abstractmethod
    async def run(self, function: Callable[[], T]) -> T:
        """Run a function that blocks."""

    @abstractmethod
    def changes(self) -> Changes:
        """Return a new one."""

    @abstractmethod
    async def answer(self, method: Any, request: Any, timeout: float | None, metadata: Any) -> Any:
        """Ask a method of a stub that has one answer.

        Raises:
            ConnectionFailed: the server has cancelled the call of a task. gRPC raises for it what a cancelled task
                raises.
            grpc.RpcError, asyncio.CancelledError
        """

    @abstractmethod
    async def next(self, call: Any) -> Any:
        """Wait for the next message of a stream. Raises: as `answer`, StopAsyncIteration."""

    @abstractmethod
    async def let_end(self, call: Any) -> None:
        """Wait for the end of a stream after its last message, and cancel it only if it does not end.

        A stream that is cancelled close to its end keeps its model loaded (fault: late-cancel), and the server then
        waits for that model when it stops.
        """

    @abstractmethod
    def at_end(self, call: Any, function: Callable[[], None]) -> None:
        """Call a function when a stream is over, perhaps at once."""

    @abstractmethod
    async def close(self, channel: Any) -> None:
        """Close a channel."""


class Once(Generic[T]):
    """Work for which all that need it wait together. That one of them is cancelled does not end it."""

    def __init__(self, backend: Backend, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._backend, self._work = backend, work
        self._lock = threading.Lock()
        self._job: Job[T] | None = None

    def begin(self, again: bool = True) -> Job[T]:
        """Return the job. It is a new one if there is none; or, with `again`, if the last one is done, or else if it
        has failed."""
        with self._lock:
            job = self._job
            if job is None or (job.done() and (again or job.cancelled() or job.exception() is not None)):
                job = self._job = self._backend.start(self._work())
            return job

    def cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()


class _Threads(Backend):
    grpc = grpc

    def start(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        future: futures.Future[T] = futures.Future()
        future.set_running_or_notify_cancel()  # from now on a cancel has no effect

        def run() -> None:
            try:
                future.set_result(now(work))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
        return future

    def begin(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        future: futures.Future[T] = futures.Future()
        future.set_result(now(work))
        return future

    async def wait(self, job: Job[Any], seconds: float | None = None) -> bool:
        assert isinstance(job, futures.Future)
        return bool(futures.wait((job,), seconds).done)

    async def result(self, job: Job[T]) -> T:
        return job.result()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, function: Callable[[], T]) -> T:
        return function()

    def changes(self) -> Changes:
        return _Condition()

    async def answer(self, method: Any, request: Any, timeout: float | None, metadata: Any) -> Any:
        return method(request, timeout=timeout, metadata=metadata)

    async def next(self, call: Any) -> Any:
        try:
            return next(call)
        except StopIteration:
            raise StopAsyncIteration from None

    async def let_end(self, call: Any) -> None:
        timer = threading.Timer(END_SECONDS, call.cancel)
        timer.start()
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
        timer.cancel()

    def at_end(self, call: Any, function: Callable[[], None]) -> None:
        if not call.add_callback(function):
            function()

    async def close(self, channel: Any) -> None:
        channel.close()


class _Condition(Changes):
    def __init__(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> Any:
        return self._condition.__enter__()

    def __exit__(self, *error: object) -> None:
        self._condition.__exit__(None, None, None)

    async def wait(self) -> None:
        self._condition.wait()

    def notify_all(self) -> None:
        self._condition.notify_all()


class _EventLoop(Backend):
    grpc = grpc.aio

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # an event loop keeps none alive

    def start(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def begin(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        return self.start(work)

    async def wait(self, job: Job[Any], seconds: float | None = None) -> bool:
        assert isinstance(job, asyncio.Task)
        return bool((await asyncio.wait((job,), timeout=seconds))[0])

    async def result(self, job: Job[T]) -> T:
        assert isinstance(job, asyncio.Task)
        return await job

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    def changes(self) -> Changes:
        return Bell()

    async def answer(self, method: Any, request: Any, timeout: float | None, metadata: Any) -> Any:
        call = method(request, timeout=timeout, metadata=metadata)
        return await _answered(call, call)

    async def next(self, call: Any) -> Any:
        return await _answered(call, anext(aiter(call)))

    async def let_end(self, call: Any) -> None:
        async def rest() -> None:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    await self.next(call)

        try:
            await asyncio.wait_for(rest(), END_SECONDS)
        except (grpc.RpcError, ConnectionFailed, asyncio.TimeoutError):
            call.cancel()

    def at_end(self, call: Any, function: Callable[[], None]) -> None:
        call.add_done_callback(lambda call: function())

    async def close(self, channel: Any) -> None:
        await channel.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio does not log it if no other task awaits it


class Bell(Changes):
    """Changes that the tasks of one event loop see."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    async def wait(self) -> None:
        await self._event.wait()

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


def is_cancelled() -> bool:
    """Return whether the current task was cancelled. Python 3.10 does not know it: always False.

    If not, a CancelledError comes from a call that was cancelled.
    """
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


async def _answered(call: Any, answer: Awaitable[T]) -> T:
    try:
        return await answer
    except asyncio.CancelledError:
        if not is_cancelled() and call.done() and (details := await call.details()) != _HERE:
            raise from_status("CANCELLED", details or "") from None
        raise


THREADS: Backend = _Threads()
EVENT_LOOP: Backend = _EventLoop()
