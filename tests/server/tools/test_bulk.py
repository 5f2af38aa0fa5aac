"""The example that speaks tables, on a local Ray, a local Spark and in a plain loop. Servers and drivers are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from voice_clone_client import Client

from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import ROOT, TritonServer

PYTHON = ROOT / ".venv" / "bulk" / "bin" / "python"
EXAMPLE = ROOT / "client" / "examples" / "bulk"
PIECE = 16  # rows of a file

NEEDS_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")

pytestmark = [
    pytest.mark.long,
    pytest.mark.share("bulk"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON.exists(), reason="it needs .venv/bulk, which tools/test --long makes"),
]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[TritonServer]]:
    """Two with the same voice."""
    with ExitStack() as stack:
        found = []
        for name in ("one", "other"):
            server = TritonServer(SHIPPED, tmp_path / name, log=tmp_path / f"{name}.log")
            found.append(stack.enter_context(server))
            with Client(server.url) as client:
                client.upload("Ada", CLIP, wait=True)
        yield found


@pytest.fixture
def session() -> Iterator[Path]:
    """A folder with a short name, for sockets. What was started by a driver, and uses it, ends with the test."""
    folder = Path(tempfile.mkdtemp(prefix="bulk", dir="/tmp"))
    yield folder
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("BULK_SESSION") == str(folder):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


class Drivers:
    """Runs the example's scripts on some rows."""

    def __init__(self, folder: Path, session: Path, servers: list[TritonServer], rows: list[dict[str, Any]]) -> None:
        self.source, self.target = folder / "rows.parquet", folder / "results"
        self.log = folder / "driver.log"
        self._servers = ",".join(server.url for server in servers)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "BULK_SESSION": str(session),
            "RAY_TMPDIR": str(session),
            "RAY_USAGE_STATS_ENABLED": "0",
            "SPARK_LOCAL_DIRS": str(session),
        }
        self.write(self.source, rows)

    def run(self, code: str, given: str = "", *arguments: Path) -> str:
        command = [str(PYTHON), "-c", code, *map(str, arguments)]
        return subprocess.run(
            command, input=given, cwd=EXAMPLE, env=self._environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    def start(self, script: str, *options: str) -> subprocess.Popen[bytes]:
        command = [str(PYTHON), str(EXAMPLE / script), str(self.source), str(self.target), "--voice", "Ada"]
        command += ["--servers", self._servers, "--rows", str(PIECE), *options]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)

    def files(self) -> int:
        """Of pieces that are done."""
        return len([path for path in self.target.glob("*.parquet") if not path.name.startswith((".", "_"))])

    def reached(self, files: int, driver: subprocess.Popen[bytes]) -> None:
        """Wait until so many are there."""
        while self.files() < files:
            assert driver.poll() is None, "the driver ended"
            time.sleep(0.5)

    def write(self, path: Path, rows: list[dict[str, Any]]) -> None:
        """A Parquet file."""
        path.parent.mkdir(exist_ok=True)
        written = "import json, sys, pyarrow as pa, pyarrow.parquet as pq; rows = json.load(sys.stdin); "
        self.run(f"{written}pq.write_table(pa.Table.from_pylist(rows), sys.argv[1])", json.dumps(rows), path)

    def results(self) -> list[dict[str, Any]]:
        """Without the speech, but for its size."""
        code = (
            "import json, sys; from pathlib import Path; from speech_of_tables import results\n"
            "rows = [row for table in results(Path(sys.argv[1])) for row in table.to_pylist()]\n"
            "print(json.dumps([{**row, 'wav': len(row['wav'] or b'')} for row in rows]))"
        )
        found: list[dict[str, Any]] = json.loads(self.run(code, "", self.target))
        return found


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"row {number}", "text": f"This is row {number}.", "seed": None} for number in range(count)]


def complete(found: list[dict[str, Any]], count: int) -> bool:
    """Whether each row is there once, with its speech."""
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in rows(count))
    assert [row for row in found if row["error"] or not row["seconds"] or row["wav"] < 24_000 * row["seconds"]] == []
    return True


@pytest.mark.parametrize(
    ("script", "count", "options"),
    [
        pytest.param("on_ray.py", 1000, ("--workers", "4"), id="Ray"),
        pytest.param("on_spark.py", 200, ("--workers", "2"), id="Spark", marks=NEEDS_JAVA),
    ],
)
def test_a_server_and_the_driver_are_killed(
    servers: list[TritonServer], tmp_path: Path, session: Path, script: str, count: int, options: tuple[str, ...]
) -> None:
    drivers, pieces = Drivers(tmp_path, session, servers, rows(count)), count // PIECE
    first = drivers.start(script, *options)
    drivers.reached(pieces // 4, first)
    servers[0].kill()
    drivers.reached(pieces // 2, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = drivers.files()
    assert drivers.start(script, *options).wait() == 0
    assert complete(drivers.results(), count) and pieces // 2 <= kept < drivers.files()


def test_a_plain_loop_that_is_killed(servers: list[TritonServer], tmp_path: Path, session: Path) -> None:
    """A row that cannot be spoken is one with an error, which a later run tries again."""
    asked = [*rows(64), {"id": "bad", "text": "Hi.", "seed": -5}]
    drivers = Drivers(tmp_path, session, servers, asked)
    first = drivers.start("on_parquet.py")
    drivers.reached(2, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    for _ in range(2):
        assert drivers.start("on_parquet.py").wait() == 0
        found = drivers.results()
        [bad] = [row for row in found if row["id"] == "bad"]
        assert "seed" in bad["error"] and not bad["wav"]
        assert complete([row for row in found if row is not bad], 64)


def test_no_more_is_read_than_is_wanted(servers: list[TritonServer], tmp_path: Path, session: Path) -> None:
    """Who takes no result asks the servers for nothing."""
    drivers = Drivers(tmp_path, session, servers, rows(4))
    code = (
        "import sys, pyarrow as pa; from speech_of_tables import Bulk, speak_tables\n"
        "read = []\n"
        "def tables():\n"
        "    for number in range(9):\n"
        "        read.append(number)\n"
        "        yield pa.table({'id': [str(number)], 'text': ['Hi.']})\n"
        "made = speak_tables(tables(), Bulk(sys.argv[1], 'Ada'))\n"
        "for wanted in range(3):\n"
        "    assert len(read) == wanted\n"
        "    assert next(made)['error'].to_pylist() == [None]\n"
        "made.close()"
    )
    drivers.run(code, "", Path(servers[0].url))


def test_a_folder_whose_rows_change(servers: list[TritonServer], tmp_path: Path, session: Path) -> None:
    """What a row asks for decides whether it is made again. Files that are no results stay as they are."""
    drivers = Drivers(tmp_path, session, servers, rows(1))
    drivers.source = tmp_path / "rows"
    first, second = drivers.source / "first.parquet", drivers.source / "second.parquet"
    drivers.write(first, rows(3))
    drivers.write(second, [{"id": "own", "text": "This is a row with a voice.", "voice": "Ada"}])
    foreign, stray = drivers.target / "foreign.parquet", drivers.target / ".1-1.parquet"
    drivers.write(foreign, [{"number": 1}])
    stray.write_bytes(b"PAR1")
    os.utime(stray, (0, 0))

    def found() -> dict[str, tuple[float, str]]:
        assert drivers.start("on_parquet.py").wait() == 0
        made = {row["id"]: (row["seconds"], row["asked"]) for row in drivers.results()}
        assert sorted(made) == ["own", "row 0", "row 1", "row 2"]
        return made

    once = found()
    assert foreign.exists() and not stray.exists()
    count = drivers.files()
    assert found() == once and drivers.files() == count
    changed = rows(3)
    changed[1]["text"] = "This is row one with some more words in it."
    drivers.write(first, changed)
    later = found()
    assert {id for id in once if later[id] != once[id]} == {"row 1"} and later["row 1"][0] > once["row 1"][0]
    assert drivers.files() == count + 1
    drivers.write(first, rows(3))
    assert found() == once, "as at first"
    drivers.write(first, [*changed, rows(1)[0]])
    assert drivers.start("on_parquet.py", "--model", "qwen3_tts").wait() == 1
    assert "'row 0'" in drivers.log.read_text(), "its id has two rows"


def test_an_interrupted_loop_ends_while_no_server_answers(tmp_path: Path, session: Path) -> None:
    """It waits for none of the ten minutes for which a row is tried again."""
    drivers = Drivers(tmp_path, session, [], rows(40))
    with socket.create_server(("localhost", 0)) as listening:
        driver = drivers.start("on_parquet.py", "--servers", f"localhost:{listening.getsockname()[1]}")
        listening.settimeout(60)
        listening.accept()[0].close()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) != 0 and drivers.results() == []
