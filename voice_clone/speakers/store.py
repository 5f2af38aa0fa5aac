"""Where speakers persist, as the cache sees it: a directory, or a store that a package adds, such as PostgreSQL's.

A directory (`disk.store`) belongs to one server. A database (`postgres.store`) serves a fleet: other servers change the
same speakers at the same time, and `refresh` reports their changes.

The registry holds all records in memory. A store reports every change of them, its own ones too, to the listener that
`restore` was given: one change of a speaker at a time, in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.typing import NDArray

from voice_clone.errors import DeadlineExceeded, Internal
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import KnownVoiceSettings
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, SpeakerRecord
from voice_clone.speakers.voice_file import Header, Tensors

if TYPE_CHECKING:  # talkers know stores, and make no drafts
    from voice_clone.speakers.draft import Draft

MAX_KNOWN_VOICES = 1024  # that `KnownVoices.latest` looks at, whatever the store holds


class NotDurable(Internal):
    """The change is made, but the disk did not confirm it: a crash of the machine may undo it."""


class InDoubt(DeadlineExceeded):
    """The store went away while it made a change, and cannot be asked whether it did."""


class Change(NamedTuple):
    """A speaker has another record now.

    Attributes:
        key: of the speaker.
        record: the new one; None: there is no such speaker any more.
        by_flight: a flight of this server makes the change for the sake of that speaker, so its flights go on.
    """

    key: str
    record: SpeakerRecord | None
    by_flight: bool = False


Listener = Callable[[Sequence[Change]], None]


class Made(NamedTuple):
    """Artifacts that an encoder made, and their origin."""

    tensors: Tensors
    info: ArtifactInfo


class Store(Protocol):
    """Where speakers persist. Changes of one speaker by this server must not overlap; otherwise thread-safe.

    A method that changes speakers calls its `approve` once no other change of them is possible. `approve` returns the
    record to start from; if it raises, nothing is changed.

    Attributes:
        writes_whole: whether `amend` writes all that there is of the speaker again.

    Raises, all of them:
        Overloaded: the store is full, or cannot be reached.
        Internal: any other failure. In both cases nothing has changed.
        NotDurable, InDoubt: the change is made, or may be made.
    """

    writes_whole: bool

    def restore(self, listener: Listener) -> list[SpeakerRecord]:
        """All records, unordered. Called once, before anything else; `listener` gets all changes from then on."""

    def refresh(self) -> None:
        """Report to the listener what other servers changed before this call.

        Raises:
            Overloaded: the store does not answer, and what memory holds is older than it may be.
        """

    def write(self, drafts: Sequence[Draft], approve: Callable[[], None]) -> list[SpeakerRecord]:
        """Write speakers, all or none, each as a new generation that replaces an older one. Returns: their records."""

    def amend(
        self, made: Mapping[ArtifactId, Made], approve: Callable[[], SpeakerRecord], renew: bool = False
    ) -> SpeakerRecord:
        """Write artifacts of a speaker; with `renew`, as a new generation of it. Returns: its record."""

    def remove(self, approve: Callable[[], SpeakerRecord]) -> SpeakerRecord:
        """Remove a speaker, for good. Returns: its last record."""

    def set_aside(self, approve: Callable[[], SpeakerRecord], reason: str) -> None:
        """Take a speaker out of use because nothing of it can be read any more."""

    def purge(self, key: str) -> None:
        """Remove, for good, what was set aside of a speaker."""

    def read_audio(self, record: SpeakerRecord, style: str = "") -> bytes | None:
        """The uploaded clip of a style; None if there is none.

        Raises:
            Damaged: its bytes have changed since they were written.
            Superseded: another server deleted or replaced the speaker.
        """

    def read_artifacts(
        self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str
    ) -> dict[str, NDArray[Any]] | None:
        """The artifacts that this encoder made, under the names that it gave them; None if there are none.

        Raises: as `read_audio`.
        """

    def read_all(self, record: SpeakerRecord) -> tuple[Header, dict[str, NDArray[Any]]]:
        """The header and all tensors by their names in a file, not yet verified. Raises: as `read_audio`."""

    def claim(self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> AbstractContextManager[bool]:
        """Whether no other server is making these artifacts; none begins while the context lasts."""

    def counters(self) -> dict[str, Any]:
        """The store's counters, fit for JSON; asks no other process."""

    def close(self) -> None:
        """End after the changes under way; later changes fail. May be called twice."""


class KnownVoices(Protocol):
    """Reads speakers of a store that another process uses."""

    def latest(self, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
        """These artifacts of every speaker that has them, the one changed last first.

        Speakers that cannot be read are left out: what is made ready from them is made later, when it is asked for.

        Yields: the record of the speaker, and its tensors under the names that the encoder gave them.
        """

    def origins(self) -> set[str]:
        """The `voice` of `SpeakerRecord.origin` of every speaker."""


class StorePlugin(Protocol):
    """What an entry point of the group `voice_clone.voice_stores` names, such as a module with these functions.

    The name of the entry point is the scheme of the addresses: `postgresql` of postgresql://host/name. An error must
    not show an address, which has a password.

    Raises, both of them:
        InvalidArgument: the address is wrong.
        Unsupported: a package that it needs is not installed.
    """

    def open_store(self, address: str, settings: SpeakerCacheSettings) -> Store:
        """Open the store of the cache. Raises: as `Store`, too."""

    def open_known_voices(self, address: str, settings: KnownVoiceSettings) -> KnownVoices:
        """Open it for reading; nothing is asked of it yet."""
