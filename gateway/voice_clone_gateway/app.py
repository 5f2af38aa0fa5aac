"""The ASGI application, and how it is served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from starlette.routing import WebSocketRoute, compile_path
from voice_clone_client import VoiceCloneError, __version__

from . import page, vendors
from .audio.clips import ClipReader
from .confined import ConfinedProcesses
from .families import Families
from .http import errors, metrics
from .http.account import Account, give_back
from .http.audit import AuditLog
from .http.auth import Keys
from .http.bodies import BodyLimit
from .http.heads import OneReading
from .http.idle_server import IdleServer, WithServer
from .http.limits import Exports, Gate
from .http.origins import Cors
from .http.speech_first import CALLERS, AfterSpeech, Listeners, SpeechFirst
from .http.uvicorn_protocols import Connections, FairWebSocket, Sockets, TimedProtocol
from .jobs.keeper import Jobs
from .listening import bound, check_certificate, most_files, named
from .places import Places
from .provenance.manifest_reader import ManifestReader
from .provenance.signing import Signing
from .routes import batch, bundles, captions, design, jobs, marks, models, speech, text, transcripts, voices, websocket
from .services import Services
from .settings import Settings
from .speech.dictionaries import Dictionaries
from .speech.loudness import Loudness
from .speech.statuses import SpeechStatuses
from .traces import Traces
from .triton_clients import TritonClients
from .voices.ids import VoiceIds
from .voices.names import VoiceNames, reserved
from .voices.reference_fetch import References

log = logging.getLogger(__name__)

WEBSOCKETS = [
    route.path
    for router in (websocket.router, *vendors.ROUTERS)
    for route in router.routes
    if isinstance(route, WebSocketRoute)
]
"""The paths at which there are WebSockets alone."""
READABLE = (
    *("X-Request-ID", "X-Speech-Info", "X-Speech-Provenance", "X-Speech-Warning", "Location", "Retry-After"),
    *("ETag", "Accept-Ranges", "Content-Range"),
    *vendors.READABLE,
)
"""Headers of answers that pages of other origins may read."""


class GatewayAPI(FastAPI):
    """Says in its description that an option of a URL may be empty: see `OneReading`."""

    def openapi(self) -> dict[str, Any]:
        description = super().openapi()
        operations = (each for path in description["paths"].values() for each in path.values())
        for parameter in (each for operation in operations for each in operation.get("parameters", ())):
            if parameter["in"] == "query":
                parameter["allowEmptyValue"] = True
        return description


def create_app(settings: Settings) -> FastAPI:
    """The gateway. It starts without the server. Its `state.services` are the `Services`.

    Raises:
        ValueError, OSError: an alias of a model is invalid, OpenTelemetry is missing, or the keys, the authority's
            certificate or the audit log cannot be read or written.
        VoiceCloneError: the address, the token or the certificate of the Triton server is invalid, or what files are to
            be signed with.
    """
    keys = Keys.load(settings.api_keys_file)
    clients = TritonClients(settings, keys.bearers(), reserved(settings.default_voice))
    client = clients.operator
    traces = Traces(settings.otlp_endpoint)
    audit = AuditLog(settings.audit_log)

    account = Account(settings.memory_bytes, settings.retry_after)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        trimming = asyncio.create_task(give_back(account))
        kept = services.jobs
        if kept is not None:
            await kept.start(services)
        try:
            yield
        finally:
            trimming.cancel()
            if kept is not None:
                await kept.close()
            await services.loudness.close()
            await clients.close()
            await asyncio.to_thread(traces.close)  # it sends what waits
            audit.close()

    app = GatewayAPI(
        title="voice-clone",
        version=__version__,
        description="Speech in cloned voices, with the OpenAI speech API.",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # it would send the caller to any host that the request names
    )
    idle_server = IdleServer(settings.server_lock, settings.wake_seconds, settings.retry_after)
    processes, listeners = ConfinedProcesses(), Listeners()
    clips = ClipReader(processes)
    services = Services(
        settings=settings,
        clients=clients,
        client=client,
        idle_server=idle_server,
        families=Families(client, settings.model, settings.model_aliases, away=lambda: idle_server.idle),
        voice_names=VoiceNames(client, settings.default_voice),
        voice_ids=VoiceIds(),
        keys=keys,
        account=account,
        audit=audit,
        signing=Signing(settings),
        gate=Gate(settings.max_requests),
        items=Places(batch.MOST_ITEMS, more=CALLERS),
        exports=Exports(),
        sockets=Sockets(),
        clips=clips,
        manifests=ManifestReader(processes),
        references=References(settings, clips=clips),
        statuses=SpeechStatuses(settings.status_speeches, settings.status_seconds),
        traces=traces,
        metrics=metrics.Metrics(),
        loudness=Loudness(),
        dictionaries=Dictionaries(),
        jobs=Jobs(settings) if settings.jobs_dir or settings.jobs_database else None,
        listeners=listeners,
        after_speech=AfterSpeech(listeners),
        dialect=vendors.dialect,
    )
    app.state.services = services
    errors.install(app)

    app.add_middleware(WithServer, server=idle_server)
    app.add_middleware(SpeechFirst, listeners=listeners, caller=keys.caller)
    app.add_middleware(OneReading, websockets=[compile_path(path)[0] for path in WEBSOCKETS])
    app.add_middleware(
        BodyLimit,
        most=settings.max_body_bytes,
        exceptions={"/v1/audio/bundle": settings.max_bundle_bytes},
        account=account,
    )
    if settings.cors_origins:
        app.add_middleware(Cors, origins=settings.cors_origins, headers=READABLE)
    app.add_middleware(metrics.Observed, metrics=services.metrics)

    key = [Security(HTTPBearer(auto_error=False, description="A key of this gateway"))] if keys else []
    for router in vendors.ROUTERS:  # before the others, with which they share paths
        app.include_router(router)
    speaking = (speech.router, captions.router, batch.router, jobs.router, text.router)
    of_voices = (design.router, voices.router, voices.manage, bundles.manage)
    for router in (*speaking, *of_voices, marks.router, transcripts.router, models.router):
        app.include_router(router, dependencies=key)
    app.include_router(models.health_router)
    app.include_router(metrics.router)
    app.include_router(websocket.router)  # these check the key themselves: browsers send no headers with a WebSocket
    if settings.page:
        app.include_router(page.router)
    return app


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        app = create_app(settings)
        check_certificate(settings.tls_certificate, settings.tls_key)
    except (ValueError, VoiceCloneError) as error:
        raise SystemExit(f"voice-clone-gateway: {error}") from None
    try:
        sockets = [socket.socket(fileno=each) for each in settings.sockets] or bound(settings.host, settings.port)
    except OSError as error:
        raise SystemExit(f"voice-clone-gateway: {error}; see --host and --port") from None
    # The first answer to an unknown path needs it. It takes a while, in which callers would wait for a new gateway.
    threading.Thread(target=app.openapi, daemon=True).start()
    server = uvicorn.Server(uvicorn.Config(app, **server_options(settings)))
    log.info(
        "listening at %s://%s",
        "https" if settings.tls_certificate else "http",
        named(settings.host, sockets[0].getsockname()[1]),
    )
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C, when all has ended
        server.run(sockets=sockets)
    return 0


def server_options(settings: Settings) -> dict[str, Any]:
    """The options of uvicorn."""
    return {
        "host": settings.host,
        "port": settings.port,
        "log_config": None,  # the format of the gateway's own log
        # It is based on h11. uvicorn's other parser, its default where httptools is installed, buffers headers and
        # pipelined requests without limit, and does not stop a speech whose client sends a second request and leaves
        # (seen with httptools 0.9).
        # Half of the files are for WebSockets, for speech and for what is made.
        "http": partial(TimedProtocol, settings.stall_seconds, settings.head_seconds, Connections(most_files() // 2)),
        "loop": "asyncio",  # the protocols set how much it reads at once
        "ws": partial(FairWebSocket, vendors.TEXT_PATHS),
        "ws_ping_timeout": None,  # a pong waits behind all audio before it; `http.listeners` ends who does not read
        "server_header": False,
        "ws_max_size": settings.max_body_bytes,
        "ssl_certfile": settings.tls_certificate or None,
        "ssl_keyfile": settings.tls_key or None,
        "ws_per_message_deflate": False,  # audio does not compress
        "timeout_graceful_shutdown": 30,  # seconds for running speeches; longer ones are cut off
    }
