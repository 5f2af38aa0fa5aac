"""The plan of a text, played by calls of a family's public model: what the model `text_front_end` does.

Each part of the plan is a speech of that model, whose samples stay as they are where nothing is asked. The next one is
asked for when the one before it begins.
"""

from __future__ import annotations

import contextvars
import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_client.types import Chunk
from voice_clone_sound.joined_parts import JoinedParts
from voice_clone_text.dictionary import Dictionary, Rule, Scoped
from voice_clone_text.languages import spoken_in
from voice_clone_text.normalizers import Missing
from voice_clone_text.pieces import Style
from voice_clone_text.planner import InputType, Settings, plan
from voice_clone_text.sentences import MAX_CHARACTERS, MIN_CHARACTERS, SentenceSplitter
from voice_clone_text.sequence import Part, Planned, Sequence, in_sequence
from voice_clone_text.shown import shown
from voice_clone_text.tags import MarkupError

from voice_clone.errors import InvalidArgument, Overloaded, Unsupported, from_message
from voice_clone.request_fields import SOURCES
from voice_clone.triton.calls import responses
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.stages.speech_whole import Clients, carried
from voice_clone.triton.tensors import Array, Value

SETTINGS = {
    "segments": list,
    "inline_pauses": bool,
    "speed": float,
    "pronunciations": list,
    "normalize": ("off", "on", "numbers"),
}
"""What `settings` may have, as POST /v1/audio/speech of the gateway has it. `segments` take the place of the text."""
SEGMENT = {"text": str, "voice": str, "style": str, "language": str, "speed": float, "pause_ms": int}
PRONUNCIATION = {"string_to_replace": str, "alias": str, "case_sensitive": bool, "word_boundaries": bool}
KINDS: Mapping[str, InputType] = {"auto": "auto", "text": "text", "ssml": "ssml"}
MOST_PAUSE_MS, MOST_SEGMENTS = 10_000, 1000
_OWN = ("model", "input_type", "settings", "plan_only")


class Turn(NamedTuple):
    """One of the texts."""

    planned: Planned
    language: str | None
    """Of words that the text gives no other one."""


def turns_of(request: Request, most_characters: int) -> list[Turn]:
    """What is spoken one after the other.

    Raises:
        InvalidArgument: a text is SSML, and invalid, or a setting is.
        Unsupported: numbers cannot be read here.
    """
    asked = _checked(request.json_object("settings"), SETTINGS, "the object")
    kind = KINDS.get(request.text("input_type") or "auto")
    if kind is None:
        raise InvalidArgument("`input_type` must be auto, text or ssml")
    turns = [_checked(each, SEGMENT, "a segment") for each in asked.pop("segments", ())]
    if len(turns) > MOST_SEGMENTS:
        raise InvalidArgument(f"`settings`: there are {len(turns)} segments; at most {MOST_SEGMENTS} are allowed")
    if bool(turns) == (request.text("text") is not None):
        raise InvalidArgument("give `text` or, in `settings`, segments; not both")
    turns = turns or [{"text": request.text("text")}]
    if sum(len(turn.get("text", "")) for turn in turns) > most_characters:
        raise InvalidArgument(f"`text` has more than {most_characters} characters (max_planned_characters)")
    try:
        rules = [_checked(each, PRONUNCIATION, "a pronunciation") for each in asked.pop("pronunciations", ())]
        words = [Rule(each.pop("string_to_replace", ""), each.pop("alias", ""), **each) for each in rules]
        dictionaries = [Scoped(Dictionary(words))] if words else []
        found, speed = list[Turn](), asked.pop("speed", 1.0)
        for turn in turns:
            language = turn.get("language") or request.text("language")
            style = Style(turn.get("voice"), language, clip=turn.get("style"))
            planned = plan(turn.get("text", ""), Settings(kind, style=style, dictionaries=dictionaries, **asked))
            found.append(Turn(Planned(planned, speed * turn.get("speed", 1.0), _pause_of(turn)), style.language))
        return found
    except MarkupError as error:
        raise InvalidArgument(f"`text` is no SSML: {error}") from None
    except (Missing, ModuleNotFoundError):
        message = "`settings` need damga, wetext and ahocorasick-rs, which this server was installed without"
        raise Unsupported(message) from None
    except ValueError as error:
        raise InvalidArgument(f"`settings`: {error}") from None


def shown_plans(turns: list[Turn]) -> Mapping[str, Value]:
    """The answer that has the plan, and no audio."""
    info = json.dumps(shown(turn.planned for turn in turns))
    return _outputs(Chunk(np.zeros(0, np.float32), 0, 0, True, None), 0, info)


def played(
    turns: list[Turn], request: Request, responder: Responder, family: str, clients: Clients
) -> Mapping[str, Value]:
    """Speak texts one after the other; the last chunk is not sent, but returned.

    Raises:
        InvalidArgument: they have nothing to speak, or too much silence, or a tempo is out of range.
        Unsupported: the library is missing that changes a tempo.
        VoiceCloneError: with which a speech has ended.
    """
    try:
        sequence = in_sequence(turn.planned for turn in turns)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if any(part.rate != 1.0 for part in sequence.parts) and find_spec("av") is None:
        raise Unsupported("`settings`: a speed and rates of a text need av, which this server was installed without")
    warnings = dict.fromkeys(text for turn in turns for text in turn.planned.plan.warnings)
    languages = list[str | None]()  # of each part
    for part in sequence.parts:
        language, ignored = spoken_in(part.span.style.language, turns[part.turn].language)
        languages.append(language)
        warnings |= dict.fromkeys(ignored)
    asks = [*_sentences(sequence, languages, request.number("seed"))]
    speeches: list[Asked] = []

    def ask() -> None:
        part, language, text, seed = asks[len(speeches)]
        inputs = _inputs(request, part.span.style, language, text, seed)
        speeches.append(Asked(family, inputs, _parameters(request), clients, responder.cancelled))

    joined, chunks = JoinedParts(sequence), 0
    try:
        ask()
        for number in range(len(asks)):
            for chunk in speeches[number]:
                if len(speeches) == number + 1 < len(asks):
                    ask()
                heard = joined.take(chunk)
                if len(heard.samples) or not chunks:
                    responder.send(_outputs(heard, chunks, "" if chunks else json.dumps(heard.info or {})))
                    chunks += 1
            if number + 1 == len(asks) or asks[number + 1][0] is not asks[number][0]:
                rest = joined.end()
                if len(rest.samples) and not rest.final:
                    responder.send(_outputs(rest, chunks, ""))
                    chunks += 1
            else:
                joined.go_on()
        more = {"warnings": [*warnings]} if warnings else {}
        return _outputs(rest, chunks, json.dumps({**joined.info, **more}))
    finally:
        for speech in speeches:
            speech.leave()


@dataclass
class Asked:
    """A speech of a family that is made while another is heard."""

    family: str
    inputs: Mapping[str, Value | None]
    parameters: Mapping[str, Any]
    clients: Clients
    left: Callable[[], bool]

    def __post_init__(self) -> None:
        self._unwanted = threading.Event()
        self._chunks: queue.SimpleQueue[Mapping[str, Array] | Exception | None] = queue.SimpleQueue()
        context = contextvars.copy_context()  # with the parameters that are passed on
        self._thread = threading.Thread(target=context.run, args=(self._make,), name="part", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Chunk]:
        """Its chunks. Raises: VoiceCloneError, with which it has ended."""
        final = False
        while (found := self._chunks.get()) is not None:
            if isinstance(found, Exception):
                raise found
            info = json.loads(found["info"][0] or b"{}")
            if "error" in info:
                raise from_message(str(info["error"]))
            index, final = int(found["chunk_index"][0]), bool(found["final"][0])
            yield Chunk(found["audio"], int(found["sample_rate"][0]), index, final, info or None)
        if not final:
            raise Overloaded("the speech broke off, for the server stops; ask another one, or later")

    def leave(self) -> None:
        """Stop it, if it is not over, and wait for that."""
        self._unwanted.set()
        self._thread.join()

    def _make(self) -> None:
        stream_id = uuid.uuid4().hex
        parameters = {**self.parameters, "stream_id": stream_id, "errors_in_info": True}
        try:
            with self.clients.watched(lambda: self._unwanted.is_set() or self.left(), self.family, stream_id):
                for outputs in responses(self.family, self.inputs, parameters):
                    if outputs:
                        self._chunks.put(outputs)
            self._chunks.put(None)
        except Exception as error:  # of any kind; whoever reads it raises it
            self._chunks.put(error)


def _sentences(
    sequence: Sequence, languages: list[str | None], seed: int | None
) -> Iterator[tuple[Part, str | None, str, int | None]]:
    """The speeches of the parts, with language, text and seed: a long one is spoken sentence by sentence, as by
    `speak_long`."""
    for part, language in zip(sequence.parts, languages, strict=True):
        text = part.span.text
        if len(text) <= MAX_CHARACTERS:
            yield part, language, text, seed
            continue
        found = SentenceSplitter(min_characters=MIN_CHARACTERS).feed(text, final=True)
        for index, sentence in enumerate(each for each in found if each.spoken):
            yield part, language, sentence.text, sentence_seed(seed, index)


def _inputs(
    request: Request, style: Style, language: str | None, text: str, seed: int | None
) -> dict[str, Value | None]:
    """Of the call of the public model. A voice of the text takes the place of the request's, however that is given."""
    given: dict[str, Value | None] = {name: array for name, array in request.arrays().items() if name not in _OWN}
    if style.voice is not None:
        given |= {**dict.fromkeys((*SOURCES, "reference_text", "style")), "voice": style.voice}
    if style.clip is not None:
        given["style"] = style.clip
    seeds = None if seed is None else np.array([seed], np.uint64)
    return {**given, "text": text, "language": language, "seed": seeds}


def _parameters(request: Request) -> dict[str, Any]:
    given = {name: carried(request.parameter(name)) for name in ("owner", "deadline_ms", "mark")}
    if isinstance(given["deadline_ms"], int) and given["deadline_ms"] > 0:  # it is that of the whole speech
        given["deadline_ms"] = max(1, given["deadline_ms"] - round(1000 * (time.monotonic() - request.came)))
    return given


def _outputs(chunk: Chunk, index: int, info: str) -> dict[str, Value]:
    """A response."""
    return {
        "audio": chunk.samples,
        "sample_rate": chunk.sample_rate,
        "chunk_index": index,
        "final": chunk.final,
        "info": info,
    }


def _checked(given: Any, known: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A JSON object with these entries.

    Raises:
        InvalidArgument: it is none, or has others.
    """
    if not isinstance(given, dict) or not given.keys() <= known.keys():
        raise InvalidArgument(f"`settings`: {name} may have {', '.join(known)}")
    for entry, value in given.items():
        kind = known[entry]
        if isinstance(kind, tuple) and value not in kind:
            raise InvalidArgument(f"`settings`: {entry} of {name} must be one of {', '.join(kind)}")
        if not isinstance(kind, tuple) and type(value) is not kind and not (kind is float and type(value) is int):
            raise InvalidArgument(f"`settings`: {entry} of {name} must be a JSON {kind.__name__}")
    return dict(given)


def _pause_of(turn: Mapping[str, Any]) -> float:
    pause: int = turn.get("pause_ms", 0)
    if not 0 <= pause <= MOST_PAUSE_MS:
        raise InvalidArgument(f"`settings`: pause_ms of a segment must be from 0 to {MOST_PAUSE_MS}")
    return pause / 1000
