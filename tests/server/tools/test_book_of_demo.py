"""A book from an EPUB to its file, in the demo's voice, on a real server."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client, pcm16
from voice_clone_client.long_text.plan import content_seed
from voice_clone_command import cli
from voice_clone_command.books.kept import KeptSentences

from tests.support.book_files import NAV, PAGE, entries, epub
from tests.support.servers.running import running
from tools.demo_voice import grammar
from voice_clone_server.demo import CLIP, SHIPPED

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with the demo's checkpoint and voice."""
    with running(SHIPPED, tmp_path_factory.mktemp("book"), VOICE_CLONE_DETERMINISTIC="true") as server:
        with Client(server.url) as client:
            client.upload("slt", CLIP, wait=True)
        yield server.url


def written(path: Path, paragraphs: list[str]) -> Path:
    """An EPUB of three chapters."""
    third = len(paragraphs) // 3
    one, two, three = (
        "".join(f"<p>{text}</p>" for text in paragraphs[at : at + third]) for at in (0, third, 2 * third)
    )
    texts = {"a": PAGE.format(one), "c": PAGE.format(f'{two}<div id="three">{three}</div>'), "nav": NAV}
    path.write_bytes(epub(entries(**texts)))
    return path


def kept(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("??/*.flac")}


def test_a_book_is_made_once_and_its_changes_alone_again(url: str, tmp_path: Path) -> None:
    rules, draw = grammar.rules(), random.Random(3)

    paragraphs = [" ".join(grammar.sentence(rules, draw) for _ in range(4)) for _ in range(15)]
    book, out = tmp_path / "book.epub", tmp_path / "book.m4b"
    assert len(" ".join(paragraphs)) > 1500

    def make(texts: list[str], *options: str) -> dict[str, bytes]:
        command = ["--url", url, "book", str(written(book, texts)), "--voice", "slt", "-o", str(out), *options]
        assert cli.main(command) == 0
        return kept(Path(options[1]) if options else tmp_path / ".book.m4b.parts")

    before = make(paragraphs)
    asked = ["ffprobe", "-v", "error", "-show_chapters", "-show_format", "-show_streams", "-of", "json", str(out)]
    found: dict[str, Any] = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    assert [each["tags"]["title"] for each in found["chapters"]] == ["One & only", "Two", "Three"]
    tags = found["format"]["tags"]
    assert (tags["title"], tags["artist"], tags["composer"]) == ("The Sea", "Ada Łódź, Ben", "slt")
    assert [each["codec_name"] for each in found["streams"] if each["disposition"]["attached_pic"]] == ["png"]
    first = out.read_bytes()
    changed = [grammar.sentence(rules, draw), *paragraphs[:7], "The old captain sold his boat.", *paragraphs[8:14]]
    after = make(changed)
    assert len(after.keys() - before.keys()) == 2
    assert {name: after[name] for name in after.keys() & before.keys()}.items() <= before.items()
    make(paragraphs, "--parts", str(tmp_path / "one by one"), "--parallel", "1")
    assert out.read_bytes() == first and kept(tmp_path / "one by one") == before

    plan = json.loads((tmp_path / ".book.m4b.parts" / "plan.json").read_text())
    [address] = [each[0] for chapter in plan["chapters"] for each in chapter["sentences"] if each[1][:7] == "The old"]
    seed = content_seed(0, "The old captain sold his boat.", 0, 0)
    with Client(url) as client, client.speak("The old captain sold his boat.", voice="slt", seed=seed) as speech:
        samples, rate = speech.read()
    with closing(KeptSentences(tmp_path / ".book.m4b.parts", partial=False)) as sentences:
        sound = sentences.read(address)
    assert rate == sound.rate and np.array_equal(np.frombuffer(pcm16(samples), "<i2"), np.rint(sound.samples * 32767))
