"""The command that speaks the rows of a table: each fails alone, and what is there is not made again."""

from __future__ import annotations

import importlib.util
import json
import signal
import wave
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.doubles.command_line import Run, end_midway
from tests.support.doubles.repeatable_speech import RepeatableSpeech
from tests.support.doubles.triton_double import Failure, Server


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "table.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def numbered(many: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"This is row {number}."} for number in range(many)]


def refused(text: str) -> None:
    if text.startswith("Wrong"):
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: `language` is none of the model's")


def test_a_row_a_file_and_a_lost_row_an_error(
    triton: Server, server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "table.csv", tmp_path / "out"
    path.write_text(
        "\ufeffid,text,voice,seed,do_sample,options\n"
        'a,"One, two.",Ada,5,false,"{""warmth"": 2}"\n'
        "b,Wrong here.,,,,\n"
        "c,Three.,,x,,\n"
        'd,"Ä\n\nB.",,,,\n',
        encoding="utf-8",
    )
    server.before = refused
    assert run("batch", path, "--voice", "Ben", "--seed", 7, "-o", out, "--parallel", 1) == 1
    assert capsys.readouterr().out == f"{out}\t4 rows\t2 made\t2 failed\n"
    first, second, third, fourth = results(out)
    assert (first["id"], first["file"], first["finish_reason"]) == ("a", "a.wav", "stop")
    with wave.open(str(out / "a.wav")) as wav:
        assert abs(wav.getnframes() / wav.getframerate() - first["seconds"]) < 0.001
    assert second == {"id": "b", "error": second["error"]} and second["error"]["code"] == "invalid_argument"
    assert "language" in second["error"]["message"] and "seed" in third["error"]["message"]
    assert fourth["file"] == "d.wav" and sorted(file.name for file in out.iterdir()) == [
        ".lock",
        "a.wav",
        "d.wav",
        "results.jsonl",
    ]
    asked = {inputs["text"].decode(): inputs for _, inputs in triton.speeches}
    assert asked["One, two."]["seed"] == 5 and asked["One, two."]["voice"] == b"Ada"
    assert not asked["One, two."]["do_sample"] and json.loads(asked["One, two."]["options"]) == {"warmth": 2}
    assert asked["Ä\n\nB."]["seed"] == 7 and asked["Ä\n\nB."]["voice"] == b"Ben"


def test_only_what_is_new_or_failed_is_made(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    rows, out = [*numbered(20), {"id": "w", "text": "Wrong here."}], tmp_path / "out"

    def made(code: int, *options: object) -> list[str]:
        server.spoken.clear()
        assert run("batch", table(tmp_path, rows), "--voice", "Ada", "-o", out, "-q", *options) == code
        assert [row["id"] for row in results(out)] == [str(row["id"]) for row in rows]
        return sorted(server.spoken)

    server.before = refused
    assert len(made(1)) == 20
    assert made(1) == []
    server.before = lambda text: None
    assert made(0) == ["Wrong here."]
    assert made(0) == []
    rows[3] |= {"text": "Another text."}
    rows[4] |= {"seed": 8}
    rows.insert(0, {"id": "new", "text": "It is new."})
    (out / "7.wav").unlink()
    assert made(0) == ["Another text.", "It is new.", "This is row 4.", "This is row 7."]
    assert len(made(0, "--speed", 1.5)) == 22
    server.voice = "v2"
    assert len(made(0, "--speed", 1.5)) == 22


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_midway_goes_on(
    triton: Server, server: RepeatableSpeech, run: Run, tmp_path: Path, number: int
) -> None:
    path, out = table(tmp_path, numbered(40)), tmp_path / "out"
    words = [path, "--voice", "Ada", "-o", out, "--parallel", 3]
    end_midway(triton, server, number, 20, "batch", *words)
    with open(out / "results.jsonl", "a") as log:
        log.write('{"id": "39", "fi')  # as a loss of power would leave it
    assert run("batch", path, "--voice", "Ada", "-o", out) == 0
    assert [row["file"] for row in results(out)] == [f"{number}.wav" for number in range(40)]
    assert len(server.spoken) == 40 and sum(server.spoken.values()) <= 40 + 3


def test_a_missed_end_is_an_error_unless_it_is_allowed(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    path, out = table(tmp_path, numbered(2)), tmp_path / "out"
    server.misses = lambda text, seed: "1" in text
    assert run("batch", path, "--voice", "Ada", "--seed", 1, "-o", out) == 1
    assert results(out)[1]["error"]["code"] == "incomplete" and not (out / "1.wav").exists()
    assert run("batch", path, "--voice", "Ada", "--seed", 1, "-o", out, "--allow-partial") == 0
    assert results(out)[1]["finish_reason"] == "budget" and (out / "1.wav").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"id": "é" * 200}, "255 bytes"),
        ({"id": "\U00020000" * 63}, "255 bytes"),
        ({"voice": ["Ada"]}, "voice"),
        ({"voice": {"name": "Ada"}}, "voice"),
        ({"voice": 5}, "string"),
        ({"model": ["m"]}, "model"),
        ({"seed": [1]}, "seed"),
        ({"options": [1]}, "options"),
        ({"options": 1}, "options"),
    ],
)
def test_a_wrong_row_fails_alone(
    server: RepeatableSpeech, run: Run, tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    rows, out = [{"id": "a", "text": "It is wrong.", **wrong}, *numbered(1)], tmp_path / "out"
    assert run("batch", table(tmp_path, rows), "--voice", "Ada", "-o", out) == 1
    first, second = results(out)
    assert words in first["error"]["message"] and second["file"] == "0.wav" and len(server.spoken) == 1


def test_a_row_that_fails_leaves_no_older_file(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    rows, out = numbered(3), tmp_path / "out"
    assert run("batch", table(tmp_path, rows), "--voice", "Ada", "-o", out) == 0
    (out / "new.wav").write_text("of the owner")
    server.before = refused
    rows[0] |= {"text": "Wrong now."}
    rows[1] |= {"voice": ["Ben"]}
    rows.append({"id": "new", "text": "Wrong here."})
    assert run("batch", table(tmp_path, rows), "--voice", "Ada", "-o", out) == 1
    assert [row.get("file") for row in results(out)] == [None, None, "2.wav", None]
    assert {file.name for file in out.glob("*.wav")} == {"2.wav", "new.wav"}


def test_results_of_another_table_stay(server: RepeatableSpeech, run: Run, tmp_path: Path) -> None:
    rows, out = numbered(4), tmp_path / "out"
    assert run("batch", table(tmp_path, rows[:3]), "--voice", "Ada", "-o", out) == 0
    before = results(out)
    for now in (rows[3:], rows[1:2]):
        assert run("batch", table(tmp_path, now), "--voice", "Ada", "-o", out) == 0
    assert [row["id"] for row in results(out)] == ["1", "3", "0", "2"]
    assert run("batch", table(tmp_path, rows), "--voice", "Ada", "-o", out) == 0
    assert results(out)[:3] == before and sum(server.spoken.values()) == 4


@pytest.mark.parametrize("id", ["1", "../evil"])
def test_a_table_that_grows_meanwhile(server: RepeatableSpeech, run: Run, tmp_path: Path, id: str) -> None:
    path, out = table(tmp_path, numbered(1)), tmp_path / "out"

    def grow(text: str) -> None:
        with path.open("a") as file:
            file.write(f"{json.dumps({'id': id, 'text': 'It is new.'})}\n")
        server.before = lambda text: None

    server.before = grow
    assert run("batch", path, "--voice", "Ada", "-o", out) == 0
    assert [row["id"] for row in results(out)] == ["0"] and server.spoken == {"This is row 0.": 1}


def test_two_runs_at_once_are_refused(
    server: RepeatableSpeech, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, codes = table(tmp_path, numbered(3)), tmp_path / "out", list[int]()
    server.before = lambda text: codes or codes.append(run("batch", path, "--voice", "Ada", "-o", out))
    assert run("batch", path, "--voice", "Ada", "-o", out, "--parallel", 1) == 0 and codes == [1]
    assert "-o" in capsys.readouterr().err and len(results(out)) == 3 and sum(server.spoken.values()) == 3


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "id,text,vioce\n1,a,b\n", "'vioce'"),
        ("t.csv", "id,text\n1,a\n1,b\n", "row 2"),
        ("t.csv", "id,text\n../x,a\n", "row 1"),
        ("t.csv", "id,text\n,a\n", "row 1"),
        ("t.csv", "id,text\n1,a,b\n", "cells"),
        ("t.jsonl", '{"id": 1}\n', "no text"),
        ("t.jsonl", '{"id": 1, "text": 5}\n', "no text"),
        ("t.jsonl", "[1]\n", "no object"),
        ("t.jsonl", "{\n", "cannot be read"),
        ("t.txt", "", ".jsonl"),
        ("t.parquet", "", "pyarrow"),
    ],
)
def test_wrong_tables_are_refused_before_anything_is_made(
    server: RepeatableSpeech,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    words: str,
) -> None:
    if name.endswith(".parquet") and importlib.util.find_spec("pyarrow"):
        pytest.skip("pyarrow is installed")
    (tmp_path / name).write_text(text)
    assert run("batch", tmp_path / name, "--voice", "Ada", "-o", tmp_path / "out") == 1
    assert words in capsys.readouterr().err and not server.spoken and not (tmp_path / "out").exists()
