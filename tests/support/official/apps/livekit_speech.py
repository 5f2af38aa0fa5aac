"""Speaks through plugins of LiveKit over HTTP; runs in the environment of the apps.

    python livekit_speech.py URL TEXT

Each line of stdin has options of a plugin as JSON, with its `vendor` (see vendor_services.py). Prints a
line of JSON for each: the seconds of audio, or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
from livekit.agents import APIStatusError
from livekit.agents.types import APIConnectOptions
from vendor_services import livekit_plugin


async def speak(url: str, text: str, options: dict[str, Any]) -> dict[str, object]:
    """The audio of a text."""
    vendor = options.pop("vendor", "openai")
    samples, rates = 0, set()
    async with aiohttp.ClientSession() as http:
        session = {} if vendor == "openai" else {"http_session": http}
        tts = livekit_plugin(vendor, url, **session, **options)
        tts.prewarm()
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
