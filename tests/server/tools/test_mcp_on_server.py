"""`voice-clone mcp` on a real server, by the client of the official SDK."""

from __future__ import annotations

import base64
import io
import os
import sys
import wave

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import AudioContent, CallToolResult, TextContent

from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


def test_it_lists_the_voices_and_speaks_in_them(server: TritonServer, voice: str) -> None:
    command = ["-m", "voice_clone_client.cli", "--url", server.url, "mcp"]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))

    async def session() -> list[CallToolResult]:
        async with Client(parameters) as client:
            speeches = [{"text": "Good morning.", "voice": name, "seed": 7} for name in (voice, voice, "Nobody")]
            return [await client.call_tool("list_voices", {})] + [
                await client.call_tool("speak", speech) for speech in speeches
            ]

    listed, first, again, unknown = anyio.run(session)
    assert listed.structured_content is not None
    [found] = [each for each in listed.structured_content["result"] if each["name"] == voice]
    assert found["models"] and not found["preset"]
    assert not first.is_error and first.content == again.content, "the same seed, another speech"
    audio, said = first.content
    assert isinstance(audio, AudioContent) and isinstance(said, TextContent)
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert said.text.startswith(f"{file.getnframes() / file.getframerate():.1f} s of speech in the voice {voice}")
        assert any(file.readframes(file.getnframes()))
    assert unknown.is_error and isinstance(unknown.content[0], TextContent)
    assert "speaker_not_found: " in unknown.content[0].text
