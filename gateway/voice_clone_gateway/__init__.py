"""An HTTP gateway to voice-clone on Triton that speaks the OpenAI speech API.

    voice-clone-gateway --triton localhost:8001 --port 8080

Voices, their cache and the speech itself are the server's. The gateway keeps only how its latest speeches ended
(`speech.statuses`). `create_app` is the ASGI application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app
    from .settings import Settings

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: the command must be able to say what is not installed."""
    if name == "create_app":
        from .app import create_app

        return create_app
    if name == "Settings":
        from .settings import Settings

        return Settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
