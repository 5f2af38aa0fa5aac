"""Manifests in files of strangers, read in a process of their own; see `voice_clone_provenance.manifests`."""

from __future__ import annotations

import asyncio
import json

from voice_clone_client import Unsupported
from voice_clone_provenance.manifests import LABEL, Manifest, broken

from voice_clone_gateway.confined_process import REFUSED

from ..confined import ConfinedProcesses


class ManifestReader:
    """Reads them."""

    def __init__(self, processes: ConfinedProcesses | None = None) -> None:
        self._processes = processes or ConfinedProcesses()

    async def read(self, data: bytes) -> Manifest | None:
        """The manifest in a file; None: it has none.

        Raises:
            Unsupported: it may have one, but c2pa-python is not installed.
        """
        if LABEL not in data:
            return None
        try:
            code, out = await self._processes.run("manifest", data)
        except asyncio.TimeoutError:
            return broken("it takes too long to read")
        if code == REFUSED:
            raise Unsupported(out.decode())
        if code != 0:
            return broken("it cannot be read")
        found = json.loads(out)
        return None if found is None else Manifest(**found | {"faults": tuple(found["faults"])})
