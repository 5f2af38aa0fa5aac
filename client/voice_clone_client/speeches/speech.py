"""A speech of the synchronous client."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import grpc
import numpy as np
from numpy.typing import NDArray

from .. import responses
from ..errors import BrokenStream, Cancelled, VoiceCloneError
from ..servers.channel import let_end
from ..types import Chunk
from .speech_base import SpeechBase


class Speech(SpeechBase, Iterator[Chunk]):
    """A speech while the server makes it: an iterator of its chunks.

    The request is sent before the first chunk is read; an error of the server is raised with the first chunk. `close`
    or the end of a `with` block stops the server's work early. A missing chunk raises `BrokenStream`, so a speech that
    was iterated to its end has all that the model made. The model may have missed the end of the text, which is rare:
    then `whole` is False and, with `require_whole`, `Incomplete` is raised after the last chunk.
    """

    def __next__(self) -> Chunk:
        try:
            return self._progress.took(self._next())
        except VoiceCloneError as error:
            self._progress.fail(error)
            raise

    def _next(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(next(self._call))
                if chunk is not None:
                    return chunk
        except StopIteration:
            self._reader.end()
            self._closed = True  # nothing is left to wait for
            raise
        except grpc.RpcError as error:
            if not self._closed:
                raise self._call.error_of(error) from None
        except (BrokenStream, responses.MarkIgnored) as error:
            self._progress.fail(error)
            self.close()
            raise
        except VoiceCloneError:
            self._let_end()
            raise
        if self._reader.finished:
            raise StopIteration
        raise Cancelled("the speech was closed before its end")

    def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end.

        Look at `whole` afterwards, or ask for `Incomplete` with `require_whole`.
        """
        samples = responses.Samples()
        for chunk in self:
            samples.add(chunk)
        return samples.all(), self._sample_rate

    def __enter__(self) -> Speech:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader.finished and not self._closed:  # the last chunk is here, perhaps not yet the stream's end
            self._let_end()
        self.close()

    def _let_end(self) -> None:
        let_end(self._call)
