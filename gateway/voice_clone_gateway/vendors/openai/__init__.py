"""OpenAI, beside its speech API, which is the gateway's own: Realtime, as far as a text is read aloud, consents, and
batches."""

from __future__ import annotations

from ...http.errors import own_shape
from ..vendor import Vendor
from . import batches, consents, realtime

OPENAI = Vendor(
    paths=("/v1/realtime", consents.PATH, *batches.PATHS),
    routers=(realtime.router, consents.manage, batches.router, batches.speaking),
    shape=own_shape,
    speaks=lambda headers: False,
)
