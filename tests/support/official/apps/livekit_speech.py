"""Speaks through LiveKit's OpenAI plugin; runs in the environment of the apps.

    python livekit_speech.py BASE_URL TEXT

Each line of stdin has options of the plugin as JSON. Prints a line of JSON for each: the seconds of
audio, or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys

from livekit.agents import APIStatusError
from livekit.agents.types import APIConnectOptions
from livekit.plugins import openai


async def speak(url: str, text: str, options: dict[str, object]) -> dict[str, object]:
    """The audio of a text."""
    tts = openai.TTS(base_url=url, api_key="unused", **options)
    tts.prewarm()
    samples, rates = 0, set()
    try:
        async for event in tts.synthesize(text, conn_options=APIConnectOptions(max_retry=0)):
            samples += event.frame.samples_per_channel
            rates.add(event.frame.sample_rate)
    except APIStatusError as error:
        return {"status": error.status_code, "message": error.message}
    finally:
        await tts.aclose()
    [rate] = rates
    return {"seconds": samples / rate, "rate": rate}


for line in sys.stdin:
    sys.stdout.write(json.dumps(asyncio.run(speak(sys.argv[1], sys.argv[2], json.loads(line)))) + "\n")
    sys.stdout.flush()
