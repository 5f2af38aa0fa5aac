"""Speaks through a WebSocket service of Pipecat in a pipeline, token by token; runs in the environment of the apps.

    python pipecat_stream.py VENDOR URL VOICE TEXT

VENDOR: see vendor_services.py. URL is that of the gateway. Prints the same JSON lines as livekit_stream.py.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from vendor_services import RATE, pipecat_socket_service


class Sink(FrameProcessor):
    """Counts the audio, and notes when it begins and stops."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.words: list[tuple[str, int | None]] = []
        self.heard = asyncio.Event()
        self.stopped = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.bytes += len(frame.audio)
            self.heard.set()
        elif isinstance(frame, TTSTextFrame):
            self.words.append((frame.text, frame.pts))
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def converse(task: PipelineTask, sink: Sink, text: str) -> None:
    """Say the text; say it and be interrupted; say it again."""

    async def say(complete: bool) -> None:
        sink.bytes = 0
        sink.words = []
        sink.heard.clear()
        sink.stopped.clear()
        # A service that sends whole sentences waits for the next one before it sends the first of an incomplete text.
        words, end = (text.split(), [LLMFullResponseEndFrame()]) if complete else (text.split() * 2, [])
        tokens = [LLMTextFrame(f"{word} ") for word in words]
        await task.queue_frames([LLMFullResponseStartFrame(), *tokens, *end])
        await (sink.stopped if complete else sink.heard).wait()

    await say(complete=True)
    tell(seconds=sink.bytes / 2 / RATE, words=sink.words)
    await say(complete=False)
    await task.queue_frames([InterruptionFrame()])
    tell(interrupted=True)
    await asyncio.to_thread(sys.stdin.readline)
    await say(complete=True)
    tell(seconds=sink.bytes / 2 / RATE, words=sink.words)
    await task.queue_frames([EndFrame()])


async def speak(vendor: str, url: str, voice: str, text: str) -> None:
    sink = Sink()
    task = PipelineTask(Pipeline([pipecat_socket_service(vendor, url, voice), sink]))

    @task.event_handler("on_pipeline_error")
    async def fail(_: PipelineTask, frame: ErrorFrame) -> None:
        tell(error=frame.error)
        await task.cancel()

    conversation = asyncio.create_task(converse(task, sink, text))
    await PipelineRunner(handle_sigint=False).run(task)
    conversation.cancel()


asyncio.run(speak(*sys.argv[1:]))
