"""Speak the rows of Parquet files with Ray Data. A run that was stopped, or whose driver was killed, goes on.

$ python on_ray.py SOURCE TARGET_FOLDER --servers one:8001,other:8001 --voice Ada --workers 4

Each worker is an actor, which waits for the network most of the time. Ray reads no more than the actors can take.
"""

from pathlib import Path

import ray
from command_line import parsed
from speech_of_tables import Bulk, Speaker, left, spoken


def speak(source: str, target: Path, bulk: Bulk, workers: int, rows: int) -> None:
    """Speak what is missing in `target`; a file is written for each piece of at most `rows` rows."""
    known = spoken(target)
    missing = ray.data.read_parquet(source).map_batches(left, fn_args=(known, bulk), batch_format="pyarrow")
    # A block is a piece: what an engine writes is there when all of its block is done.
    pieces = missing.repartition(target_num_rows_per_block=rows)
    made = pieces.map_batches(
        Speaker,
        fn_constructor_args=(bulk,),
        batch_size=rows,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=0.1,
    )
    made.write_parquet(str(target), mode=ray.data.SaveMode.APPEND)


if __name__ == "__main__":
    given, how = parsed(__doc__)
    here = str(Path(__file__).parent)
    paths = {"PYTHONPATH": here}
    ray.init(runtime_env={"env_vars": paths}, include_dashboard=False, log_to_driver=False)
    Path(given.target).mkdir(parents=True, exist_ok=True)
    speak(given.source, Path(given.target), how, given.workers, given.rows)
