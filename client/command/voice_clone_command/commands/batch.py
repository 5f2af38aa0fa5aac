"""The command that speaks the rows of a table: batch."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from voice_clone_client.client import Client
from voice_clone_client.errors import ConnectionFailed, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone_client.fields import DTYPES, SOURCES, Knobs
from voice_clone_client.responses import missed_end
from voice_clone_program.whole_file import whole_file
from voice_clone_provenance.statements import comment_of

from ..audio_file import MISSING, has_codecs, refusal
from ..folder_lock import lock_folder
from ..origin import OriginChanged, Origins, check, hashed, read_files
from ..output import AudioOutput, progress
from ..work import Work
from .common import add_mark, command, report
from .voicing import add_knobs, add_parallel, add_shape, add_voice, how_of

COLUMNS = ("id", "text", "voice", "model", *Knobs.__annotations__)
RESULTS = "results.jsonl"
LOCK = ".lock"
_ID = re.compile(r"[^\W_][\w.@+-]{0,199}")
_LONGEST = 255  # bytes of the name of a file
_TYPES: dict[str, Any] = {
    "INT32": int,
    "UINT64": int,
    "FP32": float,
    "BOOL": {"true": True, "false": False}.__getitem__,
}

Row = dict[str, Any]


def add(commands: Any) -> None:
    batch = command(commands, "batch", _batch, "speak the rows of a table into a folder; what is there stays")
    batch.add_argument("table", help=f"a .csv, .jsonl or .parquet with the columns id, text and any of {COLUMNS[2:]}")
    add_voice(batch)
    batch.add_argument(
        "-o", "--output", required=True, metavar="DIR", help=f"for a file a row, called by its id, and {RESULTS}"
    )
    batch.add_argument("--format", default="wav", metavar="SUFFIX", help="of the files, such as mp3 (default: wav)")
    add_parallel(batch)
    add_shape(batch)
    add_mark(batch)
    add_knobs(batch)


def _batch(client: Client, parsed: argparse.Namespace) -> int:
    folder, suffix = Path(parsed.output), f".{parsed.format.lstrip('.').lower()}"
    if reason := refusal(f"x{suffix}"):
        parsed.parser.error(reason)
    if parsed.speed != 1.0 and not has_codecs():
        parsed.parser.error(f"--speed needs a further package: {MISSING}")
    ids = [row["id"] for row in _checked(parsed.table)]
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder / LOCK, "-o"):
        failed = _speak(client, parsed, folder, suffix, ids)
    return 1 if failed else 0


def _speak(client: Client, parsed: argparse.Namespace, folder: Path, suffix: str, ids: Sequence[str]) -> int:
    """Speak the rows that are not there, of those with these ids; returns how many failed."""
    count, results = len(ids), _known(folder / RESULTS)
    _write(folder / RESULTS, results.values())  # without a line that a killed run has not ended
    work = Work(client, parsed.parallel)
    rows = _Rows(client, parsed, work, folder, suffix, results)
    done = failed = made = 0
    with progress(parsed.quiet) as shown, open(folder / RESULTS, "a", encoding="utf-8") as log:
        for result, new in work.done(islice(_checked(parsed.table), count), rows.result):
            done, failed, made = done + 1, failed + ("error" in result), made + new
            if new:
                results[result["id"]] = result
                log.write(f"{json.dumps(result, ensure_ascii=False)}\n")
                log.flush()
            shown.show(f"{done} of {count} rows, {failed} failed")
    first = {id: results[id] for id in ids if id in results}
    _write(folder / RESULTS, {**first, **results}.values())
    report(parsed, f"{parsed.output}\t{count} rows\t{made - failed} made\t{failed} failed")
    return failed


class _Rows:
    """Speaks rows, each into a file."""

    def __init__(
        self,
        client: Client,
        parsed: argparse.Namespace,
        work: Work,
        folder: Path,
        suffix: str,
        known: Mapping[str, Row],
    ) -> None:
        self._client, self._parsed, self._work, self._known = client, parsed, work, dict(known)
        self._folder, self._suffix = folder, suffix
        self._usual = read_files(how_of(parsed))
        self._origins = Origins(client, parsed.mark, parsed.timeout)

    def result(self, row: Row) -> tuple[Row, bool]:
        """What becomes of a row, and whether that is new."""
        id, known = row["id"], self._known.get(row["id"], {})
        path = self._folder / f"{id}{self._suffix}"
        try:
            if len(os.fsencode(path.name)) > _LONGEST:
                raise InvalidArgument(f"the id is too long; the name of its file may have {_LONGEST} bytes")
            how = self._how(row)
            origin = self._work.patiently(partial(self._origins.of, how))
            shape = self._parsed.sentence_characters, self._parsed.speed, self._parsed.allow_partial
            key = hashed(origin, text=row["text"], seed=how["seed"], shape=shape)
            if known.get("key") == key and known.get("file") == path.name and path.exists():
                return known, False
            said = self._work.patiently(partial(self._speak, row["text"], how, origin, path))
            return {"id": id, "file": path.name, **said, "key": key}, True
        except (ConnectionFailed, OriginChanged):  # of all rows
            raise
        except VoiceCloneError as error:
            if known.get("file") == path.name:  # it is of what the row was
                path.unlink(missing_ok=True)
            return {"id": id, "error": {"code": error.slug, "message": str(error)}}, True

    def _how(self, row: Row) -> dict[str, Any]:
        """The arguments of the speech of a row: its own ones, or else those of the command."""
        own = {name: _value(name, row[name]) for name in COLUMNS[2:] if row.get(name) not in (None, "")}
        others = dict.fromkeys((*SOURCES, "reference_text")) if "voice" in own else {}
        return {**self._usual, **others, **own}

    def _speak(self, text: str, how: Row, origin: Row, path: Path) -> Row:
        most, speed, seconds = self._parsed.sentence_characters, self._parsed.speed, 0.0
        comment = partial(comment_of, origin["family"], signs=False)
        asked = {**how, "sentence_characters": most, "hold": len(text) > most, "synthesizer": True}
        with AudioOutput(str(path), comment, partial=False) as file, self._client.speak_long(text, **asked) as speech:
            chunks: Any = speech
            if speed != 1.0:
                from voice_clone_sound.shape import shaped  # needs the extra

                chunks = shaped(speech, speed, None)
            for chunk in chunks:
                seconds += len(chunk.samples) / chunk.sample_rate
                file.write(chunk)
            check(origin, speech.info)
            if not speech.whole and not self._parsed.allow_partial:
                raise missed_end(speech.info)
            return {"seconds": round(seconds, 3), "finish_reason": speech.finish_reason}


def _checked(table: str) -> Iterator[Row]:
    """The rows of a table, whose ids are texts.

    Raises:
        InvalidArgument: it cannot be read; it has a column that is unknown, or a row without a text, or without an id
            of its own.
        Unsupported: as `_read`.
    """
    seen = set[str]()
    for number, row in enumerate(_read(table), 1):
        row["id"] = "" if row.get("id") is None else str(row["id"])
        if unknown := [name for name in row if name not in COLUMNS]:
            raise InvalidArgument(f"row {number} has {unknown[0]!r}; a row has {', '.join(COLUMNS)}")
        if not _ID.fullmatch(row["id"]) or row["id"] in seen:
            raise InvalidArgument(
                f"row {number} has the id {row['id']!r}; each needs one of its own, of letters, digits and .@+-_"
            )
        if not isinstance(row.get("text"), str):
            raise InvalidArgument(f"row {number} has no text")
        seen.add(row["id"])
        yield row


def _read(table: str) -> Iterator[Row]:
    """The rows as they are in the file.

    Raises:
        InvalidArgument: it cannot be read.
        Unsupported: a package is missing that reads it.
    """
    suffix = Path(table).suffix.lower()
    if suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError:
            raise Unsupported("a table of Parquet needs a further package: pip install pyarrow") from None
        for batch in parquet.ParquetFile(table).iter_batches(1000):
            yield from batch.to_pylist()
    elif suffix in (".csv", ".jsonl"):
        with open(table, encoding="utf-8-sig", newline="") as file:
            try:
                for row in csv.DictReader(file) if suffix == ".csv" else map(json.loads, filter(str.strip, file)):
                    if not isinstance(row, dict) or None in row:
                        raise ValueError("a row is no object, or has more cells than there are columns")
                    yield row
            except (ValueError, csv.Error, RecursionError) as error:
                raise InvalidArgument(f"{table} cannot be read: {error}") from None
    else:
        raise InvalidArgument(f"{table} is no table; give a file of .csv, .jsonl, .parquet")


def _value(name: str, value: Any) -> Any:
    """The value of a cell, which is a text in a CSV file.

    Raises:
        InvalidArgument: it is of a wrong type.
    """
    if not isinstance(value, dict if name == "options" and not isinstance(value, str) else (str, int, float)):
        raise InvalidArgument(f"`{name}` cannot be {value!r}")
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if name == "options" else _TYPES.get(DTYPES.get(name, ""), str)(value)
    except (ValueError, KeyError, RecursionError):
        raise InvalidArgument(f"`{name}` cannot be {value!r}") from None


def _known(path: Path) -> dict[str, Row]:
    """The results of an earlier run, by id."""
    found = dict[str, Row]()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for line in lines:
        try:
            row = json.loads(line)
            found[str(row["id"])] = row
        except (ValueError, KeyError, TypeError):  # it was cut off
            continue
    return found


def _write(path: Path, results: Any) -> None:
    with whole_file(path) as file:
        for result in results:
            file.write(f"{json.dumps(result, ensure_ascii=False)}\n".encode())
