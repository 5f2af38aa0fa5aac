"""OpenAI, beside its speech API, which is the gateway's own: Realtime, as far as a text is read aloud."""

from __future__ import annotations

from ...http.errors import own_shape
from ..vendor import Vendor
from . import realtime

OPENAI = Vendor(
    paths=("/v1/realtime",),
    routers=(realtime.router,),
    shape=own_shape,
    speaks=lambda headers: False,
)
