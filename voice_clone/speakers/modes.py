"""Modes: the ways in which a family uses a voice, and what each of them needs of the voice.

A family's encoder declares its modes, the best one first, each with its needs:

    {"icl": ["reference_text"], "x_vector": []}     in context where there is a transcript, else the embedding alone
    {"icl": ["reference_text"]}                     in context only
    {"icl": "this checkpoint has no encoder"}       a mode that cannot be had, and why

A voice is used in the first mode whose needs it meets. A voice meets the need `reference_text` if it came with its
transcript; no voice meets a need of another name. All decisions about modes are made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voice_clone.errors import Internal, InvalidArgument, Unsupported, listed, quoted
from voice_clone.speakers.name import check_word
from voice_clone.speakers.record import IN_CONTEXT, X_VECTOR, ArtifactId, SpeakerRecord

REFERENCE_TEXT = "reference_text"
_NOTHING: frozenset[str] = frozenset()  # given with a voice
_TRANSCRIPT = frozenset({REFERENCE_TEXT})


@dataclass(frozen=True)
class Modes:
    """The modes of one family.

    Attributes:
        needs: what each mode needs of a voice, the best mode first.
        reasons: of modes that cannot be had, why. There is one of either at least.
        declared: whether the encoder declared them. Otherwise they are a guess, and a request may name any mode.
    """

    needs: Mapping[str, tuple[str, ...]]
    declared: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The first mode."""
        return next(iter(self.needs or self.reasons))


NATURAL = Modes({IN_CONTEXT: (REFERENCE_TEXT,), X_VECTOR: ()}, declared=False)
"""The modes of an encoder that declares none."""


def check_modes(model_type: str, declared: Any) -> Modes:
    """The modes that an encoder declared.

    Raises:
        Internal: they are not an object of lists of words and of sentences, or there are none.
    """
    needs: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    try:
        for mode, value in declared.items():
            if isinstance(value, str) and " " in value.strip():  # a word is a need that lacks its list
                reasons[check_word("mode", mode)] = value
            else:
                needs[check_word("mode", mode)] = _needs(value)
    except (AttributeError, TypeError, InvalidArgument):
        needs, reasons = {}, {}
    if not needs and not reasons:
        raise Internal(
            f"the voice encoder of {model_type} declared its modes as {declared!r}, not as {{mode: [need] or reason}}"
        )
    return Modes(needs, reasons=reasons)


def mode_of_record(
    modes: Modes, model_type: str, record: SpeakerRecord, asked: str | None = None, style: str = ""
) -> ArtifactId:
    """The artifacts that serve a registered speaker: in the mode asked for, else in the first that it allows.

    Args:
        style: of the clip of which they are made.

    Raises:
        Unsupported: the family has no such mode, or the speaker does not meet its needs; says what to upload.
    """
    clip = record.clip(style)
    given = _NOTHING if clip.reference_text is None else _TRANSCRIPT
    mode, lacking = _choose(modes, model_type, asked, given)
    if lacking and clip.embedding_source != "direct":  # an embedding serves as it is, or not at all
        needs, which = listed(lacking, " and "), f" in the style {style}" if style else ""
        raise Unsupported(
            f"{model_type} in mode {mode} needs {needs}, and the voice {record.name!r}{which} was uploaded without; "
            f"upload it again with {needs}{_instead(modes, asked, given)}"
        )
    return ArtifactId(model_type, mode, style)


def mode_of_clip(modes: Modes, model_type: str, reference_text: str | None, asked: str | None) -> ArtifactId:
    """The artifacts that serve an inline clip: in the mode asked for, else in the first that it allows.

    Raises:
        Unsupported: the family has no such mode.
        InvalidArgument: the request does not meet its needs; says what to send.
    """
    given = _NOTHING if reference_text is None else _TRANSCRIPT
    mode, lacking = _choose(modes, model_type, asked, given)
    if lacking:
        needs = listed(lacking, " and ")
        raise InvalidArgument(
            f"{model_type} in mode {mode} needs {needs}; send it with the `audio`{_instead(modes, asked, given)}"
        )
    return ArtifactId(model_type, mode)


def mode_of_embedding(modes: Modes, model_type: str, asked: str | None = None) -> ArtifactId:
    """The artifacts that a ready speaker embedding becomes: those of a mode without needs.

    Raises:
        Unsupported: the mode has needs, or every mode of the family has.
    """
    mode, lacking = _choose(modes, model_type, asked, _NOTHING)
    if lacking or modes.needs.get(mode):
        raise Unsupported(f"{model_type} in mode {mode} takes no `speaker_embedding`; send `audio`")
    return ArtifactId(model_type, mode)


def _choose(modes: Modes, model_type: str, asked: str | None, given: frozenset[str]) -> tuple[str, list[str]]:
    """The mode to use, and which of its needs are not among those given.

    Raises:
        Unsupported: the family has no such mode, or says why it cannot be had.
    """
    if asked in modes.reasons or not modes.needs:
        raise Unsupported(f"{model_type}: {modes.reasons.get(asked or modes.best, modes.reasons[modes.best])}")
    if asked is None:
        for mode, needs in modes.needs.items():
            if given.issuperset(needs):
                return mode, []
    if asked is not None and not modes.declared:
        return asked, []
    if asked is not None and asked not in modes.needs:
        raise Unsupported(f"{model_type} has no `mode` {quoted(asked)}; it has {', '.join(modes.needs)}")
    candidates = modes.needs if asked is None else (asked,)
    lacking = {mode: [need for need in modes.needs[mode] if need not in given] for mode in candidates}
    mode = min(lacking, key=lambda mode: len(lacking[mode]))  # the nearest; the first among equals
    return mode, lacking[mode]


def _instead(modes: Modes, asked: str | None, given: frozenset[str]) -> str:
    """The other modes to ask for, as the end of a message."""
    others = [mode for mode, needs in modes.needs.items() if mode != asked and given.issuperset(needs)]
    return f", or ask for the `mode` {' or '.join(others)}" if others else ""


def _needs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError("not a list")
    return tuple(check_word("need", need) for need in value)
