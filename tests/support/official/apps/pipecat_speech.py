"""Speaks through a service of Pipecat over HTTP in a pipeline; runs in the environment of the apps.

    python pipecat_speech.py URL TEXT

Each line of stdin has the service's settings as JSON, with its `vendor` (see vendor_services.py). Prints a
line of JSON for each: the seconds of audio, or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from vendor_services import pipecat_http_service


class Sink(FrameProcessor):
    """Counts the audio."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.rates: set[int] = set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.bytes += len(frame.audio)
            self.rates.add(frame.sample_rate)
        await self.push_frame(frame, direction)


async def speak(url: str, text: str, options: dict[str, Any]) -> dict[str, object]:
    """The audio of a text."""
    vendor = options.pop("vendor", "openai")
    errors: list[str] = []
    sink = Sink()
    async with aiohttp.ClientSession() as http:
        task = PipelineTask(Pipeline([pipecat_http_service(vendor, url, http, options), sink]))

        @task.event_handler("on_pipeline_error")
        async def remember(_: PipelineTask, frame: ErrorFrame) -> None:
            errors.append(frame.error)

        await task.queue_frames([TTSSpeakFrame(text), EndFrame()])
        await PipelineRunner(handle_sigint=False).run(task)
    if errors:
        return {"error": errors[0]}
    [rate] = sink.rates
    return {"seconds": sink.bytes / 2 / rate, "rate": rate}


for line in sys.stdin:
    sys.stdout.write(json.dumps(asyncio.run(speak(sys.argv[1], sys.argv[2], json.loads(line)))) + "\n")
    sys.stdout.flush()
