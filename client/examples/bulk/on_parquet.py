"""Speak the rows of Parquet files in one process. A run that was stopped goes on where it was.

$ python on_parquet.py SOURCE TARGET_FOLDER --servers localhost:8001 --voice Ada
"""

from pathlib import Path

from command_line import parsed
from speech_of_tables import speak_files

if __name__ == "__main__":
    given, bulk = parsed(__doc__)
    speak_files(Path(given.source), Path(given.target), bulk, given.rows)
