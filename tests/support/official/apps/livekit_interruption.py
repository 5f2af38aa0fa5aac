"""Speaks in a session of LiveKit and is interrupted; runs in the environment of the apps.

    python livekit_interruption.py VENDOR URL VOICE TEXT

VENDOR: see vendor_services.py. URL is that of the gateway. Each line of stdin has the seconds after which the speech is
interrupted. Prints a line of JSON for each: how many seconds were `played`, and what was `heard`, as the chat has it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession, io
from livekit.agents.voice.transcription import TranscriptSynchronizer
from vendor_services import livekit_plugin


class Sink(io.AudioOutput):
    """Plays in real time, without a device."""

    def __init__(self, interrupt_at: float) -> None:
        super().__init__(label="sink", capabilities=io.AudioOutputCapabilities(pause=False))
        self._interrupt_at = interrupt_at
        self._begun: float | None = None
        self._pushed = 0.0
        self._end: asyncio.Task[None] | None = None
        self.interrupt = asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self._pushed += frame.duration
        if self._begun is None:
            self._begun = time.time()
            self.on_playback_started(created_at=self._begun)
            asyncio.get_running_loop().call_later(self._interrupt_at, self.interrupt.set)

    def flush(self) -> None:
        super().flush()
        self._end = asyncio.create_task(self._play_out())

    async def _play_out(self) -> None:
        assert self._begun is not None
        await asyncio.sleep(self._begun + self._pushed - time.time())
        self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._begun is not None:
            self._finish(interrupted=True)

    def _finish(self, interrupted: bool) -> None:
        assert self._begun is not None
        played = min(self._pushed, time.time() - self._begun)
        self._begun = None
        sys.stdout.write(json.dumps({"played": played}) + "\n")
        self.on_playback_finished(playback_position=played, interrupted=interrupted)


async def speak(vendor: str, url: str, voice: str, text: str) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as http:
        speaker = livekit_plugin(vendor, url, voice=voice, http_session=http)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            session: AgentSession[None] = AgentSession(tts=speaker, use_tts_aligned_transcript=True)
            sink = Sink(float(line))
            both = TranscriptSynchronizer(next_in_chain_audio=sink, next_in_chain_text=None)
            session.output.audio, session.output.transcription = both.audio_output, both.text_output
            await session.start(Agent(instructions="Speak."))
            said = session.say(text)
            await sink.interrupt.wait()
            said.interrupt()
            await said.wait_for_playout()
            heard = [item.text_content for item in session.history.items if item.type == "message"]
            sys.stdout.write(json.dumps({"heard": "".join(each or "" for each in heard)}) + "\n")
            sys.stdout.flush()
            await session.aclose()
        await speaker.aclose()


asyncio.run(speak(*sys.argv[1:]))
