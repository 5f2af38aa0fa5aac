"""What a request wants to be spoken one after the other: the plan of its text, or of the texts of several voices."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

from voice_clone_client import InvalidArgument, Unsupported
from voice_clone_client.fields import SOURCES
from voice_clone_client.types import MAX_NAME
from voice_clone_text.dictionary import Dictionary, Rule, Scoped
from voice_clone_text.languages import spoken_in
from voice_clone_text.normalizers import Missing
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sequence import Planned, Sequence, in_sequence, turns_of
from voice_clone_text.tags import MarkupError, is_ssml

from ..http.errors import HTTPFailure
from ..schemas import MOST_TURNS, Pronunciation, SpeechOptions, SpeechRequest, TextOptions, Turn

Options = TypeVar("Options", bound=SpeechOptions)


@dataclass(frozen=True)
class Segments:
    """All of a request."""

    sequence: Sequence
    options: tuple[SpeechOptions, ...]
    """How each part of the sequence is spoken, but for the tempo."""
    text: str
    """Of all turns, with a blank between them."""
    begins: tuple[int, ...]
    """Where each turn begins in it."""
    warnings: tuple[str, ...]


def has_segments(request: SpeechRequest) -> bool:
    """Whether a request asks for more than its text as it is."""
    return bool(request.segments) or is_planned(request, request.input, final=True)


def is_planned(options: TextOptions, text: str, final: bool) -> bool:
    """Whether a text is spoken otherwise than as it is; also where that depends on further text.

    Args:
        text: or its beginning.
        final: it is all of it.
    """
    asked = options.inline_pauses or options.pronunciations or options.normalize != "off"
    if asked or options.input_type in ("ssml", "script"):
        return True
    if options.tag_pauses and ("<break" in text or not final):
        return True
    return options.input_type == "auto" and is_ssml(text, final) is not False


def settings_of(options: TextOptions, style: Style, dictionaries: SequenceOf[Scoped] = ()) -> Settings:
    """How a text is read that is asked for like this.

    Args:
        dictionaries: that are kept; the request's own rules come first.

    Raises:
        HTTPFailure: a pronunciation is none.
    """
    own = _dictionary_of(tuple(options.rules))
    return Settings(
        input_type="text" if options.input_type == "script" else options.input_type,
        inline_pauses=options.inline_pauses,
        style=style,
        relative_rates=options.relative_rates,
        tag_pauses=options.tag_pauses,
        dictionaries=[*([] if own is None else [Scoped(own)]), *dictionaries],
        normalize=options.normalize,
    )


def refusal_of(error: MarkupError | Missing, name: str) -> Exception:
    """What a client learns of a text that cannot be read; `name`: of its field."""
    if isinstance(error, Missing):
        return Unsupported("`normalize` needs damga and wetext, which this gateway was installed without")
    return HTTPFailure(400, f"{name} is no SSML: {error}", "invalid_ssml", param=name)


def plans_of(request: SpeechRequest, dictionaries: SequenceOf[Scoped] = ()) -> Iterator[tuple[Turn, Planned]]:
    """The plan of each turn; without any, the request is one.

    Args:
        dictionaries: as of `settings_of`.

    Raises:
        HTTPFailure: a text is SSML, and invalid.
    """
    for index, turn in enumerate(request.segments or _turns_of(request)):
        style = Style(turn.voice_name, turn.language or request.language, clip=turn.style)
        settings = settings_of(request, style, dictionaries)
        try:
            yield turn, Planned(plan(turn.text, settings), request.speed * turn.speed, turn.pause_ms / 1000)
        except (MarkupError, Missing) as error:
            raise refusal_of(error, f"segments.{index}.text" if request.segments else "input") from None


def _turns_of(request: SpeechRequest) -> list[Turn]:
    """The turns of a dialogue; another text is one.

    Raises:
        HTTPFailure: a dialogue begins without a name, or is too long.
    """
    if request.input_type != "script":
        return [Turn(text=request.input)]
    try:
        turns = turns_of(request.input)
        if not turns:
            raise ValueError("nobody says anything; a line is like `Ada: Good morning.`")
        if len(turns) > MOST_TURNS:
            raise ValueError(f"a script has at most {MOST_TURNS} turns; divide it")
    except ValueError as error:
        raise HTTPFailure(400, f"input: {error}", "invalid_argument", param="input") from None
    return [Turn(voice=name, text=text) for name, text in turns]


@lru_cache(16)
def _dictionary_of(rules: tuple[Pronunciation, ...]) -> Dictionary | None:
    """The dictionary of a request; kept, since a thousand rules take milliseconds."""
    if not rules:
        return None
    try:
        return Dictionary(
            [
                Rule(each.string_to_replace or "", each.alias or "", each.case_sensitive, each.word_boundaries)
                for each in rules
            ]
        )
    except ValueError as error:
        raise HTTPFailure(400, f"pronunciations: {error}", "invalid_argument", param="pronunciations") from None


def segments_of(request: SpeechRequest, dictionaries: SequenceOf[Scoped] = ()) -> Segments:
    """What a request wants to be spoken; `dictionaries` as of `plans_of`.

    Raises:
        HTTPFailure: as `plans_of`.
        InvalidArgument: there is nothing to speak, or it would be too fast or too slow.
    """
    turns, planned = zip(*plans_of(request, dictionaries), strict=True)
    try:
        sequence = in_sequence(planned)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    begins = (0, *accumulate(len(turn.text) + 1 for turn in turns))
    spoken, warnings = list[SpeechOptions](), dict.fromkeys(text for plan, *_ in planned for text in plan.warnings)
    for part in sequence.parts:
        turn = turns[part.turn]
        given = request.model_copy(
            update={
                "instructions": turn.instructions or request.instructions,
                "language": turn.language or request.language,
            }
        )
        options, ignored = styled(given, part.span.style)
        spoken.append(options)
        warnings |= dict.fromkeys(ignored)
    return Segments(sequence, tuple(spoken), " ".join(turn.text for turn in turns), begins, tuple(warnings))


def styled(options: Options, style: Style) -> tuple[Options, list[str]]:
    """How words in a style are spoken, and warnings. A voice of its own takes the place of the options', however that
    is given.

    Raises:
        InvalidArgument: the voice can be none.
    """
    own = dict[str, object]()
    if style.voice is not None:
        if len(style.voice) > MAX_NAME:
            raise InvalidArgument(f"`voice` should have at most {MAX_NAME} characters")
        own = {**dict.fromkeys((*SOURCES, "reference_text", "style")), "voice": style.voice}
    if style.clip is not None:
        if len(style.clip) > MAX_NAME:
            raise InvalidArgument(f"`style` should have at most {MAX_NAME} characters")
        own["style"] = style.clip
    own["language"], ignored = spoken_in(style.language, options.language)
    return options.model_copy(update=own), ignored
