"""The command that speaks a book: only what is new is made, whatever ended the run before; against the double."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from voice_clone_command.books.planning import Planner
from voice_clone_command.books.reading import read_book
from voice_clone_command.origin import hashed
from voice_clone_sound.loudness import loudness_of
from voice_clone_text.planner import Settings

from tests.support.book_files import png
from tests.support.doubles.command_line import Run, end_midway
from tests.support.doubles.repeatable_speech import RepeatableSpeech
from tests.support.doubles.triton_double import Server

WORDS = ("harbour", "captain", "morning", "quiet", "letter", "seven", "window", "garden", "river", "stone", "candle")


def paragraphs(many: int, seed: int = 0) -> list[str]:
    """Paragraphs of three sentences, each sentence once in all of them."""
    draw = random.Random(seed)

    def sentence(number: int) -> str:
        words = [draw.choice(WORDS) for _ in range(9)]
        return f"{' '.join(words).capitalize()} {chr(97 + number % 26)}{number}."

    return [" ".join(sentence(3 * index + at + 100_000 * seed) for at in range(3)) for index in range(many)]


def write(path: Path, texts: list[str], chapter: int = 100) -> Path:
    """A text with a chapter for so many paragraphs."""
    parts = [[f"Chapter {at // chapter + 1}", *texts[at : at + chapter]] for at in range(0, len(texts), chapter)]
    path.write_text("\n\n".join("\n\n".join(part) for part in parts), encoding="utf-8")
    return path


def probe(path: Path) -> dict[str, Any]:
    """What FFmpeg's own program says of a file."""
    asked = ["ffprobe", "-v", "error", "-show_chapters", "-show_format", "-show_streams", "-of", "json", str(path)]
    found: dict[str, Any] = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    return found


def samples_of(path: Path) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(stream)]), stream.rate


def kept(path: Path) -> set[str]:
    return {file.name for file in path.with_name(f".{path.name}.parts").glob("??/*")}


def sentences(text: str) -> list[str]:
    return [f"{each}." for each in text.rstrip(".").split(". ")]


def test_exactly_what_is_new_is_made(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    many = 60
    book, out = write(tmp_path / "book.txt", paragraphs(many)), tmp_path / "book.mp3"
    command = ("book", book, "--voice", "Ada", "-o", out, "--loudness", "off", "--paragraph-pause", 0, "-q")

    def made(texts: list[str]) -> list[str]:
        server.spoken.clear()
        book.write_text("\n\n".join(texts), encoding="utf-8")
        assert run(*command) == 0
        return sorted(server.spoken.elements())

    lines = book.read_text().split("\n\n")
    assert len(made(lines)) == len(kept(out)) == 3 * many + len(lines) - many
    assert made(lines) == []
    before = kept(out)
    [new, other] = paragraphs(2, seed=1)
    assert made([new, *lines]) == sorted(sentences(new)) and kept(out) > before
    assert made([*lines[:50], other, *lines[51:]]) == sorted(sentences(other))
    assert made(lines) == sorted(sentences(lines[50])) and kept(out) == before
    assert made([*lines[:50], *lines[51:]]) == [] and len(before - kept(out)) == 3
    first, second, third = sentences(lines[50])
    assert made(lines) == sorted((first, second, third))
    assert made([*lines[:50], f"{first} {second.upper()} {third}", *lines[51:]]) == [second.upper()]


def test_a_change_of_a_long_book_changes_no_other_names(tmp_path: Path) -> None:
    def named(texts: list[str]) -> dict[str, str]:
        book = read_book("\n\n".join(texts).encode(), "book.txt")
        name = partial(hashed, {})
        planner = Planner(Settings("text"), 300, (0, 0, 0), 0, 3, lambda text, seeds: name(text=text, seeds=seeds))
        return {each.address: each.text for chapter in planner.plan(book) for each in chapter.all}

    lines = write(tmp_path / "book.txt", paragraphs(500)).read_text().split("\n\n")
    assert sum(map(len, lines)) > 100_000
    [new, other], before = paragraphs(2, seed=1), named(lines)
    assert len(before) == 500 * 3 + 5
    for changed, made, dropped in (
        ([new, *lines], new, ""),
        ([*lines[:50], other, *lines[51:]], other, lines[50]),
        ([*lines[:50], *lines[51:]], "", lines[50]),
    ):
        after = named(changed)
        assert [after[name] for name in after if name not in before] == (sentences(made) if made else [])
        assert [before[name] for name in before if name not in after] == (sentences(dropped) if dropped else [])


def test_equal_sentences_are_each_spoken_their_own_way(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, out = tmp_path / "book.txt", tmp_path / "book.mp3"
    book.write_text("Yes, of course.\n\n" * 3)
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    assert server.spoken == {"Yes, of course.": 3} and len(kept(out)) == 3
    book.write_text("Yes, of course.\n\n" * 2)
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    assert server.spoken == {"Yes, of course.": 3} and len(kept(out)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("suffix", [".m4b", ".mp3", ""])
def test_a_run_that_is_ended_midway_goes_on_to_the_same_bytes(
    triton: Server, server: RepeatableSpeech, run: Run, tmp_path: Path, number: int, suffix: str
) -> None:
    book = write(tmp_path / "book.txt", paragraphs(20), chapter=7)
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert run("book", book, "--voice", "Ada", "-o", whole) == 0
    spoken = dict(server.spoken)
    server.spoken.clear()
    words = [book, "--voice", "Ada", "-o", out, "--parallel", 3]
    end_midway(triton, server, number, 25, "book", *words)
    assert not out.exists()
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    assert contents(out, whole.name) == contents(whole, whole.name) and kept(out) == kept(whole)
    assert server.spoken.keys() == spoken.keys()
    assert sum(server.spoken.values()) <= sum(spoken.values()) + 3, "only those that were being made are made twice"


def contents(path: Path, name: str) -> dict[str, bytes]:
    files = path.iterdir() if path.is_dir() else [path]
    return {"" if file == path else file.name: file.read_bytes() for file in files}


def test_files_of_others_stay(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, out, parts = write(tmp_path / "book.txt", paragraphs(2)), tmp_path / "book.mp3", tmp_path / "parts"
    assert run("book", book, "--voice", "Ada", "-o", out, "--parts", parts) == 0
    old = next(parts.glob("??/*.flac"))
    names = (f"{'0' * 64}.txt", "chapter.flac", "notes.txt", f"x{old.name}", f"{old.name}.bak")
    own = [folder / name for folder in (parts / "en", old.parent) for name in names]
    gone = old.parent / f".{old.name}.0123abcd.part.flac"
    (parts / "en").mkdir()
    (old.parent / f"{'f' * 64}.flac").mkdir()
    for path in (*own, gone):
        path.write_text("of the owner")
    book.write_text("All of it is new.")
    assert run("book", book, "--voice", "Ada", "-o", out, "--parts", parts) == 0
    assert all(path.read_text() == "of the owner" for path in own) and not gone.exists() and not old.exists()
    assert len(list(parts.glob("??/*.flac"))) == 1 + 1 + sum(path.suffix == ".flac" for path in own)


def test_a_folder_of_others_is_refused(
    server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, parts = write(tmp_path / "book.txt", paragraphs(1)), tmp_path / "project"
    (parts / "en").mkdir(parents=True)
    assert run("book", book, "--voice", "Ada", "-o", tmp_path / "book.mp3", "--parts", parts) == 1
    assert "--parts" in capsys.readouterr().err and not server.spoken
    assert [path.name for path in parts.iterdir()] == ["en"]


def test_a_damaged_sentence_is_made_again(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, out = write(tmp_path / "book.txt", paragraphs(5)), tmp_path / "book.mp3"
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    before, files = out.read_bytes(), sorted((tmp_path / ".book.mp3.parts").glob("??/*"))
    server.spoken.clear()
    for file, damage in zip(files, (b"", files[1].read_bytes()[:-9], b"fLaC" + bytes(500)), strict=False):
        file.write_bytes(damage)
    data = bytearray(files[3].read_bytes())
    data[-100] ^= 1
    files[3].write_bytes(data)
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    assert out.read_bytes() == before and sum(server.spoken.values()) == 4


def test_what_changes_the_sound_is_made_again(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, out = write(tmp_path / "book.txt", paragraphs(1)), tmp_path / "book.mp3"

    def made(*options: object) -> int:
        server.spoken.clear()
        assert run("book", book, "--voice", "Ada", "-o", out, *options) == 0
        return sum(server.spoken.values())

    assert made() == 4
    for same in (["--loudness", -20], ["--speed", 1.5], ["--no-cache"], ["--parallel", 1], ["--chapter-pause", 3]):
        assert made(*same) == 0
    for other in (["--seed", 5], ["--temperature", 0.5], ["--option", "warmth=2"], ["--mark", "on"]):
        assert made(*other) == 4
    server.voice = "v2"
    assert made() == 4
    server.synthesizer = "s2"
    assert made() == 4


def test_a_voice_that_is_replaced_meanwhile_ends_the_run(
    server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = write(tmp_path / "book.txt", paragraphs(4)), tmp_path / "book.mp3"
    server.before = lambda text: setattr(server, "voice", "v2" if sum(server.spoken.values()) > 5 else "v1")
    assert run("book", book, "--voice", "Ada", "-o", out, "--parallel", 1) == 1
    assert "the voice has changed" in capsys.readouterr().err and not out.exists()


def test_a_sentence_whose_end_is_missed(
    server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed of it is tried; all others are made all the same."""
    book, out = write(tmp_path / "book.txt", paragraphs(3)), tmp_path / "book.mp3"
    seeds = list[int]()

    def misses(text: str, seed: int) -> bool:
        if text != "Chapter 1":
            return False
        seeds.append(seed)
        return len(seeds) != 5

    server.misses = misses
    assert run("book", book, "--voice", "Ada", "-o", out) == 1
    assert "'Chapter 1'" in capsys.readouterr().err and not out.exists()
    assert len(set(seeds)) == 3 and len(server.spoken) == 10
    assert run("book", book, "--voice", "Ada", "-o", out, "--allow-partial") == 0
    assert len(seeds) == 3, "what was made of it is taken"
    assert run("book", book, "--voice", "Ada", "-o", out) == 0
    assert seeds[3:] == seeds[:2] and sum(server.spoken.values()) == 9 + 5


def test_a_file_with_chapters_tags_and_cover(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    (tmp_path / "cover.png").write_bytes(png(8, 8))
    book = write(tmp_path / "book.txt", paragraphs(9), chapter=3)
    for suffix in (".m4b", ".mp3"):
        out = tmp_path / f"book{suffix}"
        options = ("--title", "Die See", "--author", "Ada Łódź", "--cover", tmp_path / "cover.png")
        assert run("book", book, "--voice", "Ada", "-o", out, *options) == 0
        found = probe(out)
        tags = found["format"]["tags"]
        assert [tags[name] for name in ("title", "album", "artist", "genre", "composer")] == [
            *("Die See", "Die See", "Ada Łódź", "Audiobook", "Ada")
        ]
        assert "trainedAlgorithmicMedia, family=qwen3_tts, mark=marked" in tags["comment"]
        assert [each["tags"]["title"] for each in found["chapters"]] == ["Chapter 1", "Chapter 2", "Chapter 3"]
        assert all(
            one["end"] == next["start"] for one, next in zip(found["chapters"], found["chapters"][1:], strict=False)
        )
        assert abs(float(found["chapters"][-1]["end_time"]) - float(found["format"]["duration"])) < 0.1
        [picture] = [each for each in found["streams"] if each["disposition"]["attached_pic"]]
        assert picture["codec_name"] == "png" and (picture["width"], picture["height"]) == (8, 8)
        # A chapter begins where its speech does: half a second of silence is before that.
        samples, rate = samples_of(out)
        start = round(float(found["chapters"][1]["start_time"]) * rate)
        assert (
            np.abs(samples[start - rate : start + rate // 3]).max() < 0.01 < np.abs(samples[start + rate // 2 :]).max()
        )


def test_a_book_has_one_gain(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    """Loud and soft sentences keep their difference."""
    book, sounds = write(tmp_path / "book.txt", paragraphs(20)), []
    for target in ("off", "-23"):
        assert run("book", book, "--voice", "Ada", "-o", tmp_path / "book.m4b", "--loudness", target) == 0
        sounds.append(samples_of(tmp_path / "book.m4b")[0])
    figure = loudness_of([sounds[1]], 24000)
    assert figure is not None and abs(figure + 23) < 0.3
    levels = [np.sqrt(np.square(sound[: len(sound) // 240 * 240].reshape(-1, 240)).mean(1)) for sound in sounds]
    speech = levels[0] > 0.02
    ratios = levels[1][speech] / levels[0][speech]
    assert (
        np.percentile(ratios, 95) / np.percentile(ratios, 5) < 1.1 < levels[0][speech].max() / levels[0][speech].min()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("most", [255, 256])
def test_many_chapters(server: RepeatableSpeech, run: Run, tmp_path: Path, most: int) -> None:
    book = write(tmp_path / "book.txt", ["Yes, so it is."] * most, chapter=1)
    options = ("--chapter-pause", 0, "--paragraph-pause", 0, "--loudness", "off")
    assert run("book", book, "--voice", "Ada", "-o", tmp_path / "book.m4b", *options) == 0
    assert len(probe(tmp_path / "book.m4b")["chapters"]) == most
    assert (b"chpl" in (tmp_path / "book.m4b").read_bytes()) is (most <= 255)


def test_a_folder_has_a_file_for_each_chapter(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, out = tmp_path / "book.md", tmp_path / "Ada" / "The Sea"
    (tmp_path / "cover.png").write_bytes(png(8, 8))
    book.write_text("# The Sea\n\n## One / two: three?\n\nYes, so it is.\n\n## ...\n\nNo, it is not.\n\n## Four\n\nSo?")
    options = ("--voice", "Ada", "-o", out, "--cover", tmp_path / "cover.png", "--title", "The Sea")
    assert run("book", book, *options) == 0
    names = ["01 One two three.mp3", "02 Four.mp3"]
    assert sorted(file.name for file in out.iterdir()) == [*names, "cover.png", "playlist.m3u8"]
    for number, name in enumerate(names, 1):
        tags = probe(out / name)["format"]["tags"]
        assert (tags["track"], tags["album"]) == (f"{number}/2", "The Sea")
    assert [line for line in (out / "playlist.m3u8").read_text().splitlines() if line[0] != "#"] == names
    (out / "notes.txt").write_text("of the owner")
    book.write_text("# The Sea\n\nYes, so it is.")
    assert run("book", book, *options) == 0
    assert sorted(file.name for file in out.iterdir()) == ["01 The Sea.mp3", "cover.png", "notes.txt", "playlist.m3u8"]


def test_another_kind_of_output_leaves_the_first(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    book, first, second = write(tmp_path / "book.txt", paragraphs(2), chapter=1), tmp_path / "a", tmp_path / "b"
    command = ("book", book, "--voice", "Ada", "--parts", tmp_path / "parts", "-o")
    assert run(*command, first) == 0
    before = contents(first, "")
    second.mkdir()
    for name in before:
        (second / name).write_text("of the owner")
    write(book, paragraphs(1), chapter=1)
    for out in (tmp_path / "book.mp3", second):
        assert run(*command, out) == 0 and contents(first, "") == before
    assert (second / "02 Chapter 2.mp3").read_text() == "of the owner"


@pytest.mark.parametrize("kind", [5, [5], {"a": 1}, None, ["..", "../book.txt", "notes.txt", "01\0.mp3", "02 a.mp3"]])
def test_a_wrong_plan_does_no_harm(server: RepeatableSpeech, run: Run, tmp_path: Path, kind: Any) -> None:
    book, out, parts = write(tmp_path / "book.txt", paragraphs(1)), tmp_path / "out", tmp_path / "parts"
    command = ("book", book, "--voice", "Ada", "--parts", parts, "-o", out)
    assert run(*command) == 0
    (out / "notes.txt").write_text("of the owner")
    (out / "02 a.mp3").mkdir()
    names = {path.name for path in out.iterdir()}
    plan = json.loads((parts / "plan.json").read_text())
    for text in (json.dumps({**plan, "files": kind}), "[" * 100_000):
        (parts / "plan.json").write_text(text)
        assert run(*command) == 0
        assert book.exists() and {path.name for path in out.iterdir()} == names
    assert json.loads((parts / "plan.json").read_text()) == plan


@pytest.mark.parametrize("name", [".", "..", "a/.."])
def test_a_folder_by_its_place(
    server: RepeatableSpeech, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    book, here = write(tmp_path / "book.txt", paragraphs(1)), tmp_path / "library" / "sea"
    (here / "a").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert run("book", book, "--voice", "Ada", "-o", name) == 0
    out = Path(name).resolve()
    assert (out / "playlist.m3u8").exists() and (out.parent / f".{out.name}.parts" / "plan.json").exists()


def test_two_runs_at_once_are_refused(
    triton: Server, server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = write(tmp_path / "book.txt", paragraphs(1)), tmp_path / "book.mp3"
    codes = list[int]()
    server.before = lambda text: codes or codes.append(run("book", book, "--voice", "Ada", "-o", out))
    assert run("book", book, "--voice", "Ada", "-o", out, "--parallel", 1) == 0 and codes == [1]
    assert "--parts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--voice", "Ada", "--cover", "book.txt", "-o", "a.mp3"], "JPEG or PNG"),
        (["-o", "a.mp3"], "--voice"),
        (["--voice", "Ada", "-o", "book.txt"], ".m4b or .mp3"),
        (["--voice", "Ada", "-o", "/"], "name"),
        (["--voice", "Ada", "-o", "folder.m4b"], "folder without"),
        (["--voice", "Ada", "-o", "a.mp3", "--parallel", "0"], "1 to 256"),
    ],
)
def test_wrong_options(
    server: RepeatableSpeech,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "book.txt", paragraphs(1))
    (tmp_path / "folder.m4b").mkdir()
    try:
        assert run("book", "book.txt", *options) == 1
    except SystemExit as error:
        assert error.code == 2
    assert words in capsys.readouterr().err and not server.spoken
