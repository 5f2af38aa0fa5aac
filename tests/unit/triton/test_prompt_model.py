"""Whom the model of the prompt tells of a listener."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.doubles.backend_double import backend_double
from voice_clone.batching.expected import name_of
from voice_clone.errors import InvalidArgument
from voice_clone.settings import Settings
from voice_clone.triton.notices import Notices
from voice_clone.turns import Caller, Urgency


class Request:
    def __init__(self, text: str, stream: str, urgency: Urgency) -> None:
        self._texts, self._parameters = {"text": text}, {"stream_id": stream}
        self._urgency = urgency

    def text(self, name: str) -> str | None:
        return self._texts.get(name)

    def parameter(self, name: str) -> str | None:
        return self._parameters.get(name)

    def raw(self, name: str) -> None:
        return None

    array = number = raw

    def json_object(self, name: str) -> dict[str, Any]:
        return {}

    def caller(self, token: str) -> Caller:
        return Caller("me", self._urgency)


def draft(speech: Any) -> str:
    if not speech.text:
        raise InvalidArgument("the input `text` is empty")
    return str(speech.text)


def test_talker_and_decoder_are_told_of_listeners(tmp_path: Path) -> None:
    """Of those whose requests are right, and not of batch work. The decoder may be another family's."""
    name = uuid.uuid4().hex
    told = [Notices(model) for model in (f"{name}_talker", f"lender_{name}_code2wav")]
    none = Notices(f"{name}_code2wav")
    with backend_double("stages.prompt") as (module,):

        class Model(module.PromptModel):  # type: ignore[name-defined, misc]
            @staticmethod
            def load_stage(given: Settings, /) -> Any:
                return SimpleNamespace(
                    presets=(),
                    voiceless=True,
                    appends=False,
                    instructions="",
                    decoder=f"lender_{name}",
                    draft=draft,
                    prepare=lambda speech, draft, voice: SimpleNamespace(info={}, tensors={}),
                )

        model = object.__new__(Model)
        model.family, model._caller_token = name, ""
        model.load(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(tmp_path)}))
        for urgency in ("batch", "next", "interactive"):
            model.handle(Request("Hello.", urgency, urgency), None)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            model.handle(Request("", "refused", "interactive"), None)
        model.close()
    assert [model.news() for model in told] == [[name_of("interactive")]] * 2 and not none.news()
    for each in (*told, none):
        each.close()
