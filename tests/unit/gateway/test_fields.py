"""The gateway's fields of a speech are those of the server's table."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError
from voice_clone_gateway.schemas import SpeechRequest

from voice_clone.request_fields import FIELDS

NUMBERS = [each for each in FIELDS if each.range]
TENSORS = {"INT32": 2**31, "UINT64": 2**64}
VALUES: list[Any] = [-1, 0, 1, 2, 2**31 - 1, 2**31, 2**64 - 1, 2**64, 10**400]
FLOATS: list[Any] = [-0.5, 0.0, 5e-324, 0.5, 1.0, 1.5, 1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("field", NUMBERS, ids=[each.name for each in NUMBERS])
def test_gateway_and_server_take_the_same_numbers(field: Any) -> None:
    for value in VALUES + (FLOATS if field.dtype == "FP32" else []):
        fits = field.has(value) and value < TENSORS.get(field.dtype, math.inf)
        try:
            SpeechRequest.model_validate({"input": "Hi.", field.name: value})
            taken = True
        except ValidationError as error:
            taken = False
            assert error.errors()[0]["loc"][0] == field.name
        assert taken == fits, (field.name, value)


def test_every_field_of_the_table_but_the_appended_text_is_one_of_the_gateway() -> None:
    assert {each.name for each in FIELDS} - {*SpeechRequest.model_fields} == {"text", "text_stream"}
