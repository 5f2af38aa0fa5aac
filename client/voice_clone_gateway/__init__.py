"""An HTTP gateway to voice-clone on Triton that speaks the OpenAI speech API.

    voice-clone-gateway --triton localhost:8001 --port 8080

It is stateless: voices, their cache and the speech itself are the server's. `create_app` is the ASGI application.
"""

from .app import create_app
from .settings import Settings

__all__ = ["Settings", "create_app"]
