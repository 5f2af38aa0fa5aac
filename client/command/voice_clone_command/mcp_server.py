"""A server of the Model Context Protocol, by which programs such as language models list voices and speak in them.

It needs the extra `mcp`, which is the protocol's official SDK. `voice-clone mcp` runs it.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import AudioContent, TextContent
from pydantic import BaseModel, Field
from voice_clone_client import __version__
from voice_clone_client.aio import AsyncClient
from voice_clone_client.errors import Incomplete, InvalidArgument, Unsupported, VoiceCloneError, VoiceNotFound
from voice_clone_client.fields import MEANINGS
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.speeches.speech import AsyncSpeech
from voice_clone_client.wav import WavWriter
from voice_clone_program.names import meant
from voice_clone_provenance.statements import comment_of
from voice_clone_sound.async_parts import AsyncParts
from voice_clone_text.languages import spoken_in
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sequence import Planned, in_sequence
from voice_clone_text.tags import is_ssml

from .audio_file import MISSING, has_codecs, refusal
from .output import AudioOutput

INLINE_SECONDS = 60.0  # of speech in an answer, which is 4 MB of base64 at 24 kHz
PAGE = 100  # voices in an answer

Text = Annotated[
    str,
    Field(
        description="The words to speak, in any language of the model, or SSML in <speak>: "
        '<break time="500ms"/>, <voice name="...">, <sub alias="...">.'
    ),
]
Name = Annotated[
    str | None, Field(description="A voice of list_voices. A model that needs none speaks without it, too.")
]
Language = Annotated[str | None, Field(description=MEANINGS["language"])]
Seed = Annotated[int | None, Field(ge=0, lt=2**64, description=MEANINGS["seed"])]
File = Annotated[str, Field(description="Name of a new file, without a folder, such as hello.wav.")]
After = Annotated[str | None, Field(description="The last name of the list before: go on behind it.")]


class ListedVoice(BaseModel):
    """A voice in the list."""

    name: str
    description: str | None = Field(default=None, description="What whoever uploaded it says.")
    models: list[str] = Field(description="The models that are ready to speak in it.")
    preset: bool = Field(default=False, description="Whether it comes with the model, and was not uploaded.")


def mcp_server(connection: Mapping[str, Any], folder: Path | None) -> MCPServer[Any]:
    """A server with the tools `list_voices`, `speak`, which answers audio, and `speak_to_file`.

    An error of the speech server is an answer with `is_error` and a text that begins with its slug. A call that the
    caller cancels stops the server's work.

    Args:
        connection: arguments of `AsyncClient`.
        folder: where `speak_to_file` makes its files; None: there is no such tool.
    """
    tools = _Tools()
    server = MCPServer[Any](
        "voice-clone", version=__version__, log_level="WARNING", lifespan=tools.connected(connection)
    )
    server.tool()(tools.list_voices)
    server.tool()(tools.speak)
    if folder is not None:
        tools.folder = folder
        server.tool()(tools.speak_to_file)
    return server


class _Tools:
    """The tools. Their docstrings are what a model reads."""

    folder = Path()
    _client: AsyncClient

    def connected(self, connection: Mapping[str, Any]) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """The life of the server, in which there is a client."""

        @asynccontextmanager
        async def life(_: Any) -> AsyncIterator[None]:
            async with AsyncClient(**connection) as self._client:
                yield

        return life

    async def list_voices(self, after: After = None) -> list[ListedVoice]:
        """The voices that can speak: the models' own first, then those that were uploaded, at most 100 in an answer."""
        async with _refusals(self._client):
            found = [
                ListedVoice(name=preset.name, models=[preset.model_type], preset=True)
                for preset in ([] if after else await self._client.presets())
            ]
            for voice in await self._client.list(limit=PAGE, after=after or None):
                models = sorted({each.model_type for each in voice.artifacts if each.state == "ready"})
                found.append(ListedVoice(name=voice.name, description=voice.description, models=models))
            return found

    async def _speech(
        self, text: str, voice: str | None, language: str | None, seed: int | None
    ) -> AsyncLongSpeech | AsyncParts:
        """A speech that is answered when it is whole.

        Raises:
            InvalidArgument: the text is SSML, and invalid.
            Unsupported: it has a tempo, which needs a further package.
        """

        def say(text: str, style: Style) -> AsyncLongSpeech:
            spoken, _ = spoken_in(style.language, language or None)
            return self._client.speak_long(
                text, voice=style.voice, style=style.clip, language=spoken, seed=seed, hold=True
            )

        style = Style(voice or None, language or None)
        if not is_ssml(text, final=True):
            return say(text, style)
        try:
            planned = await asyncio.to_thread(plan, text, Settings(style=style))
        except ValueError as error:
            raise InvalidArgument(f"`text`: {error}") from None
        try:
            sequence = in_sequence([Planned(planned)])
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        if any(part.rate != 1.0 for part in sequence.parts) and not has_codecs():
            raise Unsupported(f"the rate of SSML needs a further package: {MISSING}")
        return AsyncParts(sequence, lambda part: say(part.span.text, part.span.style))

    async def speak(
        self, text: Text, voice: Name = None, language: Language = None, seed: Seed = None
    ) -> list[AudioContent | TextContent]:
        """Speak a text in a voice. The answer has the audio, of at most a minute, as a WAV file."""
        file = io.BytesIO()
        async with _refusals(self._client, voice), await self._speech(text, voice, language, seed) as speech:
            wav: WavWriter | None = None
            family = await self._client.family()
            async for chunk in speech:
                wav = wav or WavWriter(file, chunk.sample_rate, comment_of(family, chunk.info, signs=False))
                wav.write(chunk.samples)
                if wav.seconds > INLINE_SECONDS:
                    raise ToolError(f"the speech is longer than {INLINE_SECONDS:g} s; speak a shorter text")
        audio = base64.b64encode(file.getvalue()).decode()
        heard = TextContent(type="text", text=_how(wav.seconds if wav else 0.0, voice, speech))
        return [AudioContent(type="audio", data=audio, mime_type="audio/wav"), heard]

    async def speak_to_file(
        self, text: Text, file: File, voice: Name = None, language: Language = None, seed: Seed = None
    ) -> str:
        """Speak a text in a voice, into a new audio file. The answer has its path."""
        path = self.folder / file
        if file != path.name or file.startswith(".") or not file.isprintable():
            raise ToolError(f"invalid_argument: {file!r} is no plain name of a file, such as hello.wav")
        if reason := refusal(file):
            raise ToolError(f"invalid_argument: {reason}")
        seconds = 0.0
        async with _refusals(self._client, voice), await self._speech(text, voice, language, seed) as speech:
            family = await self._client.family()
            with _new(path), AudioOutput(str(path), partial(comment_of, family, signs=False)) as output:
                async for chunk in speech:
                    output.write(chunk)
                    seconds += len(chunk.samples) / chunk.sample_rate
        return f"{path}: {_how(seconds, voice, speech)}"


@contextmanager
def _new(path: Path) -> Iterator[None]:
    """Make a file, and remove it if the block fails."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise ToolError(f"invalid_argument: {path} exists; choose another name") from None
    try:
        yield
    except BaseException:  # a cancelled call, too
        path.unlink(missing_ok=True)
        raise


def _how(seconds: float, voice: str | None, speech: AsyncSpeech | AsyncParts) -> str:
    """Describe a speech in one line."""
    said = f"{seconds:.1f} s of speech" + (f" in the voice {voice}" if voice else "")
    return said if speech.whole else f"{said}. {Incomplete(speech.finish_reason)}"


@asynccontextmanager
async def _refusals(client: AsyncClient, voice: str | None = None) -> AsyncIterator[None]:
    """Errors that the caller is to read."""
    try:
        yield
    except VoiceNotFound as error:
        said = f"{error.slug}: {error}"
        if not said.endswith("?"):  # an older server guesses no names
            with suppress(Exception):  # a server that does not say helps no further
                known = [voice.name for voice in await client.list()]
                known += [preset.name for preset in await client.presets()]
                said = f"{said}; {meant(voice or '', known)}".removesuffix("; ")
        raise ToolError(f"{said}{'' if said.endswith('?') else ';'} list_voices has all") from error
    except VoiceCloneError as error:
        raise ToolError(f"{error.slug}: {error}") from error
    except OSError as error:
        raise ToolError(f"{error.filename or 'the file'}: {error.strerror or error}") from error
