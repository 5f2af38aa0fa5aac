"""Write a folder as a whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from voice_clone_server import guard
from voice_clone_server.stopping import SIGNALS


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, beside `output`. At the end it replaces `output`; after an exception it is removed.

    `output` does not change before the new folder is whole.
    """
    with _scratch(output) as made:
        yield made
        aside = made.with_name(f"{made.name}-old")
        with _undisturbed():
            if output.exists():
                output.rename(aside)
            try:
                made.rename(output)
            except BaseException:
                if aside.exists():
                    aside.rename(output)
                raise
        guard.remove_at_end(aside)
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def unused_folder(output: Path) -> Iterator[Path]:
    """Do as `new_folder`, but refuse an `output` that exists.

    Raises:
        FileExistsError: there is something.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists; give a new folder")
    with new_folder(output) as made:
        yield made


@contextlib.contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Make an empty folder beside `output`. It is removed at the end if it is still there, also if this process is
    killed.
    """
    # The name is chosen before the folder is made, so that a signal between the two leaves no unknown folder.
    made = output.absolute().parent / f".{output.name}-{secrets.token_hex(8)}"
    guard.remove_at_end(made)
    try:
        try:
            made.mkdir(parents=True)
        except OSError as error:
            raise OSError(f"{output} cannot be made ({error.strerror}); give a folder that may be written") from None
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def refusal(output: Path, replace: bool, replaceable: Callable[[Path], bool]) -> str | None:
    """Return why `output` may not be written, or None. Only an empty folder may be there, or with `replace` one of our
    kind.
    """
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
