"""Signed records in audio files (C2PA): that a file is synthetic, what made it and when, and who says so.

A manifest is signed with a private key and contains the certificate. It has no text and no name of a voice, only a
digest, which can be matched to a voice by those who have the voice's record. Changing the sound or the statements
breaks the manifest, and encoding the file again removes it; the mark in the sound stays. WAV, MP3, FLAC and M4A files
can have a manifest. The package c2pa-python does the work.
"""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from voice_clone_client import __version__
from voice_clone_client.errors import Internal, InvalidArgument, Unsupported
from voice_clone_client.sources import Source, content, name
from voice_clone_client.types import Voice

from .statements import SOURCE_TYPE

TYPES = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".m4a": "audio/mp4"}
"""Media types of the files that can carry a manifest, by their suffixes."""
LABEL = b"c2pa"
"""In each file that has a manifest: the name of its place."""

_SYNTHETIC = f"http://cv.iptc.org/newscodes/digitalsourcetype/{SOURCE_TYPE}"
_RECORD = "com.voice-clone.speech"
_UNTRUSTED = "signingCredential.untrusted"  # by no list of authorities; none was given
_OFFLINE = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False}}  # a file of a stranger names no address
_ALGORITHMS = ("es256", "es384", "es512", "ps256", "ps384", "ps512", "ed25519")


@dataclass(frozen=True)
class Manifest:
    """What a file's manifest says."""

    valid: bool
    """Whether the file is as it was signed, and the certificate has not expired. Says nothing about who signed it."""
    signer: str | None
    """The organisation in the certificate. Anyone can make a certificate of any name; compare it with the right one."""
    generator: str | None
    """What made the file, with its version."""
    synthetic: bool
    """Whether it says that a model made the sound."""
    family: str | None
    """The model family, if this package signed it."""
    time: str | None
    """When it was made, as the signer says; ISO 8601."""
    voice_digest: str | None
    """Of the voice's generation, as `Voice.digest` has it; None: it was no registered voice."""
    consent: str | None
    """The id of the consent to the voice, where the signer wanted it there."""
    faults: tuple[str, ...]
    """C2PA's codes for what does not verify."""


class FileSigner:
    """Signs audio files. Thread-safe.

    Args:
        certificates: a PEM file: the certificate, then those of its authorities but for the root.
        key: a PEM file of the private key, PKCS #8.
        algorithm: of the key: es256, es384, es512, ps256, ps384, ps512 or ed25519.

    Raises:
        OSError: a file cannot be read.
        InvalidArgument: they are no certificate and key that fit each other and C2PA.
        Unsupported: c2pa-python is not installed.
    """

    def __init__(self, certificates: Source, key: Source, algorithm: str = "es256") -> None:
        c2pa = _library()
        if algorithm not in _ALGORITHMS:
            raise InvalidArgument(f"the algorithm {algorithm} is unknown; it must be one of {', '.join(_ALGORITHMS)}")
        pair = c2pa.C2paSignerInfo(algorithm.encode(), content(certificates), content(key), None)
        self._c2pa, self._turn = c2pa, threading.Lock()
        try:
            self._signer = c2pa.Signer.from_info(pair)
            self.sign(_EXAMPLE, "audio/wav")
        except c2pa.C2paError as error:
            raise InvalidArgument(f"{name(certificates)} and {name(key)} cannot sign files: {error}") from None

    def sign(
        self,
        data: bytes,
        media_type: str,
        family: str | None = None,
        voice_digest: str | None = None,
        consent: str | None = None,
    ) -> bytes:
        """Put a manifest into a file.

        Args:
            data: a whole file.
            media_type: one of `TYPES`.
            family: the model family that made it.
            voice_digest: of the voice's generation: `voice_digest` of the speech's `info`.
            consent: its id, if readers of the file may know it.

        Raises:
            InvalidArgument: such files carry no manifest, or this one is damaged.
            Internal: the certificate has expired since this signer was made.
        """
        if media_type not in TYPES.values():
            raise InvalidArgument(f"{media_type} files carry no manifest; {', '.join(TYPES)} do")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        created = {"action": "c2pa.created", "digitalSourceType": _SYNTHETIC, "when": now}
        record = {"family": family, "time": now, "voice_digest": voice_digest, "consent": consent}
        claim = {
            "claim_generator_info": [{"name": "voice-clone", "version": __version__}],
            "assertions": [
                {"label": "c2pa.actions.v2", "data": {"actions": [created]}},
                {"label": _RECORD, "data": {name: value for name, value in record.items() if value is not None}},
            ],
        }
        signed = io.BytesIO()
        try:
            with self._turn, self._c2pa.Builder(json.dumps(claim)) as builder:
                builder.sign(self._signer, media_type, io.BytesIO(data), signed)
        except self._c2pa.C2paError as error:
            if data is _EXAMPLE:
                raise
            if isinstance(error, self._c2pa.C2paError.Signature):
                raise Internal(f"files cannot be signed any more: {error}") from None
            raise InvalidArgument(f"the {media_type} file cannot be signed: {error}") from None
        return signed.getvalue()


def consent_of(voice: Voice, digest: str) -> str | None:
    """Return the id of the consent to the clip of a voice, in any style, with this digest. None if there is none, or if
    the voice has other clips by now."""
    return next((clip.consent for clip in (voice, *voice.styles.values()) if clip.digest == digest), None)


def read(data: bytes) -> Manifest | None:
    """Read the manifest of a file; None if it has none.

    Raises:
        Unsupported: c2pa-python is not installed.
    """
    c2pa = _library()
    media_type = next((kind for kind, offset, magic in _MAGIC if data.startswith(magic, offset)), None)
    if media_type is None:
        return None
    try:
        with (
            c2pa.Context.from_dict(_OFFLINE) as context,
            c2pa.Reader(media_type, io.BytesIO(data), context=context) as reader,
        ):
            found: dict[str, Any] = json.loads(reader.json())
    except c2pa.C2paError as error:
        if isinstance(error, c2pa.C2paError.ManifestNotFound):
            return None
        return broken(" ".join(str(error).split()))
    return _manifest(found)


def broken(fault: str) -> Manifest:
    """Make the manifest of a file whose own one cannot be read."""
    return Manifest(False, None, None, False, None, None, None, None, (fault,))


def _manifest(found: dict[str, Any]) -> Manifest:
    """What the library has found. It checks the signature; what stands in an assertion may have any form."""
    active = found.get("manifests", {}).get(found.get("active_manifest"), {})
    data = {each["label"]: _object(each.get("data")) for each in active.get("assertions", ())}
    listed = [each.get("actions") for label, each in data.items() if label.startswith("c2pa.actions")]
    actions = [_object(action) for each in listed if isinstance(each, list) for action in each]
    record, generators = data.get(_RECORD, {}), active.get("claim_generator_info") or [{}]
    faults = tuple(each["code"] for each in found.get("validation_status", ()) if each["code"] != _UNTRUSTED)
    return Manifest(
        valid=found.get("validation_state") in ("Valid", "Trusted") and not faults,
        signer=_text(active.get("signature_info", {}).get("issuer")),
        generator=" ".join(filter(None, (_text(generators[0].get(each)) for each in ("name", "version")))) or None,
        synthetic=any(action.get("digitalSourceType") == _SYNTHETIC for action in actions),
        family=_text(record.get("family")),
        time=_text(record.get("time")),
        voice_digest=_text(record.get("voice_digest")),
        consent=_text(record.get("consent")),
        faults=faults,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _library() -> Any:
    try:
        import c2pa
    except ImportError:
        raise Unsupported(
            "manifests need the package c2pa-python, which is not installed: pip install c2pa-python"
        ) from None
    return c2pa


_MAGIC = (
    ("audio/wav", 8, b"WAVE"),
    ("audio/mpeg", 0, b"ID3"),  # where the manifest is, also in a FLAC file
    ("audio/flac", 0, b"fLaC"),
    ("audio/mp4", 4, b"ftyp"),
)
_EXAMPLE = (
    b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x02\0\0\0\0\0"  # one sample
)
