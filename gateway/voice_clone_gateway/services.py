"""What the endpoints of a gateway work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these modules find the services in a request
    from voice_clone_client import AsyncClient

    from .audio.clips import ClipReader
    from .families import Families
    from .http.account import Account
    from .http.audit import AuditLog
    from .http.auth import Keys
    from .http.errors import Shape
    from .http.idle_server import IdleServer
    from .http.limits import Exports, Gate
    from .http.metrics import Metrics
    from .http.speech_first import AfterSpeech, Listeners
    from .http.uvicorn_protocols import Sockets
    from .jobs.keeper import Jobs
    from .places import Places
    from .provenance.manifest_reader import ManifestReader
    from .provenance.signing import Signing
    from .settings import Settings
    from .speech.dictionaries import Dictionaries
    from .speech.loudness import Loudness
    from .speech.statuses import SpeechStatuses
    from .traces import Traces
    from .triton_clients import TritonClients
    from .voices.ids import VoiceIds
    from .voices.names import VoiceNames
    from .voices.reference_fetch import References


@dataclass(frozen=True)
class Services:
    """The services of one gateway. They last as long as it does."""

    settings: Settings
    clients: TritonClients
    client: AsyncClient  # the operator's among them, for all families
    idle_server: IdleServer
    families: Families
    voice_names: VoiceNames
    voice_ids: VoiceIds
    keys: Keys
    account: Account
    audit: AuditLog
    signing: Signing  # of whole files
    gate: Gate  # of the speeches that run
    items: Places  # of the items of batches
    exports: Exports  # that are under way
    sockets: Sockets  # that are open
    clips: ClipReader
    manifests: ManifestReader
    references: References
    statuses: SpeechStatuses
    traces: Traces
    metrics: Metrics
    loudness: Loudness
    dictionaries: Dictionaries
    jobs: Jobs | None  # None: this gateway keeps none
    listeners: Listeners
    after_speech: AfterSpeech
    dialect: Callable[[MutableMapping[str, Any]], Shape]  # the shape of errors for a request's scope


def services_of(request: Mapping[str, Any]) -> Services:
    """The services of the gateway that handles a request or a WebSocket, which may be given by its ASGI scope."""
    services: Services = request["app"].state.services
    return services
