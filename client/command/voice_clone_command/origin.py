"""All that makes the sound of a speech besides its text: speech that is kept counts as long as it stays the same."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from voice_clone_client.client import Client
from voice_clone_client.errors import Cancelled, InvalidArgument, Unsupported, VoiceNotFound
from voice_clone_client.sources import content
from voice_clone_client.types import name_key

FORM = 1
"""Of what is hashed: a change of it needs another number."""
_NO_SOUND = ("cache", "model", "seed")  # arguments without an effect on it, or with another name here


class OriginChanged(Cancelled):
    """The voice, or the server, is another one than when the work was begun."""


class Origins:
    """What the sound of speeches is made of. Thread-safe; server and voices are asked for once."""

    def __init__(self, client: Client, mark: str | None, seconds: float) -> None:
        self._client, self._mark, self._seconds = client, mark, seconds
        self._lock = threading.Lock()
        self._synthesizers: dict[str, str] = {}
        self._voices: dict[tuple[str, str | None], str] = {}  # by name and style

    def of(self, how: Mapping[str, Any]) -> dict[str, Any]:
        """The origin of a speech, fit for JSON; `how` are its arguments, see `read_files`.

        Raises:
            VoiceNotFound: there is no such voice.
            InvalidArgument: it has no such style.
            Unsupported: the server does not say what makes its sound.
        """
        given = {name: _plain(value) for name, value in how.items() if value is not None and name not in _NO_SOUND}
        with self._lock:
            family = self._client.family(how.get("model"))
            if family not in self._synthesizers:
                self._synthesizers[family] = self._synthesizer(family)
            if (voice := given.get("voice")) is not None:
                place = voice, given.get("style")
                if place not in self._voices:
                    self._voices[place] = self._digest(*place)
                given["voice"] = self._voices[place]
            synthesizer = self._synthesizers[family]
        return {"form": FORM, "family": family, "synthesizer": synthesizer, "mark": self._mark, **given}

    def _synthesizer(self, family: str) -> str:
        until = time.monotonic() + self._seconds
        while True:
            found = self._client.families(synthesizers=True).get(family)
            if found is not None and found.synthesizer is not None:
                return found.synthesizer
            if found is None or time.monotonic() > until:
                raise Unsupported(f"the server does not say what makes the sound of {family}, so nothing can be kept")
            time.sleep(0.2)

    def _digest(self, name: str, style: str | None) -> str:
        try:
            voice = self._client.get(name)
            clip = voice.clip(style)
            if clip is None:
                there = ", ".join(voice.all_styles)
                raise InvalidArgument(f"the voice {voice.name!r} has no `style` {style!r}; its styles are {there}")
            return str(clip.digest)
        except VoiceNotFound:
            meant = {name_key(each): voice for each, voice in self._client.aliases().items()}.get(name_key(name), name)
            if all(name_key(preset.name) != name_key(meant) for preset in self._client.presets()):
                raise
            return f"preset {name_key(meant)}"


def read_files(how: Mapping[str, Any]) -> Any:
    """The arguments of a speech with its files read: once, and as they are now."""
    read = {name: content(how[name]) for name in ("reference_audio", "voice_prompt") if how.get(name) is not None}
    return {**how, **read}


def check(origin: Mapping[str, Any], info: Mapping[str, Any] | None) -> None:
    """See that a speech has this origin; `info` is the server's.

    Raises:
        OriginChanged: it has another one.
    """
    info, voice = info or {}, origin.get("voice")
    same_voice = voice is None or voice.startswith("preset ") or info.get("voice_digest") == voice
    if info.get("synthesizer") != origin["synthesizer"] or not same_voice:
        what = "the server" if same_voice else "the voice"
        raise OriginChanged(f"{what} has changed since the work was begun; give the command once more")


def hashed(origin: Mapping[str, Any], **more: Any) -> str:
    """The name of a sound: a hash of its origin and of what else it depends on."""
    text = json.dumps({**origin, **more}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.astype("<f4").tobytes()
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
