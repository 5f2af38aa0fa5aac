"""The streams whose text is still written: their pieces in order, the answers to them, and when a text is closed.

A piece has an index. It is taken when all before it are; one that comes twice is taken once. Each is answered when it
is taken or refused, or its stream has ended. A piece may come before its stream, whose voice can take seconds, and
waits for it; if the stream is refused, so is the piece. A stream that waits for text longer than allowed is closed and
speaks what it has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from voice_clone.batching.engine import Engine
from voice_clone.errors import InvalidArgument, Overloaded, StreamNotFound, VoiceCloneError
from voice_clone.speech import NO_WORDS
from voice_clone.stages.protocols import OpenText
from voice_clone.turns import may_have_more

if TYPE_CHECKING:  # at run time it brings Triton, which exists only inside a model's process
    from voice_clone.triton.responder import Responder

log = logging.getLogger(__name__)

MAX_PIECE = 4096  # characters
MAX_PIECES = 100_000  # of a stream


Info = dict[str, Any]
Outcomes: TypeAlias = "list[tuple[Responder, Info | VoiceCloneError]]"


@dataclass(frozen=True)
class Piece:
    """A piece of a text, and whether it is the last one.

    Raises:
        InvalidArgument: on construction, if it is too long or has no index.
    """

    index: Any
    text: str
    last: bool

    def __post_init__(self) -> None:
        if not isinstance(self.index, int) or not 0 <= self.index < MAX_PIECES:
            raise InvalidArgument(f"`index` must be the number of the piece: 0, 1, 2, ..., below {MAX_PIECES}")
        if len(self.text) > MAX_PIECE:
            raise InvalidArgument(f"a piece has {len(self.text)} characters; at most {MAX_PIECE} are allowed, split it")

    @property
    def digest(self) -> bytes:
        """Of the text, and whether it is the last one."""
        return hashlib.blake2b(self.text.encode() + bytes([self.last]), digest_size=16).digest()


def send(answers: Outcomes) -> None:
    """Give answers that have been found under a lock."""
    for answer, outcome in answers:
        if isinstance(outcome, VoiceCloneError):
            answer.fail(outcome)
            continue
        try:
            answer.send({"info": json.dumps(outcome)}, final=True)
        except Exception as error:
            log.error("a piece of text could not be answered", exc_info=error)
            answer.fail(error)


REFUSED_SECONDS = 60.0
MAX_REFUSED = 1024  # streams; the oldest one goes


class Refusals:
    """The errors of refused streams, by id, kept for a minute. Not thread-safe.

    An append to the text of a refused stream gets that error at once.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._errors: dict[str, tuple[float, VoiceCloneError]] = {}  # when and why

    def add(self, stream_id: str, error: VoiceCloneError) -> None:
        """A stream was refused."""
        self.drop(stream_id)
        if len(self._errors) >= MAX_REFUSED:
            self.drop(next(iter(self._errors)))
        self._errors[stream_id] = self._clock(), error

    def drop(self, stream_id: str) -> None:
        """It has begun after all."""
        self._errors.pop(stream_id, None)

    def check(self, stream_id: str) -> None:
        """Raises: the error of a stream that was refused."""
        if stream_id in self._errors:
            error = self._errors[stream_id][1]
            raise type(error)(*error.args)

    def sweep(self) -> None:
        """Forget the old ones."""
        now = self._clock()
        self._errors = {key: entry for key, entry in self._errors.items() if now - entry[0] <= REFUSED_SECONDS}

    def __len__(self) -> int:
        return len(self._errors)


MAX_UNREAD = 1024  # tokens that the talker has not read yet
MAX_GAP = 64  # pieces that may be missing before one
MAX_EARLY = 1024  # pieces of all callers that wait for their streams
EARLY_SECONDS = 30.0  # the longest time that they wait
KEPT_SECONDS = 60.0  # how long an ended stream is remembered
SWEEP_SECONDS = 0.25


@dataclass(eq=False)
class _Stream:
    id: str
    text: OpenText
    taken: list[bytes] = field(default_factory=list)  # digests of the pieces
    held: dict[int, list[tuple[Piece, Responder]]] = field(default_factory=dict)  # pieces behind a gap, by index
    caller: str = ""  # whose it is
    written: float = 0.0  # when text came last
    closed: str | None = None  # why no text can come any more
    reason: str | None = None  # how it ended
    ended: float = 0.0  # when
    frames: int = 0  # when it ended


class _Early(NamedTuple):
    """A piece without a stream."""

    until: float  # it waits
    piece: Piece
    answer: Responder
    caller: str


class TextStreams:
    """The streams of one talker whose text is still written. Thread-safe.

    Args:
        engine: runs the streams.
        most_open: streams of one caller whose text may be open at once. What they leave of the slots is for its streams
            that have their whole text; for those of others the engine has turns.
        idle_seconds: how long a stream waits for text.
        clock: seconds, monotonic; the engine's.
        went_on: when the server last stood still, on that clock: no text could come until then.
        part_characters: the longest text that the model speaks well; writers get it with each answer. None: unknown.
    """

    def __init__(
        self,
        engine: Engine[Any],
        most_open: int,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        went_on: Callable[[], float] = lambda: 0.0,
        part_characters: int | None = None,
    ) -> None:
        self._engine = engine
        self._went_on = went_on
        self._part_characters = part_characters
        self._most_open = most_open
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._early: dict[str, list[_Early]] = {}
        self._refused = Refusals(clock)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="texts", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a text is open, or may still be asked about."""
        with self._changed:
            return bool(self._streams or self._early or self._refused)

    def open(self, stream_id: str, text: OpenText, submit: Callable[[], None], caller: str = "") -> None:
        """Begin a stream of a caller by `submit`, which gives it to the engine.

        Raises:
            InvalidArgument: the id was used before.
            Overloaded: the caller has too many open texts.
        """
        answers: Outcomes = []
        try:
            with self._changed:
                if stream_id in self._streams:
                    raise InvalidArgument(
                        "a stream of this `text_stream` is there already; every stream needs its own id"
                    )
                early = self._early.pop(stream_id, [])
                try:
                    stream = self._begin(stream_id, text, submit, caller)
                except VoiceCloneError as error:
                    answers = [(each.answer, error) for each in early]
                    self._refused.add(stream_id, error)
                    self._changed.notify()
                    raise
                self._refused.drop(stream_id)
                answers = [answer for each in early for answer in self._given(stream, each.piece, each.answer)]
                self._changed.notify()
        finally:
            send(answers)

    def append(self, stream_id: str, piece: Piece, answer: Responder, caller: str = "") -> None:
        """Take a piece of a caller's; `answer` gets what became of it."""
        with self._changed:
            stream = self._streams.get(stream_id)
            if stream is None:
                self._refused.check(stream_id)
                callers = [early.caller for waiting in self._early.values() for early in waiting]
                if self._closing or not may_have_more(callers, caller, MAX_EARLY):
                    raise Overloaded("too many pieces of text wait for their streams; try again later")
                self._early.setdefault(stream_id, []).append(
                    _Early(self._clock() + EARLY_SECONDS, piece, answer, caller)
                )
                self._changed.notify()
                return
            answers = self._given(stream, piece, answer)
        send(answers)

    def progress(self, stream_id: str, frames: int) -> Info:
        """The text of a stream so far, and what of it is read with so many frames; nothing, if its text was whole."""
        with self._changed:
            stream = self._streams.get(stream_id)
            return {} if stream is None else _progress(stream.text, frames)

    def info(self, stream_id: str) -> Info | None:
        """The answer to a piece of a stream, as things are; None if there is none with an open text."""
        with self._changed:
            stream = self._streams.get(stream_id)
            return None if stream is None else self._info(stream)

    def ended(self, stream_id: str, reason: str, frames: int) -> None:
        """A stream has ended in the engine."""
        with self._changed:
            stream = self._streams.get(stream_id)
            if stream is None:
                return
            stream.reason, stream.frames, stream.ended = reason, frames, self._clock()
            answers = self._released(stream)
        send(answers)

    def close_texts(self) -> None:
        """Close all texts, because none can come any more; their streams speak what they have."""
        with self._changed:
            for stream in self._streams.values():
                if not stream.closed and stream.reason is None:
                    self._cut(stream, "the server is shutting down")

    def close(self) -> None:
        """Close all texts, and refuse the pieces that wait."""
        self.close_texts()
        with self._changed:
            self._closing = True
            early = [each.answer for waiting in self._early.values() for each in waiting]
            self._early.clear()
            self._changed.notify()
        self._thread.join()
        send([(answer, Overloaded("the server is shutting down")) for answer in early])

    def _begin(self, stream_id: str, text: OpenText, submit: Callable[[], None], caller: str) -> _Stream:
        mine = [stream for stream in self._streams.values() if stream.caller == caller]
        if sum(not stream.closed and stream.reason is None for stream in mine) >= self._most_open:
            raise Overloaded(f"{self._most_open} texts are open already; try again later")
        stream = self._streams[stream_id] = _Stream(stream_id, text, caller=caller, written=self._clock())
        try:
            submit()
        except BaseException:
            del self._streams[stream_id]
            raise
        return stream

    def _given(self, stream: _Stream, piece: Piece, answer: Responder) -> Outcomes:
        """Take or hold a piece; returns the answers that can be given."""
        try:
            if piece.index < len(stream.taken):
                if stream.taken[piece.index] != piece.digest:
                    raise InvalidArgument(f"piece {piece.index} was another one; number the pieces 0, 1, 2, ...")
                return [(answer, self._info(stream))]
            if stream.reason is not None:
                return [(answer, self._info(stream))]
            if stream.closed:
                raise InvalidArgument(f"the text of this stream is closed: {stream.closed}")
            missing = piece.index - len(stream.taken)
            if missing > MAX_GAP:
                raise InvalidArgument(f"{missing} pieces are missing before this one; at most {MAX_GAP} may be")
            if missing:
                held = stream.held.setdefault(piece.index, [])
                if held and held[0][0] != piece:
                    raise InvalidArgument(f"piece {piece.index} of this text was another one")
                if len(held) >= MAX_GAP:
                    raise Overloaded(f"piece {piece.index} waits for those before it already")
                held.append((piece, answer))
                return []
            self._take(stream, piece)
        except VoiceCloneError as error:
            return [(answer, error)]
        answers: Outcomes = [(answer, self._info(stream))]
        for each, later in stream.held.pop(len(stream.taken), []):
            answers += self._given(stream, each, later)
        return answers + (self._released(stream) if stream.closed else [])

    def _take(self, stream: _Stream, piece: Piece) -> None:
        draft = stream.text.draft(piece.text, piece.last)
        unread = stream.text.tokens - stream.text.read(self._frames(stream))
        if len(draft) > MAX_UNREAD:
            raise InvalidArgument(f"a piece has {len(draft)} tokens; at most {MAX_UNREAD} are allowed, split it")
        if unread + len(draft) > MAX_UNREAD:
            raise Overloaded(f"{unread} tokens of the text are unread; append more when the speech has come further")
        more = stream.text.take(draft)
        stream.taken.append(piece.digest)
        stream.written = self._clock()
        if piece.last:
            stream.closed = "its last piece has come"
        if piece.last and stream.text.blank:
            self._engine.cancel(stream.id, InvalidArgument(NO_WORDS))
        else:
            self._engine.extend(stream.id, more, piece.last)

    def _cut(self, stream: _Stream, why: str) -> None:
        """Close a text whose last piece has not come."""
        stream.closed = why
        if stream.text.blank:
            self._engine.cancel(stream.id, InvalidArgument(f"`text` is blank, and it was closed: {why}"))
        else:
            self._engine.extend(stream.id, stream.text.take(stream.text.draft("", True), cut=True), True)

    def _frames(self, stream: _Stream) -> int:
        view = self._engine.look(stream.id)
        return stream.frames if view is None else view.frames

    def _info(self, stream: _Stream) -> Info:
        view = self._engine.look(stream.id)
        state = "open" if view is not None and view.live else "pending"
        state = "closed" if stream.closed else state
        info: Info = {
            "accepted": len(stream.taken) - 1,
            **_progress(stream.text, self._frames(stream)),
            "state": state if stream.reason is None else "ended",
        }
        if self._part_characters is not None:
            info["part_characters"] = self._part_characters
        return info if stream.reason is None else {**info, "finish_reason": stream.reason}

    def _released(self, stream: _Stream) -> Outcomes:
        """The answers to the pieces behind a gap, of a stream that takes no more."""
        held = [entry for entries in stream.held.values() for entry in entries]
        stream.held.clear()
        return [answered for piece, answer in held for answered in self._given(stream, piece, answer)]

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._closing:  # `close` may have come while answers were given, and then notifies no more
                    self._changed.wait(SWEEP_SECONDS if self._streams or self._early or self._refused else None)
                if self._closing:
                    return
                try:
                    answers = self._sweep(self._clock())
                except Exception:
                    log.exception("the open texts could not be looked through")
                    continue
            send(answers)

    def _sweep(self, now: float) -> Outcomes:
        answers: Outcomes = []
        for stream in list(self._streams.values()):
            if stream.reason is not None:
                if now - stream.ended > KEPT_SECONDS:
                    del self._streams[stream.id]
            elif not stream.closed:
                view = self._engine.look(stream.id)
                starved = None if view is None else view.starved_since
                if starved is not None and now - max(starved, stream.written, self._went_on()) > self._idle_seconds:
                    self._cut(stream, f"no text came for {self._idle_seconds:g} s")
                    answers += self._released(stream)
        self._refused.sweep()
        for stream_id, waiting in list(self._early.items()):
            late = [each.answer for each in waiting if each.until < now]
            answers += [(answer, StreamNotFound("there is no speech of this `text_stream`")) for answer in late]
            self._early[stream_id] = [each for each in waiting if each.until >= now]
            if not self._early[stream_id]:
                del self._early[stream_id]
        return answers


def _progress(text: OpenText, frames: int) -> Info:
    read = text.read(frames)
    first = text.before_audio
    return {"text_tokens": text.tokens, "read": read, "characters": text.characters(read), "first_audio_tokens": first}
