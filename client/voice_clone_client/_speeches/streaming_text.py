"""A speech of the synchronous client whose text is written while it is spoken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from .._servers.blocking import Call
from ..errors import InvalidArgument, Overloaded, VoiceCloneError
from ..types import Chunk
from . import appends
from .speech import Speech


class StreamingTextSpeech(Speech):
    """As `Speech`. An error of the text's iterator stops the speech and is raised with the next chunk.

    Two threads work while the text is written: one waits for the iterator, the other sends what came.

    Args:
        call: of the speech.
        began: when it was asked for, on `time.monotonic`.
        text: its pieces.
        pieces: collects them.
        timeout: seconds for the answer to a piece.
        family: that speaks.
    """

    def __init__(
        self,
        call: Call,
        began: float,
        text: Iterable[str],
        pieces: appends.Pieces,
        timeout: float | None,
        family: str,
        require_whole: bool,
        mark: str | None,
    ) -> None:
        super().__init__(call, began, require_whole, mark)
        self._timeout = timeout
        self._pieces = pieces
        self._written = threading.Condition()
        self._over = False  # no more text is wanted
        self._failure: BaseException | None = None
        for work in (lambda: self._read(text), lambda: self._send(family)):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def __next__(self) -> Chunk:
        try:
            return super().__next__()
        except BaseException as error:
            self._stop_text()
            if self._failure is not None and not isinstance(error, StopIteration):
                self._progress.fail(self._failure)
                raise self._failure from None
            raise

    def close(self) -> None:
        """See `Speech.close`. A thread that waits for the text's iterator ends when that has a piece or its end."""
        self._stop_text()
        super().close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            if not self._over:
                self._failure = error
                self._call.cancel()
            self._stop_text()

    def _read(self, text: Iterable[str]) -> None:
        for piece in text:
            if not isinstance(piece, str):
                raise InvalidArgument(f"a piece of text must be a string, not {type(piece).__name__}")
            with self._written:
                if self._over:
                    return
                self._pieces.write(piece)
                self._written.notify_all()
        with self._written:
            self._pieces.end()
            self._written.notify_all()

    def _send(self, family: str) -> None:
        taken = True
        while taken and not self._pieces.done:
            with self._written:
                self._written.wait_for(lambda: self._over or self._pieces.waiting)
                if self._over:
                    return
                request = self._pieces.next(family)
            taken = self._answer(request)
        self._stop_text()

    def _answer(self, request: Any) -> bool:
        """Whether more text is taken after this piece, which is sent until the server has room for it."""
        while not self._over:
            try:
                messages = self._call.beside(request, self._timeout)
                answers = [appends.still_taken(message) for message in messages]
                return all(answers)
            except grpc.RpcError as error:
                raise self._call.error_of(error) from None
            except Overloaded:
                time.sleep(appends.RETRY_SECONDS)
            except VoiceCloneError:
                if self._reader.finished:
                    return False
                raise
        return False

    def _stop_text(self) -> None:
        with self._written:
            self._over = True
            self._written.notify_all()
