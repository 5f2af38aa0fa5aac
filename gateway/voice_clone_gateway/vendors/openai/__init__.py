"""OpenAI, beside its speech API, which is the gateway's own: Realtime, as far as a text is read aloud, and consents."""

from __future__ import annotations

from ...http.errors import own_shape
from ..vendor import Vendor
from . import consents, realtime

OPENAI = Vendor(
    paths=("/v1/realtime", consents.PATH),
    routers=(realtime.router, consents.manage),
    shape=own_shape,
    speaks=lambda headers: False,
)
