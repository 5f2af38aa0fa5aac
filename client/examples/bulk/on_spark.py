"""Speak the rows of Parquet files with Spark. A run that was stopped, or whose driver was killed, goes on.

$ python on_spark.py SOURCE TARGET_FOLDER --servers one:8001,other:8001 --voice Ada

A partition is a piece of `--rows` rows, and is written when it is done; as many partitions are at work as there are
workers. Spark needs Java 17.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from command_line import parsed
from pyspark.sql import DataFrame, SparkSession
from speech_of_tables import Bulk, left, speak_tables, spoken

COLUMNS = "id string, wav binary, seconds double, error string, asked string"


def speak_batches(batches: Iterator[pa.RecordBatch], bulk: Bulk) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`."""
    for table in speak_tables((pa.Table.from_batches([batch]) for batch in batches), bulk):
        yield from table.to_batches()


def speak(rows: DataFrame, bulk: Bulk) -> DataFrame:
    """The results of a data frame's rows."""
    return rows.mapInArrow(partial(speak_batches, bulk=bulk), COLUMNS)


def left_of(batches: Iterator[pa.RecordBatch], known: set[str], bulk: Bulk) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow` that leaves out rows whose speech is known."""
    for batch in batches:
        yield from left(pa.Table.from_batches([batch]), known, bulk).to_batches()


def missing(session: SparkSession, source: str, target: Path, bulk: Bulk) -> DataFrame:
    """The rows of `source` whose speech is not in `target`."""
    rows = session.read.parquet(source)
    return rows.mapInArrow(partial(left_of, known=spoken(target), bulk=bulk), rows.schema)


if __name__ == "__main__":
    given, how = parsed(__doc__)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": given.rows,
        # The files of a partition are there when it is done, and not only at the end of all: a run can go on then.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": 2,
        "spark.ui.enabled": False,
    }
    builder = SparkSession.builder.master(os.environ.get("SPARK_MASTER", f"local[{given.workers}]"))
    with builder.config(map=settings).getOrCreate() as session:
        Path(given.target).mkdir(parents=True, exist_ok=True)
        rows = missing(session, given.source, Path(given.target), how)
        pieces = max(1, -(-rows.count() // given.rows))
        speak(rows.repartition(pieces), how).write.mode("append").parquet(given.target)
