"""The keys by which jobs are made: those of their owners, which may have changed since."""

from __future__ import annotations

import time

from ..http.auth import ANYONE, Keys
from ..http.keys import Key
from .tables import Job

STRICTNESS = ("off", None, "on", "required")  # of the marks of keys
KEYLESS = (
    24 * 3600.0
)  # seconds after which a job of a fleet fails that no gateway makes, and whose key this one has not


class JobKeys:
    """The keys of one gateway.

    Args:
        keys: of it.
        shared: whether other gateways, which may have other keys, make the same jobs.
    """

    def __init__(self, keys: Keys, shared: bool) -> None:
        self._keys, self._shared = keys, shared
        self._missing: dict[str, tuple[tuple[str, int], float]] = {}  # the job of an owner, and since when

    def of(self, job: Job) -> Key | None:
        """The key of a job; None: there is none any more that may speak it.

        A key of the same owner does, if it is for the same mark or a stricter one: no other key lifts a rule of marks.
        """
        if not self._keys:
            return None if job.owner else ANYONE
        found = [key for key in self._keys.all() if key.turns == job.owner and "speak" in key.scopes]
        for key in found:
            if key.mark == job.mark:
                return key
        strictest = max(found, key=lambda key: STRICTNESS.index(key.mark), default=None)
        if strictest is None or STRICTNESS.index(strictest.mark) < STRICTNESS.index(job.mark):
            return None
        return strictest

    def can(self, job: Job) -> bool:
        """Whether this gateway can make a job, or fail it: others may have its key, until none had it for long."""
        if not self._shared or self.of(job) is not None:
            return True
        now, found = time.monotonic(), (job.id, job.attempt)  # another attempt: one with the key made it meanwhile
        known, since = self._missing.get(job.owner, (found, now))
        self._missing[job.owner] = found, since if known == found else now
        return known == found and now - since >= KEYLESS
