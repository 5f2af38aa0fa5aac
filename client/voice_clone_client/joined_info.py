"""What the server says about speeches in a row, as about one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .types import worse

_SUMMED = ("text_tokens", "read", "reference_frames", "frames", "retries")
"""The entries of `info` that add up over the speeches."""


class JoinedInfo:
    """The infos of speeches that are read one after the other.

    Attributes:
        info: the latest value of each entry. Counts are sums, and the finish reason is the worst of the speeches.
    """

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self._ended: dict[str, int] = {}  # sums over the speeches that have ended
        self._reason: str | None = "stop"  # the worst of theirs
        self._current: dict[str, Any] = {}

    def add(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Take the next info of the speech that is read now, and return it as one of the joined speech."""
        joined = {**info, **{name: self._ended.get(name, 0) + info[name] for name in _SUMMED if name in info}}
        if "finish_reason" in info:
            joined["finish_reason"] = worse(self._reason, info["finish_reason"])
        self._current |= info
        self.info = {**self.info, **joined}
        return joined

    def end(self) -> None:
        """End the speech that is read now; what is added from now on is of the next one."""
        if self._current:
            self._reason = worse(self._reason, self._current.get("finish_reason"))
            self.info = {**self.info, "finish_reason": self._reason}
            self._ended |= {name: self.info[name] for name in _SUMMED if name in self._current}
            self._current = {}
