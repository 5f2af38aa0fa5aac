"""The blocking client: `AsyncClient`, whose coroutines wait in the thread that calls them; see `backends`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from .aio import AsyncClient
from .backends import THREADS, iterated, now
from .bundles import ExportedBundle
from .speeches.speech import Speech

if TYPE_CHECKING:
    from typing_extensions import Self

    from .long_text.long_speech import AsyncLongSpeech, LongSpeech
    from .word_times import AsyncWordTimes, BlockingWordTimes

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", bound="Client")


class _InThreads(AsyncClient):
    _backend = THREADS


def _waits(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """The blocking form of a coroutine function."""
    return _with(now, method)


def _with(wait: Callable[[S], R], method: Callable[Concatenate[Any, P], S]) -> Callable[Concatenate[Any, P], R]:
    """A method of the same arguments, whose result `wait` makes of that of `method`."""

    @functools.wraps(method)
    def blocking(self: Any, /, *args: P.args, **more: P.kwargs) -> R:
        return wait(method(self._client, *args, **more))

    blocking.__qualname__ = f"Client.{method.__name__}"
    return blocking


def _for_others(method: Callable[Concatenate[Any, P], AsyncClient]) -> Callable[Concatenate[C, P], C]:
    """A method that returns its client with another `AsyncClient`, made by `method`."""

    @functools.wraps(method)
    def copied(self: C, /, *args: P.args, **more: P.kwargs) -> C:
        other = copy(self)
        other._client = method(self._client, *args, **more)
        return other

    copied.__qualname__ = f"Client.{method.__name__}"
    return copied


def _long_speech(speech: AsyncLongSpeech) -> LongSpeech:
    from .long_text.long_speech import LongSpeech

    return LongSpeech(speech)


def _word_times(times: AsyncWordTimes) -> BlockingWordTimes:
    from .word_times import BlockingWordTimes

    return BlockingWordTimes(times)


def _takes(
    arguments: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a function the signature of another one."""
    return functools.wraps(arguments)


class Client:
    """Voices and speech of one server, or of several that have the same voices. Thread-safe.

    Its arguments are those of `AsyncClient`, whose docstring says what they are. Each method waits in the thread that
    calls it; with `speak_stream` a further thread iterates the text.
    """

    @_takes(AsyncClient.__init__)
    def __init__(self, *args: Any, **more: Any) -> None:
        self._client = _InThreads(*args, **more)

    @property
    def owner(self) -> str | None:
        """The owner for whom the client acts; None is the operator."""
        return self._client.owner

    _client: AsyncClient
    acting_for = _for_others(AsyncClient.acting_for)
    speak = _with(Speech, AsyncClient.speak)
    speak_long = _with(_long_speech, AsyncClient.speak_long)
    speak_stream = _with(Speech, AsyncClient.speak_stream)
    word_times = _with(_word_times, AsyncClient.word_times)
    design = _waits(AsyncClient.design)
    keep = _waits(AsyncClient.keep)
    upload = _waits(AsyncClient.upload)
    list = _waits(AsyncClient.list)
    get = _waits(AsyncClient.get)
    delete = _waits(AsyncClient.delete)
    prepare = _waits(AsyncClient.prepare)
    speaker_embedding = _waits(AsyncClient.speaker_embedding)
    direction = _waits(AsyncClient.direction)
    presets = _waits(AsyncClient.presets)
    record_consent = _waits(AsyncClient.record_consent)
    consents = _waits(AsyncClient.consents)
    consent = _waits(AsyncClient.consent)
    delete_consent = _waits(AsyncClient.delete_consent)
    keep_dictionary = _waits(AsyncClient.keep_dictionary)
    dictionaries = _waits(AsyncClient.dictionaries)
    dictionary = _waits(AsyncClient.dictionary)
    delete_dictionary = _waits(AsyncClient.delete_dictionary)
    keep_loudness = _waits(AsyncClient.keep_loudness)
    aliases = _waits(AsyncClient.aliases)
    set_alias = _waits(AsyncClient.set_alias)
    remove_alias = _waits(AsyncClient.remove_alias)
    family = _waits(AsyncClient.family)
    families = _waits(AsyncClient.families)
    models = _waits(AsyncClient.models)
    ready = _waits(AsyncClient.ready)
    stats = _waits(AsyncClient.stats)
    detect = _waits(AsyncClient.detect)
    transcribe = _waits(AsyncClient.transcribe)
    export = _waits(AsyncClient.export)
    export_part = _waits(AsyncClient.export_part)
    import_ = _waits(AsyncClient.import_)
    import_parts = _waits(AsyncClient.import_parts)
    close = _waits(AsyncClient.close)

    def export_parts(self, name: str | None = None, *, include_audio: bool = True) -> Iterator[bytes]:
        """See `AsyncClient.export_parts`."""
        return iterated(self._client.export_parts(name, include_audio=include_audio))

    def forget_export(self, bundle: ExportedBundle) -> None:
        """See `AsyncClient.forget_export`."""
        self._client.forget_export(bundle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
