"""Requests of a talker's model without a server: inputs as the prompt stage makes them, and where answers go."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.support.families.talkers import make_prompt
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.talker import Qwen3TTSTalker
from voice_clone.speech import parse_object
from voice_clone.triton.request import Request
from voice_clone.triton.stages.talker_call import TalkerStream, read_call
from voice_clone.triton.tensors import pack

MAX_LENGTH = 400
NAMES = ("role_ids", "text_ids", "speaker_embedding", "reference_ids", "reference_codes", "instruct_ids")


def tensors_of(prompt: Prompt) -> dict[str, Any]:
    """What the prompt stage packs."""
    numbers = {"language_id": prompt.language_id, "speaker_id": prompt.speaker_id}
    packed = {name: np.array([-1 if number is None else number], np.int32) for name, number in numbers.items()}
    return {name: getattr(prompt, name) for name in NAMES} | packed


class Inputs(Request):
    """The inputs of one request. `without` is the tensor, or the input `prompt`, that it lacks."""

    def __init__(
        self,
        prompt: Prompt,
        /,
        deadline_ms: Any = None,
        prompt_info: str = "{}",
        stream_id: Any = "s",
        without: str = "",
        owner: str | None = None,
        **tensors: Any,
    ) -> None:
        self.came = time.monotonic()
        packed = {name: value for name, value in tensors_of(prompt).items() if name != without}
        packed |= {name: np.array([tensors.pop(name)]) for name in ("language_id", "speaker_id") if name in tensors}
        if prompt_info.endswith("}"):
            prompt_info = json.dumps(parse_object("prompt_info", prompt_info) | {"stream_id": stream_id})
        given = {"prompt": pack(packed), "prompt_info": prompt_info, **tensors}
        self._inputs = {
            name: np.array([v], object if isinstance(v, (str, bytes)) else None)
            for name, v in given.items()
            if name != without
        }
        self._parameters = {"deadline_ms": deadline_ms, "owner": owner}


class Answer:
    """Where the responses go."""

    def __init__(self, broken: bool = False) -> None:
        self.left = False
        self.sent: list[Mapping[str, Any]] = []
        self.final = False
        self.error: BaseException | None = None
        self.broken = broken

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        assert not self.final
        if self.broken and self.sent:
            raise OSError("the line is broken")
        self.sent.append(outputs)
        self.final = final

    def fail(self, error: BaseException) -> None:
        assert not self.final
        self.final, self.error = True, error

    def cancelled(self) -> bool:
        return self.left


def stage_of(config: Qwen3TTSConfig) -> Qwen3TTSTalker:
    """The talker stage as far as a request is read: without weights."""
    return Qwen3TTSTalker(cast(Any, SimpleNamespace(max_length=MAX_LENGTH)), config, cast(Any, None))


def read(config: Qwen3TTSConfig, **given: Any) -> TalkerStream:
    """A call with an in-context prompt."""
    return read_call(Inputs(make_prompt(config, 1, icl=True), **given), stage_of(config), "qwen3_tts", 512)
