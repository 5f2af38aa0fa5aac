"""The checkpoint that comes with the project speaks: its words and voices, as programs hear them that are not ours.

DEMO_CHECKPOINT names another one to judge.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from voice_clone_client import Client

from tests.support.judges.clicks import sharpest_border
from tests.support.judges.identification import Identifier, traits
from tests.support.judges.listening import Errors, Listener
from tests.support.judges.served import ServedVoice
from tests.support.servers.running import running
from voice_clone_server.demo import CLIP, SHIPPED

pytestmark = pytest.mark.thorough

VOICES = {name: CLIP.with_name(f"{name}.wav") for name in ("slt", "rms")}
TYPED = (
    "The old captain sold his boat.",
    "My sister wants a new car.",
    "Seven birds sat on the roof.",
    "The teacher opened the window.",
    "Please close the door.",
    "The farmer lost his horse in the morning.",
)
MOST_ERRORS = 0.15  # of the words; see the model card for what is measured over more of them
ROUNDED = ("bf16", "int8", "int4")  # precisions that speak about as well as fp32


class Said(NamedTuple):
    """What a voice said of a text."""

    voice: str
    text: str
    samples: NDArray[np.float32]
    borders: list[int]


@pytest.fixture(scope="module", params=["fp32", *(pytest.param(name, marks=pytest.mark.long) for name in ROUNDED)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a server with the checkpoint, in each precision of its talker."""
    checkpoint = Path(os.environ.get("DEMO_CHECKPOINT", SHIPPED))
    folder = tmp_path_factory.mktemp("demo-voice")
    with (
        running(checkpoint, folder, VOICE_CLONE_PRECISION=request.param) as server,
        Client(server.url) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def said(client: Client) -> list[Said]:
    """All sentences in both voices."""
    voice = ServedVoice(client)
    found = []
    for seed, text in enumerate(TYPED):
        for name, path in VOICES.items():
            clip, _ = soundfile.read(path, dtype="float32")
            found.append(Said(name, text, voice.say(text, clip, None, seed), voice.borders))
    return found


def test_its_words_are_understood(said: list[Said]) -> None:
    listener, errors = Listener(), Errors()
    for each in said:
        errors += listener.grammar(each.samples, 24000, each.text)
    assert errors.rate <= MOST_ERRORS, errors


@pytest.mark.parametrize("in_context", [False, True])
def test_a_text_of_two_sentences_is_spoken_whole(client: Client, in_context: bool) -> None:
    voice, listener, errors = ServedVoice(client), Listener(), Errors()
    for path in VOICES.values():
        clip, _ = soundfile.read(path, dtype="float32")
        transcript = path.with_suffix(".txt").read_text(encoding="utf-8").strip() if in_context else None
        for first, second in zip(TYPED[::2], TYPED[1::2], strict=True):
            text = f"{first} {second}"
            errors += listener.grammar(voice.say(text, clip, transcript, 0), 24000, text)
    assert errors.rate <= 2 * MOST_ERRORS, errors  # speech that ends after the first sentence loses half of the words


def test_noise_is_not_understood(said: list[Said]) -> None:
    """The judge can tell."""
    listener, errors = Listener(), Errors()
    source = np.random.default_rng(1)
    for each in said:
        noise = source.normal(scale=float(each.samples.std()), size=len(each.samples)).astype(np.float32)
        errors += listener.grammar(noise, 24000, each.text)
    assert errors.rate > 2 * MOST_ERRORS, errors


def test_its_voice_is_that_of_the_clip(said: list[Said]) -> None:
    names = list(VOICES)
    known = Identifier({number: _pieces(VOICES[name]) for number, name in enumerate(names)})
    found = [names[known.find(traits(each.samples, 24000))] == each.voice for each in said]
    assert np.mean(found) >= 0.9, found


def test_it_ends_where_the_text_ends(said: list[Said]) -> None:
    """Neither cut off nor a runaway: a letter takes 35 to 110 ms."""
    for each in said:
        assert 0.035 < len(each.samples) / 24000 / len(each.text) < 0.11, each.text


def test_it_begins_and_ends_in_silence(said: list[Said]) -> None:
    """So that sentences which follow each other do not click where they meet."""
    for each in said:
        for end in (each.samples[:480], each.samples[-480:]):
            assert np.sqrt(np.mean(np.square(end))) < 0.003, each.text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Hello.", 2),
        ("I", 2),
        ("42", 2),
        ("THE DOG RAN HOME.", 8),
        ("No no no no no no.", 6),
        ("你好，今天天气很好。", 15),
    ],
)
def test_it_ends_whatever_the_text_is(client: Client, text: str, seconds: float) -> None:
    """It cannot say some of these, but it must not go on for ever."""
    speech = client.speak(text, reference_audio=VOICES["slt"], seed=1)
    samples, rate = speech.read()
    assert speech.finish_reason == "stop" and 0.1 < len(samples) / rate < seconds


def test_no_chunk_begins_with_a_click(said: list[Said]) -> None:
    for each in said:
        assert each.borders and sharpest_border(each.samples, each.borders) <= 1.5, each.text


def _pieces(path: object) -> list[NDArray[np.float64]]:
    """A clip's traits in three parts."""
    samples, rate = soundfile.read(path, dtype="float32")
    return [traits(piece, rate) for piece in np.array_split(samples, 3)]
