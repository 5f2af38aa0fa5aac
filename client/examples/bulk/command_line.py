"""The options that all callers have."""

from __future__ import annotations

import argparse

from speech_of_tables import Bulk


def parsed(description: str | None) -> tuple[argparse.Namespace, Bulk]:
    """What the command line says, and how rows are spoken."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form)
    parser.add_argument("source", help="a Parquet file with the columns id and text, or a folder of them")
    parser.add_argument("target", help="the folder of the results")
    parser.add_argument("--servers", default="localhost:8001", help="addresses of Triton servers, separated by commas")
    parser.add_argument("--voice", help="of rows without one")
    parser.add_argument("--model", help="the family, where a server has several")
    parser.add_argument("--at-once", type=int, default=4, help="rows that a worker speaks at the same time")
    parser.add_argument("--workers", type=int, default=2, help="processes that speak; on_parquet.py has one")
    parser.add_argument("--rows", type=int, default=16, help="of a piece, which is written when it is done")
    given = parser.parse_args()
    return given, Bulk(given.servers, given.voice, given.model, given.at_once)
