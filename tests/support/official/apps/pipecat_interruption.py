"""Speaks in a pipeline of Pipecat and is interrupted; runs in the environment of the apps.

    python pipecat_interruption.py VENDOR URL VOICE TEXT

As livekit_interruption.py; `heard` is what the context of the language model then has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from pipecat.frames.frames import (
    EndFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from vendor_services import RATE, pipecat_socket_service


class Sink(BaseOutputTransport):
    """Plays in real time, without a device."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))
        self.begun: asyncio.Future[float] | None = None
        self._played_until = 0.0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        now = time.time()
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(now)
            self._played_until = now
        self._played_until = max(self._played_until, now - 0.1) + len(frame.audio) / 2 / frame.sample_rate
        await asyncio.sleep(self._played_until - time.time())
        return True


async def converse(task: PipelineTask, sink: Sink, context: LLMContext, text: str) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        context.set_messages([])
        sink.begun = loop.create_future()
        tokens = [LLMTextFrame(f"{word} ") for word in text.split()]
        await task.queue_frames([LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame()])
        begun = await sink.begun
        await asyncio.sleep(begun + float(line) - time.time())
        await task.queue_frames([InterruptionFrame()])
        sys.stdout.write(json.dumps({"played": time.time() - begun}) + "\n")
        await asyncio.sleep(0.3)
        heard = " ".join(str(each["content"]) for each in context.get_messages() if each["role"] == "assistant")
        sys.stdout.write(json.dumps({"heard": heard}) + "\n")
        sys.stdout.flush()
    await task.queue_frames([EndFrame()])


async def speak(vendor: str, url: str, voice: str, text: str) -> None:
    sink, context = Sink(), LLMContext()
    kept = LLMContextAggregatorPair(context).assistant()
    task = PipelineTask(Pipeline([pipecat_socket_service(vendor, url, voice), sink, kept]))
    conversation = asyncio.create_task(converse(task, sink, context, text))
    await PipelineRunner(handle_sigint=False).run(task)
    conversation.cancel()


asyncio.run(speak(*sys.argv[1:]))
