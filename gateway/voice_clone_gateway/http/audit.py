"""The audit log: who uploaded, deleted, exported, imported or spoke with which voice, when, and how it ended.

Also who recorded or renamed (`consent`) and deleted the recording of a consent, and who made or changed (`dictionary`)
and deleted a dictionary of pronunciations; its id stands for the voice then.

One line of JSON for each, written when it has ended: no texts, no keys. A line is handed to the operating system before
the answer is complete, so a gateway that dies loses what it was doing, and no line. The operator may move the file
away: the next line begins a new one.

    time        UTC, ISO 8601
    request     the id of the request, X-Request-ID
    key         the name of the key; null: it has none
    action      upload, delete, export, import, speech, consent, dictionary
    voice       its name, or null: all voices, or a speech in a clip or an embedding of its own
    outcome     ok, or the code of the error
    characters, seconds, generation, voice_digest, source, voices, mark_rule, mark      where they apply
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from functools import partial
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any

from starlette.requests import HTTPConnection

from ..services import services_of
from .errors import error_code
from .keys import Key

log = logging.getLogger(__name__)


MAX_NAME = 64
"""Characters of a voice's name; what a caller sends as one may be longer."""


class _File(WatchedFileHandler):
    def _open(self) -> TextIOWrapper:
        """Open the file. A new one is for this user alone: it says who speaks with which voice."""
        return open(self.baseFilename, "a", encoding=self.encoding, opener=partial(os.open, mode=0o600))

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be written goes into the gateway's log; the request goes on."""
        log.exception("the audit log cannot be written: %s", record.getMessage())


class AuditLog:
    """Writes the lines.

    Args:
        target: a file; `log` for the gateway's own log; "" for none.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, target: str) -> None:
        self._log = log if target == "log" else None
        self._file: _File | None = None
        if target and target != "log":
            self._file = _File(target, encoding="utf-8")
            self._log = logging.Logger("audit", logging.INFO)
            self._log.addHandler(self._file)

    @contextmanager
    def act(self, key: Key, request_id: str, action: str, voice: str | None, **more: Any) -> Iterator[dict[str, Any]]:
        """Write the line of an action when the `with` block ends, with the code of its error, if it raises one.

        Gives the entry, into which the block may write: `outcome` of an error that it handles itself, `seconds`, ...
        """
        entry: dict[str, Any] = {"outcome": "ok", **more}
        try:
            yield entry
        except BaseException as error:
            entry["outcome"] = error_code(error)
            raise
        finally:
            if self._log is not None:
                time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
                name = None if voice is None else voice[:MAX_NAME]
                head = {"time": time, "request": request_id, "key": key.name, "action": action, "voice": name}
                self._log.info("%s", json.dumps(head | entry))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def recorded(request: HTTPConnection, action: str, voice: str | None) -> AbstractContextManager[dict[str, Any]]:
    """`AuditLog.act` for a request that was admitted."""
    audit = services_of(request).audit
    return audit.act(request.state.key, request.state.request_id, action, voice)
