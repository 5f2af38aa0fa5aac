"""`voice-clone mcp` on a real server, by the client of the official SDK."""

from __future__ import annotations

import base64
import io
import os
import sys
import wave

import anyio
import numpy as np
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import AudioContent, CallToolResult, TextContent

from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


def test_it_lists_the_voices_and_speaks_in_them(server: TritonServer, voice: str) -> None:
    command = ["-m", "voice_clone_command.cli", "--url", server.url, "mcp"]
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
    assert not first.is_error and first.content[1] == again.content[1]
    heard = []
    for audio, said in (first.content, again.content):
        assert isinstance(audio, AudioContent) and isinstance(said, TextContent)
        with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
            seconds = file.getnframes() / file.getframerate()
            assert said.text.startswith(f"{seconds:.1f} s of speech in the voice {voice}")
            heard.append(np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(int))
    assert heard[0].any() and heard[0].shape == heard[1].shape
    assert np.abs(heard[0] - heard[1]).max() <= 1, "the same seed, another speech"  # or rounding
    assert unknown.is_error and isinstance(unknown.content[0], TextContent)
    assert "speaker_not_found: " in unknown.content[0].text
