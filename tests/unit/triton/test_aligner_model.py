"""The model `aligner` holds so much audio at most, whoever sends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.backend_double import backend_double
from voice_clone.errors import Overloaded
from voice_clone.settings import Settings

RATE = 16_000


def request(**given: Any) -> Any:
    def tensor(name: str, value: Any) -> Any:
        array = value if isinstance(value, np.ndarray) else np.array([value], object if type(value) is str else None)
        return SimpleNamespace(name=lambda: name, as_numpy=lambda: array)

    tensors = [tensor(name, value) for name, value in given.items()]
    return SimpleNamespace(inputs=lambda: tensors, parameters=lambda: "")


def test_audio_of_open_speeches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with backend_double("request", "stages.aligner") as (requests, stage):
        monkeypatch.setattr(stage, "MOST_HELD", 2 * RATE)

        class Alone(stage.AlignerModel):  # type: ignore[name-defined, misc]
            def caller(self, request: Any) -> Any:
                return SimpleNamespace(name="")

        model = Alone()
        model.load(Settings({}, {}))
        model.load_heavy(Settings({}, {}))

        def send(id: str, seconds: float, final: bool = False, **first: Any) -> None:
            audio = np.zeros(round(seconds * RATE), np.float32)
            steps = model.handle(requests.Request(request(audio=audio, alignment=id, final=final, **first), ()), None)
            for _ in steps:
                pass

        first = {"text": "one two", "sample_rate": RATE, "language": "en"}
        send("a", 3, **first)  # a long one alone is as long as it may be
        with pytest.raises(Overloaded, match="too long together"):
            send("b", 0.5, **first)
        send("a", 0.5, final=True)
        send("b", 1, **first)
        send("c", 1, **first)
        with pytest.raises(Overloaded, match="too long together"):
            send("b", 0.1)
        send("c", 1, final=True)
