"""The engines of the encoders."""

from __future__ import annotations

import pytest

ENGINES = ("torch", "onnx")
ONNX_GRAPHS = ("speaker_encoder", "codec_encoder")  # that a server with the engine onnx loads

on_every_engine = pytest.mark.parametrize(
    "engine", [ENGINES[0], pytest.param(ENGINES[1], marks=pytest.mark.thorough)], indirect=True
)
"""A server test that runs once for each engine; the fixture `server` is a server with that engine."""
