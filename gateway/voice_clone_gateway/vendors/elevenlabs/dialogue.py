"""Their dialogues: turns of several voices in one file, each turn a speech of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from ...schemas import MOST_TURNS
from ...speech.forms import Form
from ...speech.response import SpeechResponse
from ..orders import Lenient, TaggedRequest, speech_request, warn_of
from ..vendor import adapter
from .speech import OutputFormat
from .speech_schemas import DEFAULT_FORMAT, FIELDS, Speaking, Spoken, Timed

router = adapter()
PATH = "/v1/text-to-dialogue"
_FIELDS = {**FIELDS, "segments": "inputs"}


class Turn(Lenient):
    """What one voice says."""

    text: Annotated[str, Field(min_length=1)]
    voice_id: str


class TextToDialogue(Speaking):
    """The body."""

    inputs: Annotated[list[Turn], Field(min_length=1, max_length=MOST_TURNS)]

    @property
    def characters(self) -> int:
        return sum(len(turn.text) for turn in self.inputs)


@router.post(PATH)
async def convert(
    body: TextToDialogue, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_dialogue.convert`."""
    return _speak(request, body, output_format, Spoken(body.characters, output_format.startswith("wav")))


@router.post(f"{PATH}/stream")
async def stream(
    body: TextToDialogue, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_dialogue.stream`."""
    return _speak(request, body, output_format, Spoken(body.characters))


@router.post(f"{PATH}/with-timestamps")
async def convert_with_timestamps(
    body: TextToDialogue, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_dialogue.convert_with_timestamps`."""
    return _speak(request, body, output_format, _timed(body, whole=True))


@router.post(f"{PATH}/stream/with-timestamps")
async def stream_with_timestamps(
    body: TextToDialogue, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_dialogue.stream_with_timestamps`."""
    return _speak(request, body, output_format, _timed(body))


def _speak(request: Request, body: TextToDialogue, output_format: str, form: Form) -> SpeechResponse:
    turns = [{"text": turn.text, "voice": turn.voice_id} for turn in body.inputs]
    payload = speech_request(request, {"segments": turns, **body.values(output_format)}, _FIELDS, TaggedRequest)
    response = SpeechResponse(request, payload, form, warn_of(body.ignored()), _FIELDS)
    if isinstance(form, Timed):
        form.more = lambda: {"voice_segments": _voices(body.inputs, response.info) if form.whole else []}
    return response


def _timed(body: TextToDialogue, whole: bool = False) -> Timed:
    return Timed(" ".join(turn.text for turn in body.inputs), whole, body.characters)


def _voices(turns: Sequence[Turn], info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Which voice speaks when, in seconds, and which characters of all texts, between which there are blanks."""
    found = list[dict[str, Any]]()
    ends = [end - 1 for end in accumulate(len(turn.text) + 1 for turn in turns)]
    for index, entries in groupby(info.get("segments", ()), key=lambda entry: int(entry["index"])):
        first, *_, last = [*entries] * 2
        found.append(
            {
                "voice_id": turns[index].voice_id,
                "start_time_seconds": first["start"],
                "end_time_seconds": last["end"],
                "character_start_index": ends[index] - len(turns[index].text),
                "character_end_index": ends[index],
                "dialogue_input_index": index,
            }
        )
    return found
