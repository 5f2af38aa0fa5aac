"""Add to an error which voice, model or port may have been meant."""

from __future__ import annotations

import argparse
import contextlib
import socket

from voice_clone_client.client import Client
from voice_clone_client.errors import ConnectionFailed, VoiceCloneError, VoiceNotFound
from voice_clone_client.servers.addresses import PORT, Addresses, server
from voice_clone_program.names import meant

_VOICES = ("voice", "name", "first", "second")  # arguments that name a voice


def explained(error: VoiceCloneError, client: Client, parsed: argparse.Namespace) -> str:
    """Return the text of a command's error with a hint: a similar voice, the models of the server, or the right port.

    The server is asked for its voices and models. If it does not answer, the text has no hint.
    """
    text = error.text
    if isinstance(error, ConnectionFailed):
        return _of_http(server(parsed.url)) or text
    try:
        if isinstance(error, VoiceNotFound):
            guess = "" if text.endswith("?") else _voices(client, parsed)  # an older server guesses no names
            text = f"{text}; {guess}" if guess else text
            return f"{text} voice-clone list shows all" if text.endswith("?") else f"{text}; voice-clone list shows all"
        if (
            parsed.model is not None
            and _is_about(error, parsed.model)
            and parsed.model not in (known := client.models())
        ):
            return f"{text}; the models of this server are {', '.join(known)}"
    except Exception:  # without the server's answer there is no hint
        pass
    return text


def _of_http(url: str) -> str:
    """Return a hint if one of the addresses speaks HTTP/1, as Triton's endpoints other than gRPC do; else ""."""
    for address in Addresses(url).fixed or ():
        host, _, port = address.target.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: triton\r\nConnection: close\r\n\r\n")
            if connection.recv(5) == b"HTTP/":
                return f"{address.target} speaks HTTP and not gRPC; give the port of gRPC, which is usually {PORT}"
    return ""


def _is_about(error: VoiceCloneError, model: str) -> bool:
    """Return whether an error is that of an unknown model."""
    own = (f"no model {model}", f"for model '{model}'")  # Triton answers the second for a model that does not speak
    return error.field == "model" or error.text.startswith(f"{model} ") or any(each in error.text for each in own)


def _voices(client: Client, parsed: argparse.Namespace) -> str:
    known = [voice.name for voice in client.list()] + [preset.name for preset in client.presets()]
    given = [name for each in _VOICES if isinstance(name := getattr(parsed, each, None), str)]
    guesses = [guess for name in given if name not in known and (guess := meant(name, known))]
    return guesses[0] if guesses else ""
