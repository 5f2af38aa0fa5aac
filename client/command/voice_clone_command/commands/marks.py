"""Marks of synthetic speech: detect."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from voice_clone_client.client import Client
from voice_clone_client.errors import ConnectionFailed, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone_client.sources import content
from voice_clone_client.types import Detection
from voice_clone_provenance.examination import Examination, examined
from voice_clone_provenance.manifests import Manifest, read
from voice_clone_provenance.statements import Statement

from .common import command, given, in_words, print_json, print_line


def add(commands: Any) -> None:
    detect = command(
        commands, "detect", _detect, "look for the mark of synthetic speech, a manifest and a tag in a file"
    )
    detect.add_argument(
        "file", help="WAV, FLAC, OGG, MP3, up to 10 minutes; m4a, mp4, webm, amr up to 30 s; - for stdin"
    )
    detect.add_argument("--json", action="store_true", help="print JSON")


def _detect(client: Client, parsed: argparse.Namespace) -> None:
    data = content(given(parsed.file))
    found = examined(data, _mark(client, data, parsed), _manifest(data))
    if parsed.json:
        print_json(asdict(found))
        return
    print_line(_heard(found))
    print_line(_signature(found.manifest, found.manifest_unread))
    print_line("no tag that says so" if found.statement is None else _tag(found.statement))


def _mark(client: Client, data: bytes, parsed: argparse.Namespace) -> Detection | VoiceCloneError:
    """Return what the server finds, or why it cannot look. No server is needed for the manifest and the tags."""
    try:
        return client.detect(data)
    except (ConnectionFailed, InvalidArgument, Unsupported) as error:
        return type(error)(in_words(error.text, parsed.parser))


def _manifest(data: bytes) -> Manifest | VoiceCloneError | None:
    try:
        return read(data)
    except Unsupported as error:
        return error


def _signature(found: Manifest | None, unread: str | None) -> str:
    if unread is not None:
        return f"no look for a manifest: {unread}"
    if found is None:
        return "no manifest"
    if not found.valid:
        return f"a manifest that does not verify\t{_plain(', '.join(found.faults))}"
    said = [
        found.generator,
        found.family,
        found.time,
        found.voice_digest and f"voice {found.voice_digest}",
        found.consent and f"consent {found.consent}",
        "made by a model" if found.synthetic else None,
    ]
    return "\t".join([f"a valid manifest, signed by {_plain(found.signer)}", *(_plain(each) for each in said if each)])


def _plain(text: str | None) -> str:
    """Make the text of a stranger harmless: it must not direct the terminal."""
    return "".join(each if each.isprintable() else "?" for each in text or "an unknown one")


def _tag(found: Statement) -> str:
    said = [found.generator, found.family, found.mark]
    return "\t".join(["a tag says: made by a model", *(each for each in said if each)])


def _heard(found: Examination) -> str:
    if found.mark_unread is not None:
        return f"no look for a mark: {found.mark_unread}"
    if found.mark is None:
        return f"no mark\tconfidence {found.confidence:.2f}"
    start = f"\tfrom {found.start:.0f} s on" if found.start else ""
    speed = f"\tat {found.speed:g} times its speed" if found.speed != 1 else ""
    return f"marked as synthetic: {found.mark}\tconfidence {found.confidence:.2f}{start}{speed}"
