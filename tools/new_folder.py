"""Writes a folder as a whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, beside `output`. At the end it replaces `output`; after an exception it is removed.

    `output` does not change before the new folder is whole.
    """
    # The name is chosen before the folder is made, so that a signal between the two leaves no unknown folder.
    scratch = output.parent / f".{output.name}-{secrets.token_hex(8)}"
    made, aside = scratch / "new", scratch / "old"
    try:
        made.mkdir(parents=True)
        yield made
        try:
            if output.exists():
                output.rename(aside)
            made.rename(output)
        except BaseException:
            if aside.exists() and not output.exists():
                aside.rename(output)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refusal(output: Path, replace: bool, replaceable: Callable[[Path], bool]) -> str | None:
    """Why `output` may not be written, if so: only an empty folder may be there, or with `replace` one of our kind."""
    if not output.parent.is_dir():
        return f"there is no folder {output.parent}; make it first"
    if not output.exists():
        return None
    if not output.is_dir():
        return f"{output} is a file; choose another name"
    if not any(output.iterdir()):
        return None
    if not replace:
        return f"{output} is not empty; choose another folder, or replace what is there with --force"
    return None if replaceable(output) else f"{output} holds something else than models; it is not replaced"
