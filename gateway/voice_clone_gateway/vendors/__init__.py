"""Adapters for the APIs of other vendors: an application keeps its code and changes the base URL.

Each is a folder with tables from the vendor's fields, errors and ids to ours. The rest of the gateway names no vendor.
An installed package adds one by an entry point of the group `voice_clone_gateway.vendors` that names its `Vendor`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from starlette.types import Scope

from ..http.errors import Shape, own_shape
from .azure import AZURE
from .cartesia import CARTESIA
from .deepgram import DEEPGRAM
from .elevenlabs import ELEVENLABS
from .openai import OPENAI
from .vapi import VAPI
from .vendor import Vendor

INSTALLED: tuple[Vendor, ...] = tuple(each.load() for each in entry_points(group=__name__))
VENDORS = (OPENAI, ELEVENLABS, DEEPGRAM, CARTESIA, AZURE, VAPI, *INSTALLED)
ROUTERS = tuple(router for vendor in VENDORS for router in vendor.routers)
READABLE = tuple(name for vendor in VENDORS for name in vendor.headers)
"""Headers of answers that pages of other origins may read."""
TEXT_PATHS = tuple(path for vendor in VENDORS for path in vendor.paths)
"""How the paths begin at which there are WebSockets whose messages hold texts alone."""


def dialect(scope: Scope) -> Shape:
    """The shape of an error for the API that a request speaks."""
    return next((vendor.shape for vendor in VENDORS if vendor.is_asked(scope)), own_shape)
