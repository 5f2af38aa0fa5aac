"""Speaks through a streaming plugin of LiveKit, word by word; runs in the environment of the apps.

    python livekit_stream.py VENDOR URL VOICE TEXT OPTIONS

VENDOR: see vendor_services.py. URL is that of the gateway, OPTIONS are those of the plugin as JSON. Prints JSON lines:
the seconds of audio of TEXT, and its `words` with their starts, as far as the plugin knows them; `interrupted` after it
left a text while that was spoken; when stdin has a line, the first line again. Or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from livekit.agents import APIError, tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, APIConnectOptions
from vendor_services import livekit_plugin


def begin(speaker: tts.TTS, text: str) -> tts.SynthesizeStream:
    """A speech whose text comes word by word, and is not complete."""
    stream = speaker.stream(conn_options=APIConnectOptions(max_retry=0, timeout=60))
    for word in text.split():
        stream.push_text(f"{word} ")
    return stream


async def spoken(speaker: tts.TTS, text: str) -> dict[str, object]:
    """The duration of a text, and its words."""
    stream = begin(speaker, text)
    stream.end_input()
    duration, words = 0.0, []
    async for event in stream:
        duration += event.frame.duration
        words += [(str(word), word.start_time) for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())]
    await stream.aclose()
    return {"seconds": duration, "words": words}


async def interrupt(speaker: tts.TTS, text: str) -> None:
    """Leave a text once it is heard; a plugin that sends whole sentences has then sent one."""
    stream = begin(speaker, f"{text} " * 4)
    await anext(aiter(stream))
    await stream.aclose()


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def speak(vendor: str, url: str, voice: str, text: str, options: str) -> None:
    async with aiohttp.ClientSession() as http:
        speaker = livekit_plugin(vendor, url, voice=voice, http_session=http, **json.loads(options))
        try:
            tell(**await spoken(speaker, text))
            await interrupt(speaker, text)
            tell(interrupted=True)
            await asyncio.to_thread(sys.stdin.readline)
            tell(**await spoken(speaker, text))
        except APIError as error:
            tell(error=repr(error), cause=repr(error.__cause__))
        finally:
            await speaker.aclose()


asyncio.run(speak(*sys.argv[1:]))
