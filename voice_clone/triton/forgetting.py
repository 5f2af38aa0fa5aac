"""Requests by which the talkers and code2wavs of all families forget deleted voices, and their handler.

in    forget  STRING [1]  instead of all else: JSON, a list of voices as speaker_cache calls them; it may be empty; or
                          {"digest": true}
out   info    STRING [1]  JSON {"entries", "bytes", "voices": those that are left}, "resting": true of a model at rest,
                          and after the latter "digest": see `synthesizer`, if it is known yet

speaker_cache sends this request before it answers a delete (`ForgetRequests`). A model that is loading gets no
requests, but may have read the voice from the store already. So it reads the store once more when it serves
(`ForgetHandler`).
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.lru_cache import CacheUsage, LRUCache

if TYPE_CHECKING:
    from voice_clone.triton.request import Request
    from voice_clone.triton.responder import Responder

log = logging.getLogger(__name__)

STAGES = ("talker", "code2wav")
PATIENCE = 1.0  # seconds that a delete waits for the models; slower ones get the request all the same
PAUSE = 1.0  # seconds before the request is repeated to a model that failed


class _Order(NamedTuple):
    voices: Collection[str]
    digest: bool
    done: Future[Mapping[str, Any] | None]


class ForgetRequests:
    """The `OtherProcesses` of speaker_cache: the talkers and code2wavs that keep what they computed of voices.

    Each model gets its requests from a thread of its own, so that none waits for another one. A model that is not
    loaded keeps nothing, and one that is loading checks the store itself (`ForgetHandler`). While the server loads its
    models, other servers of a fleet may delete voices: these requests wait until it is ready.

    Args:
        repository: the folder of the models.
        ask: makes a model forget these voices, and returns what it keeps, with its digest or without; raises
            Unsupported if it is not loaded.
        ready: set when the server has loaded all of its models. Before that Triton refuses each call as it does when it
            stops, after which this process would make no others.
    """

    def __init__(
        self, repository: Path, ask: Callable[[str, Collection[str], bool], Mapping[str, Any]], ready: threading.Event
    ) -> None:
        self._repository = repository
        self._ask = ask
        self._lock = threading.Lock()
        self._models: dict[str, queue.SimpleQueue[_Order | None]] = {}
        self._ready = ready
        self._closing = threading.Event()

    def forget(self, voices: Collection[str]) -> None:
        for model, kept in self._ask_all(voices).items():
            if kept is None and self._ready.is_set():
                log.warning("%s has not confirmed yet that it forgot a voice", model)

    def kept(self, digests: bool) -> Mapping[str, Mapping[str, Any] | None]:
        """See `OtherProcesses`. For each model that is loaded; None if it did not answer in time."""
        answers = self._ask_all((), digests)
        return {
            model: None if kept is None else {**kept, "voices": len(kept["voices"])}
            for model, kept in answers.items()
            if kept is None or kept
        }

    def close(self) -> None:
        self._closing.set()
        self._ready.set()
        with self._lock:
            for orders in self._models.values():
                orders.put(None)

    def _ask_all(self, voices: Collection[str], digest: bool = False) -> dict[str, Mapping[str, Any] | None]:
        """The answers of all models, empty for one that is not loaded; None: there was none in time, or none yet."""
        done: dict[str, Future[Mapping[str, Any] | None]] = {}
        for path in sorted(path for stage in STAGES for path in self._repository.glob(f"*_{stage}")):
            done[path.name] = Future()
            self._of(path.name).put(_Order(voices, digest, done[path.name]))
        until = time.monotonic() + (PATIENCE if self._ready.is_set() else 0.0)
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
                threading.Thread(target=self._run, args=(model,), name=f"forget {model}", daemon=True).start()
            return self._models[model]

    def _run(self, model: str) -> None:
        orders = self._models[model]
        self._ready.wait()
        while (order := orders.get()) is not None:
            while not self._closing.is_set():
                try:
                    answer = self._ask(model, order.voices, order.digest)
                except Unsupported:
                    answer = {}
                except Exception as error:
                    log.error("%s did not take the request to forget a voice: %s", model, error)
                    if not order.voices:  # nothing to forget: only a question
                        order.done.set_result(None)
                        break
                    self._closing.wait(PAUSE)
                    continue
                order.done.set_result(answer)
                break


def answer_at_rest(request: Request, responder: Responder, digest: Callable[[], str | None]) -> bool:
    """As `ForgetHandler.answer` of a model that keeps nothing because it rests."""
    return _answer(request, responder, _forget_at_rest, digest, resting=True)


def _forget_at_rest(voices: Collection[str]) -> CacheUsage:
    if voices:
        LRUCache.forget_at_rest()
    return CacheUsage(0, 0, frozenset())


def _answer(
    request: Request,
    responder: Responder,
    forget: Callable[[Collection[str]], CacheUsage],
    digest: Callable[[], str | None],
    **more: Any,
) -> bool:
    text = request.text("forget")
    if text is None:
        return False
    try:
        voices = json.loads(text)
    except (ValueError, RecursionError):
        voices = None
    if asks_digest := voices == {"digest": True}:
        voices = []
    if not isinstance(voices, list) or not all(isinstance(voice, str) for voice in voices):
        raise InvalidArgument("`forget` must be a list of texts in JSON")
    kept = forget(voices)
    left = {"entries": kept.entries, "bytes": kept.nbytes, "voices": sorted(kept.voices), **more}
    if asks_digest and (known := digest()) is not None:
        left["digest"] = known
    responder.send({"info": json.dumps(left)}, final=True)
    return True


CHECK_AFTER = 1.0  # seconds after the load: by then Triton sends requests to this process


class ForgetHandler:
    """What one model keeps of voices.

    Args:
        forget: drops what was computed of voices, and answers what is left; thread-safe.
        living: all voices in the store, by the `voice` of `SpeakerRecord.origin`.
        digest: of what this model makes its sound with; None while it is not known.
    """

    def __init__(
        self,
        forget: Callable[[Collection[str]], CacheUsage],
        living: Callable[[], Collection[str]],
        digest: Callable[[], str | None],
    ) -> None:
        self._forget = forget
        self._living = living
        self._digest = digest
        self._timer = threading.Timer(CHECK_AFTER, self._check_store)
        self._timer.daemon = True
        self._timer.start()

    def answer(self, request: Request, responder: Responder) -> bool:
        """Answer the request if it is one to forget voices; return whether it is.

        Raises:
            InvalidArgument: it does not list voices.
        """
        return _answer(request, responder, self._forget, self._digest)

    def close(self) -> None:
        """Stop the check after the load."""
        self._timer.cancel()
        self._timer.join()

    def _check_store(self) -> None:
        gone = {voice for voice in self._forget(()).voices if voice.isdigit()}
        if not gone:
            return
        try:
            gone.difference_update(self._living())
        except Exception:
            log.exception("the voice store could not be read: all that was restored from it is dropped")
        self._forget(gone)
