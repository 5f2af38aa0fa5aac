"""The command in this process, for all tests of it."""

from __future__ import annotations

import pytest

from tests.support.doubles.command_line import Run, in_process
from tests.support.doubles.repeatable_speech import RepeatableSpeech
from tests.support.doubles.triton_double import Server


@pytest.fixture
def run(triton: Server) -> Run:
    return in_process(triton)


@pytest.fixture
def server(triton: Server) -> RepeatableSpeech:
    return RepeatableSpeech(triton)
