"""tools/voice_store: tables, copies of a directory, checks."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.doubles.fakes import Voices
from tests.support.official.postgres import PostgresServer
from voice_clone_server import voice_store


def test_the_voices_of_a_directory_are_copied_with_their_generations(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE copied")
        connection.execute("CREATE ROLE reader LOGIN")
    dsn = postgres.dsn("copied")
    monkeypatch.setenv("VOICE_CLONE_VOICE_STORE", dsn)

    said: list[str] = []

    def tool(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["voice_store", *arguments])
        code = voice_store.main()
        out, error = capsys.readouterr()
        said.append(error)
        return code, out

    assert tool("check")[0] == 1, "there are no tables yet"
    assert tool("migrate", "--reader", "reader")[1].startswith("1 steps taken")
    assert tool("migrate")[1].startswith("0 steps taken")
    source = Voices(tmp_path)
    for seed, name in enumerate(("Ada", "Bob", "Ada")):
        source.upload(name, seed, reference_text="Hello.", replace=True)
    before = {name: (source.get(name), source.resolve(name).artifacts) for name in ("Ada", "Bob")}
    source.cache.close()
    assert tool("copy", str(tmp_path / "mistyped")) == (1, "") and not (tmp_path / "mistyped").exists()
    assert tool("copy", str(tmp_path)) == (0, "2 voices copied, 0 were there or were deleted, 0 are damaged\n")
    assert tool("copy", str(tmp_path)) == (0, "0 voices copied, 2 were there or were deleted, 0 are damaged\n")
    assert tool("check") == (0, "2 voices, 0 damaged\n")
    copied = Voices(tmp_path / "unused", dsn=dsn)
    assert {name: (copied.get(name), copied.resolve(name).artifacts) for name in ("Ada", "Bob")} == before
    assert copied.encoder.extractions == 0
    assert copied.upload("New", 5)["generation"] > max(voice["generation"] for voice, _ in before.values())
    copied.call("delete", name="Bob")
    copied.cache.close()
    assert tool("copy", str(tmp_path)) == (0, "0 voices copied, 2 were there or were deleted, 0 are damaged\n")
    assert tool("check") == (0, "2 voices, 0 damaged\n"), "a deleted voice came back"
    later = Voices(tmp_path)
    later.upload("ADA", 9, replace=True)
    later.cache.close()
    assert tool("copy", str(tmp_path))[0] == 1 and "the name 'Ada' is taken" in said[-1]
    assert tool("copy", "--replace", str(tmp_path))[0] == 0
    assert tool("check") == (0, "2 voices, 0 damaged\n"), "a deleted voice came back"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE voice_clone.blob SET data = data || 'x' WHERE model_type = ''")
    assert tool("check") == (1, "2 voices, 2 damaged\n")
    with psycopg.connect(dsn.replace("postgres@", "reader@")) as connection:
        connection.execute("SELECT FROM voice_clone.voice")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM voice_clone.voice")
