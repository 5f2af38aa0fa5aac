"""Values that no request can carry are refused before it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import voice_clone_client as vc
from voice_clone_client import requests

from tests.support.doubles.triton_double import Server


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seed": -1}, "seed cannot be sent: it must lie in 0..18446744073709551615"),
        ({"seed": 2**64}, "it must lie in 0"),
        ({"top_k": 2**31}, "top_k cannot be sent: it must lie in -2147483648..2147483647"),
        ({"top_k": 1.5}, "it must be an integer, not 1.5"),
        ({"top_k": True}, "it must be an integer, not True"),
        ({"temperature": "hot"}, "temperature cannot be sent"),
        ({"temperature": 1e300}, "temperature cannot be sent"),
        ({"do_sample": 1}, "it must be True or False, not 1"),
        ({"language": 3}, "language cannot be sent: it must be a string, not int"),
        ({"reference_text": "\ud800"}, "reference_text cannot be sent"),
        ({"speaker_embedding": [[1.0]]}, "it must have one dimension, it has 2"),
        ({"speaker_embedding": ["a"]}, "speaker_embedding cannot be sent"),
    ],
)
def test_values_without_a_place_in_their_tensor(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(vc.InvalidArgument) as caught:
        requests.infer("qwen3_tts", arguments)
    assert text in str(caught.value)


CIRCLE: dict[str, Any] = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"warmth": float("nan")}, "options.warmth cannot be sent: JSON has no number nan"),
        ({"a": {"b": [1, float("inf")]}}, "options.a.b[1] cannot be sent: JSON has no number inf"),
        ({"a": b"bytes"}, "options.a cannot be sent: JSON cannot hold a value of type bytes"),
        ({"a": np.zeros(2)}, "JSON cannot hold a value of type ndarray"),
        ({"a": {1: 2}}, "options.a cannot be sent: its key 1 is not a string"),
        ({"a": "\ud800"}, "options cannot be sent"),
        ({"a": 10**5000}, "options cannot be sent"),
        (CIRCLE, "options cannot be sent: they are nested too deeply"),
        ([1], "options must be a mapping of names to values, not list"),
        ('{"warmth": 1}', "options must be a mapping of names to values, not str"),
    ],
)
def test_options_that_json_cannot_hold(triton: Server, options: Any, text: str) -> None:
    with vc.Client(triton.url) as client, pytest.raises(vc.InvalidArgument) as caught:
        client.speak("Hi.", voice="Ada", options=options)
    assert text in str(caught.value)
    assert triton.calls == []


def test_numpy_scalars_are_fine() -> None:
    request = requests.infer("m", {"top_k": np.int64(3), "temperature": np.float32(0.5), "do_sample": np.bool_(True)})
    assert list(request.raw_input_contents) == [b"\x03\0\0\0", b"\0\0\0?", b"\x01"]


def test_unknown_knob_is_an_error(triton: Server) -> None:
    with vc.Client(triton.url) as client, pytest.raises(TypeError, match="no parameter 'temprature'"):
        client.speak("Hi.", voice="Ada", temprature=1.0)  # type: ignore[call-arg]
    assert triton.calls == []
