"""Their dialogues: turns of several voices in one file, each turn a speech of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from voice_clone_client import Chunk
from voice_clone_client.long_text.speaker import Speech

from ...schemas import SpeechRequest
from ...speech_forms import Form
from ...speech_response import SpeechResponse
from ...synthesis import Order, open_speech
from ..orders import Lenient, speech_request, warn_of
from ..vendor import adapter
from .speaking import DEFAULT_FORMAT, FIELDS, Speaking, Spoken, Timed
from .speech import OutputFormat

router = adapter()
PATH = "/v1/text-to-dialogue"
MOST_TURNS = 1000


class Turn(Lenient):
    """What one voice says."""

    text: Annotated[str, Field(min_length=1)]
    voice_id: str


class TextToDialogue(Speaking):
    """The body."""

    inputs: Annotated[list[Turn], Field(min_length=1, max_length=MOST_TURNS)]

    @property
    def characters(self) -> int:
        """Of all turns."""
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
    return _speak(request, body, output_format, Timed(body.characters, whole=True))


@router.post(f"{PATH}/stream/with-timestamps")
async def stream_with_timestamps(
    body: TextToDialogue, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_dialogue.stream_with_timestamps`."""
    return _speak(request, body, output_format, Timed(body.characters))


def _speak(request: Request, body: TextToDialogue, output_format: str, form: Form) -> SpeechResponse:
    values = body.values(output_format)
    turns = [speech_request({"input": turn.text, "voice": turn.voice_id, **values}, FIELDS) for turn in body.inputs]
    return DialogueResponse(request, turns, form, warn_of(body.ignored()))


class Dialogue:
    """The speeches of several turns in a row.

    Args:
        response: opens each of them when the one before has ended.
        turns: of the dialogue.
    """

    def __init__(self, response: DialogueResponse, turns: Sequence[SpeechRequest]) -> None:
        self._response = response
        self._turns = iter(turns)
        self._speech: Speech | None = None
        self.segments: list[dict[str, Any]] = []
        """Which voice speaks when, in seconds, and which characters of all texts."""
        self._seconds, self._characters = 0.0, 0

    async def begin(self) -> Order | None:
        """Open the next turn; None if there is none. Raises as `open_speech`."""
        turn = next(self._turns, None)
        if turn is None:
            return None
        self._speech, order = await self._response.open_turn(turn)
        begin, self._characters = self._characters, self._characters + len(turn.input)
        self.segments.append(
            {
                "voice_id": turn.voice_name,
                "start_time_seconds": self._seconds,
                "end_time_seconds": self._seconds,
                "character_start_index": begin,
                "character_end_index": self._characters,
                "dialogue_input_index": len(self.segments),
            }
        )
        return order

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while True:
            assert self._speech is not None
            try:
                chunk = await anext(self._speech)
            except StopAsyncIteration:
                self._speech.close()
                if await self.begin() is None:
                    raise
            else:
                self._seconds += len(chunk.samples) / chunk.sample_rate
                self.segments[-1]["end_time_seconds"] = self._seconds
                return chunk

    @property
    def info(self) -> Mapping[str, Any] | None:
        """Of the latest turn."""
        return None if self._speech is None else self._speech.info

    def close(self) -> None:
        """Stop it."""
        if self._speech is not None:
            self._speech.close()


class DialogueResponse(SpeechResponse):
    """The answer to a dialogue."""

    def __init__(
        self,
        request: Request,
        turns: Sequence[SpeechRequest],
        form: Form,
        warnings: Sequence[str] = (),
    ) -> None:
        super().__init__(request, turns[0], form, warnings, FIELDS)
        self._dialogue = Dialogue(self, turns)
        if isinstance(form, Timed):
            form.more = lambda: {"voice_segments": self._dialogue.segments if form.whole else []}

    async def open_turn(self, turn: SpeechRequest) -> tuple[Speech, Order]:
        """The speech of a turn; see `open_speech`."""
        hold = self._form.whole
        return await open_speech(self._services, self._key, turn.input, turn, self._held.add, hold=hold)

    async def open(self) -> tuple[Speech, Order]:
        order = await self._dialogue.begin()
        assert order is not None
        return self._dialogue, order
