"""Rows of the database are damaged: no request hangs, no voice is another's, and each is as good as new once uploaded.

What an old server wrote lacks the proofs of `row` and `blobs`; it is served as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

from tests.support.doubles.fakes import Voices
from voice_clone.errors import Internal, Overloaded, SpeakerNotFound, VoiceCloneError
from voice_clone.speakers.postgres.rows import id_of
from voice_clone.speakers.postgres.sessions import checked_address
from voice_clone.speakers.record import MAX_GENERATION
from voice_clone_server.voice_store import check

STORES = ("postgresql",)
Make = Callable[..., Voices]
SEEDS = {"Ada": 0, "Bob": 1, "Cid": 2}
VOICE, BLOB, COUNTER = "voice_clone.voice", "voice_clone.blob", "voice_clone.counter"
ADA, BOB = (f"id = '\\x{id_of(name.casefold()).hex()}'" for name in ("Ada", "Bob"))
OF_ADA, OF_BOB = (f"(SELECT token FROM {VOICE} WHERE {which})" for which in (ADA, BOB))


def announced(change: str) -> Sequence[str]:
    """A damage that servers learn of, as of any other change of the row."""
    return (
        f"UPDATE {COUNTER} SET change = change + 1",
        f"UPDATE {VOICE} SET {change}, change = (SELECT change FROM {COUNTER}) WHERE {ADA}",
    )


def swapped(kind: str) -> str:
    """Bob's bytes of a kind, with their checksum, in the place of Ada's."""
    return (
        f"UPDATE {BLOB} a SET data = b.data, digest = b.digest FROM {BLOB} b "
        f"WHERE a.token = {OF_ADA} AND b.token = {OF_BOB} AND a.model_type = b.model_type AND a.model_type {kind} ''"
    )


DAMAGES = {
    "bytes flipped": [f"UPDATE {BLOB} SET data = set_byte(data, 99, get_byte(data, 99) # 4) WHERE token = {OF_ADA}"],
    "bytes cut short": [f"UPDATE {BLOB} SET data = substr(data, 1, 50) WHERE token = {OF_ADA}"],
    "bytes cut short, with a checksum": [
        f"UPDATE {BLOB} SET data = substr(data, 1, 50), digest = sha256(substr(data, 1, 50)) WHERE token = {OF_ADA}"
    ],
    "bytes NULL": [
        f"ALTER TABLE {BLOB} ALTER data DROP NOT NULL",
        f"UPDATE {BLOB} SET data = NULL WHERE token = {OF_ADA}",
    ],
    "checksum NULL": [
        f"ALTER TABLE {BLOB} ALTER digest DROP NOT NULL",
        f"UPDATE {BLOB} SET digest = NULL WHERE token = {OF_ADA}",
    ],
    "bytes gone": [f"DELETE FROM {BLOB} WHERE token = {OF_ADA}"],
    "artifacts of another voice": [swapped("<>")],
    "clip of another voice": [swapped("="), f"DELETE FROM {BLOB} WHERE token = {OF_ADA} AND model_type <> ''"],
    "fingerprint wrong": [f"UPDATE {BLOB} SET fingerprint = 'z' WHERE token = {OF_ADA} AND model_type <> ''"],
    "token of another voice": [
        f"CREATE TEMPORARY TABLE t AS SELECT id, token FROM {VOICE} WHERE {ADA} OR {BOB}",
        f"UPDATE {VOICE} SET token = gen_random_uuid() WHERE {ADA}",
        f"UPDATE {VOICE} SET token = (SELECT token FROM t WHERE {ADA}) WHERE {BOB}",
        f"UPDATE {VOICE} SET token = (SELECT token FROM t WHERE {BOB}) WHERE {ADA}",
    ],
    "token unknown": [f"UPDATE {VOICE} SET token = gen_random_uuid() WHERE {ADA}"],
    "row gone": [f"DELETE FROM {VOICE} WHERE {ADA}"],
    "row deleted without a word": [f"UPDATE {VOICE} SET record = NULL, token = NULL WHERE {ADA}"],
    "id wrong": announced("id = '\\xdead'"),
    "generation wrong": announced("generation = generation + 1000"),
    "generation wrong without a word": [f"UPDATE {VOICE} SET generation = generation + 1000 WHERE {ADA}"],
    "generation of the record wrong": announced("record = jsonb_set(record, '{generation}', '7777')"),
    "name of another voice": announced("record = jsonb_set(record, '{name}', '\"Bob\"')"),
    "name unknown": announced("record = jsonb_set(record, '{name}', '\"Zoe\"')"),
    "record of another voice": announced(f"record = (SELECT record FROM {VOICE} WHERE {BOB})"),
    "record is no record": announced("record = '[1, 2]'"),
    "text altered": announced("record = jsonb_set(record, '{reference_text}', '\"other words\"')"),
    "owner altered": announced("record = jsonb_set(record, '{owner}', '\"eve\"')"),
    "change ahead": [f"UPDATE {VOICE} SET change = (SELECT change + 1 FROM {COUNTER}) WHERE {ADA}"],
    "change far ahead": [f"UPDATE {VOICE} SET change = 9223372036854775807 WHERE {ADA}"],
    "counter behind": [f"UPDATE {COUNTER} SET change = 1"],
}
UNHARMED = {"change ahead", "change far ahead", "counter behind"}
MADE_AGAIN = {"fingerprint wrong", "artifacts of another voice"}


def damage(voices: Voices, statements: Sequence[str]) -> None:
    assert voices.dsn is not None
    with psycopg.connect(voices.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]


@pytest.fixture
def three(make_voices: Make) -> Iterator[Voices]:
    """A server with three voices; its database forgets what a test did to its tables."""
    voices = make_voices()
    for name, seed in SEEDS.items():
        voices.upload(name, seed, reference_text=f"words of {name}")
    yield voices
    damage(voices, [f"DELETE FROM {BLOB} WHERE data IS NULL OR digest IS NULL"])
    damage(voices, [f"ALTER TABLE {BLOB} ALTER data SET NOT NULL, ALTER digest SET NOT NULL"])


@pytest.mark.parametrize("which", DAMAGES)
def test_no_damage_makes_a_voice_anothers_or_hangs_a_request(which: str, three: Voices, make_voices: Make) -> None:
    right = {name: three.resolve(name).artifacts for name in SEEDS}
    damage(three, DAMAGES[which])
    fresh = make_voices()
    for voices in (three, fresh):
        for options in ({}, {"cache": False}):
            for name in SEEDS:
                try:
                    reply = voices.resolve(name, **options)
                except (SpeakerNotFound, Internal) as error:
                    assert name == "Ada" or (which, name) == ("token of another voice", "Bob"), f"{name}: {error}"
                    assert which not in UNHARMED | MADE_AGAIN
                    assert "damaged; upload it again" in str(error) or isinstance(error, SpeakerNotFound)
                else:
                    assert reply.artifacts == right[name], f"{name} speaks in another voice"
                    assert reply.result["reference_text"] == f"words of {name}"
    for voices in (three, fresh):  # uploaded again, the voice is as good as new, on both servers at once
        made = voices.upload("Ada", 0, reference_text="words of Ada", replace=True)
        assert made["generation"] > SEEDS["Ada"] + len(SEEDS)
        for each in (three, fresh):
            reply = each.resolve("Ada", cache=False)
            assert (reply.artifacts, reply.result["generation"]) == (right["Ada"], made["generation"])
    fresh.call("delete", name="Ada")
    for voices in (three, fresh):
        with pytest.raises(SpeakerNotFound):
            voices.resolve("Ada")


def test_a_record_that_is_left_out_is_counted_and_can_be_erased(three: Voices, make_voices: Make) -> None:
    assert three.dsn is not None and check(checked_address(three.dsn)) == 0
    damage(three, DAMAGES["name of another voice"])
    fresh = make_voices()
    with pytest.raises(SpeakerNotFound):
        three.resolve("Ada")
    assert [each.stats()["store"]["unreadable"] for each in (three, fresh)] == [1, 1]
    assert check(checked_address(three.dsn)) == 1
    with pytest.raises(SpeakerNotFound):
        fresh.call("delete", name="Ada")
    with psycopg.connect(three.dsn) as connection:
        assert connection.execute(f"SELECT record FROM {VOICE} WHERE {ADA}").fetchall() == [(None,)]
        [(blobs,)] = connection.execute(f"SELECT count(DISTINCT token) FROM {BLOB}").fetchall()
    assert blobs == 2, "the clip of the voice is still there"
    three.get("Bob")  # it hears of that
    assert [each.stats()["store"]["unreadable"] for each in (three, fresh)] == [0, 0]


def test_check_finds_a_row_of_another_generation(three: Voices) -> None:
    damage(three, DAMAGES["generation wrong without a word"])
    assert three.dsn is not None and check(checked_address(three.dsn)) == 1


@pytest.mark.parametrize(
    "statements",
    [
        [f"DELETE FROM {COUNTER}"],
        [f"ALTER TABLE {COUNTER} ALTER change DROP NOT NULL", f"UPDATE {COUNTER} SET change = NULL"],
        [f"UPDATE {COUNTER} SET change = {MAX_GENERATION}"],
        [f"ALTER TABLE {VOICE} RENAME TO lost"],
    ],
    ids=["gone", "NULL", "overflown", "table gone"],
)
def test_a_store_that_has_lost_its_order_is_away_until_it_is_mended(
    statements: Sequence[str], three: Voices, make_voices: Make, caplog: pytest.LogCaptureFixture
) -> None:
    [found] = _asked(three, f"SELECT change, epoch FROM {COUNTER}")
    ada = three.resolve("Ada").artifacts
    damage(three, statements)
    try:
        assert three.resolve("Ada").artifacts == ada
        with pytest.raises(Overloaded):
            three.resolve("Ada", cache=False)
        with pytest.raises(Overloaded):
            three.upload("Dee", 3)
        assert three.stats()["store"]["reachable"] is False
        with pytest.raises(VoiceCloneError):
            make_voices()
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) <= 6, "the log grows with each look"
    finally:
        if "RENAME" in statements[0]:
            damage(three, [f"ALTER TABLE voice_clone.lost RENAME TO {VOICE.partition('.')[2]}"])
        damage(three, [f"DELETE FROM {COUNTER}", f"INSERT INTO {COUNTER} (change, epoch) VALUES {found}"])
        damage(three, [f"ALTER TABLE {COUNTER} ALTER change SET NOT NULL"])
    three.cache.store.freshness._take_part()  # type: ignore[attr-defined]  # as its thread does in a moment
    assert three.resolve("Ada", cache=False).artifacts == ada
    three.upload("Dee", 3)


def test_a_server_that_starts_on_a_counter_that_is_behind_gives_no_number_twice(
    three: Voices, make_voices: Make
) -> None:
    latest = three.upload("Eve", 4)["generation"]
    three.call("delete", name="Eve")
    three.cache.close()
    damage(three, [f"UPDATE {COUNTER} SET change = 1"])
    assert make_voices().upload("Eve", 5)["generation"] > latest


def test_what_an_older_server_wrote_or_changed_is_served(three: Voices, make_voices: Make) -> None:
    """It knows no proofs: it writes none, and keeps those that it finds."""
    right = {name: three.resolve(name).artifacts for name in SEEDS}
    damage(three, announced("record = record - 'row'"))
    fresh = make_voices()
    for voices in (three, fresh):
        for name in SEEDS:
            assert voices.resolve(name, cache=False).artifacts == right[name]


def _asked(voices: Voices, question: str) -> list[tuple[object, ...]]:
    assert voices.dsn is not None
    with psycopg.connect(voices.dsn) as connection:
        return connection.execute(question).fetchall()  # type: ignore[arg-type]
