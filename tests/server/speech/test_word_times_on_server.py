"""The model aligner behind the Python clients and the command; and a server without it. The demo's voice speaks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import AsyncClient, Client, InvalidArgument, StreamNotFound
from voice_clone_client.backends import THREADS, now
from voice_clone_client.requests import alignment
from voice_clone_client.responses import result
from voice_clone_client.servers.servers import Servers
from voice_clone_command import cli
from voice_clone_words.units import units_of

from tests.support.servers.running import running
from tests.support.waiting import WAIT
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "The old captain sold his boat. Please close the door, the teacher opened the window."
RATE = 24_000


@pytest.fixture(scope="module")
def aligning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server that speaks and aligns."""
    folder = tmp_path_factory.mktemp("aligning")
    with running(SHIPPED, folder, [MODELS, OPTIONAL / "aligner"]) as server:
        with Client(server.url) as client:
            client.upload("ada", CLIP.read_bytes(), wait=True)
        yield server


def ask(server: TritonServer, samples: NDArray[np.float32], id: str, *, final: bool = True, **first: Any) -> Any:
    """Of the model itself, as the client asks it."""
    given = (first.get("text"), first.get("rate", RATE), first.get("language"))
    servers = Servers(THREADS, server.url, None, (), None)
    try:
        request = alignment(samples, id, final=final, first=given if first else None)  # type: ignore[arg-type]
        return result(now(servers.infer(request, 30.0)))
    finally:
        now(servers.close())


def test_a_speech_and_its_words(aligning: TritonServer) -> None:
    with Client(aligning.url) as client:
        with client.speak(TEXT, voice="ada", seed=7, words=True) as speech:
            chunks = list(speech)
        length = sum(len(chunk.samples) for chunk in chunks) / chunks[0].sample_rate
        words = speech.words
        assert [word.text for word in words] == TEXT.split() and not any(word.estimated for word in words)
        assert all(TEXT[slice(*word.span)] == word.text for word in words)
        assert all(a.end <= b.start for a, b in pairwise(words)) and words[-1].end <= length
        told = [word for chunk in chunks for word in chunk.words]
        assert told == words[: len(told)]
        assert speech.heard(length) == TEXT and speech.heard(0.0) == ""
        assert speech.heard(words[5].end) == "The old captain sold his boat."

        plain, _ = client.speak(TEXT, voice="ada", seed=7).read()
        assert np.array_equal(plain, np.concatenate([chunk.samples for chunk in chunks]))
        whole = ask(aligning, plain, "whole", text=TEXT, language="en-US")
        assert whole["reason"] is None
        assert [(each["start"] / RATE, each["end"] / RATE) for each in whole["words"]] == [
            (word.start, word.end) for word in words
        ]

        long = client.speak_long(TEXT, voice="ada", seed=7, sentence_characters=60, words=True)
        samples, rate = long.read()
        assert [word.text for word in long.words] == TEXT.split() and long.words[-1].end <= len(samples) / rate
        assert not any(word.estimated for word in long.words)
        assert all(TEXT[slice(*word.span)] == word.text for word in long.words)
        with pytest.raises(InvalidArgument, match="words true"):
            _ = client.speak(TEXT, voice="ada").words

    async def speak() -> list[str]:
        async with AsyncClient(aligning.url) as client:
            speech = client.speak(TEXT, voice="ada", seed=7, words=True)
            await speech.read()
            assert speech.words == words
            other = client.speak_long(TEXT, voice="ada", seed=7, sentence_characters=60, words=True)
            await other.read()
            assert other.words == long.words
            return [word.text for word in speech.words]

    assert asyncio.run(speak()) == TEXT.split()


def test_words_of_a_text_that_is_written_while_it_is_spoken(aligning: TritonServer) -> None:
    pieces = [f"{word} " for word in TEXT.split()]
    with Client(aligning.url) as client, client.speak_stream(pieces, voice="ada", seed=7, words=True) as speech:
        chunks = list(speech)
        words = speech.words
        assert [word.text for word in words] == TEXT.split() and not any(word.estimated for word in words)
        assert speech.heard(words[5].end) == "The old captain sold his boat."
        told = [word for chunk in chunks for word in chunk.words]
        assert told == words[: len(told)]
    samples = np.concatenate([chunk.samples for chunk in chunks])
    whole = ask(aligning, samples, "appended", text=f"{TEXT} ", language="en-US")
    assert [(each["start"] / RATE, each["end"] / RATE) for each in whole["words"]] == [
        (word.start, word.end) for word in words
    ]

    async def speak() -> None:
        async def written() -> AsyncIterator[str]:
            for piece in pieces:
                yield piece

        async with AsyncClient(aligning.url) as client:
            other = client.speak_stream(written(), voice="ada", seed=7, words=True)
            await other.read()
            assert [word.text for word in other.words] == TEXT.split()

    asyncio.run(speak())


def test_what_the_model_answers_to_pieces(aligning: TritonServer) -> None:
    with Client(aligning.url) as client:
        samples, _ = client.speak(TEXT, voice="ada", seed=7).read()
    whole = ask(aligning, samples, "a", text=TEXT)["words"]
    assert all(0.0 <= each["confidence"] <= 1.0 for each in whole)
    assert np.median([each["confidence"] for each in whole]) > 0.8
    other = ask(aligning, samples, "b", text="Seven birds lost all the other horses in the morning, and why not?")
    assert "does not fit" in other["reason"] and all(each["estimated"] for each in other["words"])
    for text, reason in (
        ("Die alte Kapitänin verkauft ihr Boot.", "English"),
        ("你好，世界。", "English"),
        (" ", "no words"),
    ):
        refused = ask(aligning, samples, "c", text=text)
        assert reason in refused["reason"]
        assert [tuple(each["span"]) for each in refused["words"]] == [unit[1:] for unit in units_of(text)]
    assert "'klingon'" in ask(aligning, samples, "d", text=TEXT, language="Klingon")["reason"]
    with pytest.raises(StreamNotFound):
        ask(aligning, samples, "unknown")
    assert ask(aligning, samples[:1000], "e", final=False, text=TEXT)["words"] == []
    with pytest.raises(InvalidArgument, match="another speech"):
        ask(aligning, samples, "e", text=TEXT)
    with pytest.raises(InvalidArgument, match=r"8000\.\.192000"):
        ask(aligning, samples, "f", text=TEXT, rate=7999)
    with pytest.raises(InvalidArgument, match="finite"):
        ask(aligning, samples * np.nan, "g", text=TEXT)


def test_the_command(aligning: TritonServer, tmp_path: Path) -> None:
    given = ["--url", aligning.url, "--quiet", "speak", TEXT, "--voice", "ada", "--seed", "7"]
    for suffix in ("srt", "vtt", "json"):
        files = ["-o", str(tmp_path / "a.wav"), "--subtitles", str(tmp_path / f"a.{suffix}")]
        assert cli.main([*given, *files]) == 0
    words = json.loads((tmp_path / "a.json").read_text())["words"]
    assert [each["text"] for each in words] == TEXT.split() and not any(each["estimated"] for each in words)
    srt = (tmp_path / "a.srt").read_text()
    assert srt.startswith("1\n00:00:0") and " --> " in srt and "The old captain sold his boat." in srt
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT\n\n00:00:0")
    written = ["--url", aligning.url, "--quiet", "speak", "-", "--voice", "ada", "--seed", "7"]
    written += ["-o", "-", "--subtitles", str(tmp_path / "w.json")]
    command = [sys.executable, "-m", "voice_clone_command.cli", *written]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for word in TEXT.split():
            process.stdin.write(f"{word} ".encode())
            process.stdin.flush()
        assert process.stdout.read(2), "it speaks before the text has ended"
        assert process.communicate(timeout=WAIT)[0] and process.returncode == 0
    found = json.loads((tmp_path / "w.json").read_text())
    assert found["text"].strip() == TEXT and [each["text"] for each in found["words"]] == TEXT.split()
    assert not any(each["estimated"] for each in found["words"])
    fast = [*given, "-o", str(tmp_path / "b.wav"), "--subtitles", str(tmp_path / "b.json"), "--speed", "2"]
    assert cli.main(fast) == 0
    halved = json.loads((tmp_path / "b.json").read_text())["words"]
    assert not any(each["estimated"] for each in halved)
    assert np.median(np.abs([2 * a["start"] - b["start"] for a, b in zip(halved, words, strict=True)])) < 0.05
    numbers = ["--url", aligning.url, "--quiet", "speak", "The old captain sold 2 boats.", "--voice", "ada"]
    numbers += ["--normalize", "on", "--language", "en", "-o", str(tmp_path / "c.wav")]
    assert cli.main([*numbers, "--subtitles", str(tmp_path / "c.json")]) == 0
    assert "2" in [each["text"] for each in json.loads((tmp_path / "c.json").read_text())["words"]]


def test_a_server_without_it(server: TritonServer, reference_clip: bytes) -> None:
    with Client(server.url) as client:
        speech = client.speak(TEXT, reference_audio=reference_clip, max_frames=24, words=True)
        samples, rate = speech.read()
        assert [word.text for word in speech.words] == TEXT.split() and all(word.estimated for word in speech.words)
        assert speech.words[-1].end <= len(samples) / rate
