"""C2PA's rules for manifests, by its own library, as c2patool has them: what is Trusted, Valid and Invalid, and why."""

from __future__ import annotations

import contextlib
import io
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import av
import c2pa
import pytest
import soundfile
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from voice_clone_client import Internal, InvalidArgument
from voice_clone_client.wav import WavWriter
from voice_clone_command.audio_file import AudioFile
from voice_clone_provenance.manifests import TYPES, FileSigner, Manifest, read
from voice_clone_provenance.statements import Statement

from tests.support.official.certificates import SigningFiles, signing_files
from tests.support.official.encoded_sound import RATE, SOUND

SAID = str(Statement("some_family", "marked"))
DIGEST = 32 * "c5"
UNTRUSTED = "signingCredential.untrusted"
PLACES = 120  # bytes of a file that are changed, one at a time
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of each kind that can be signed, with a tag, by its suffix."""
    made = {}
    for suffix in TYPES:
        path = tmp_path_factory.mktemp("plain") / f"a{suffix}"
        with path.open("wb") as file, (WavWriter if suffix == ".wav" else AudioFile)(file, RATE, SAID) as writer:
            writer.write(SOUND[:8000])
        made[suffix] = path.read_bytes()
    return made


@pytest.fixture(scope="module")
def signed(signer: FileSigner, plain: dict[str, bytes]) -> dict[str, bytes]:
    return {
        suffix: signer.sign(data, TYPES[suffix], "some_family", DIGEST, "form 12") for suffix, data in plain.items()
    }


def state(data: bytes, media_type: str = "audio/wav", anchors: str | None = None) -> tuple[str, list[str]]:
    """What the library itself says: the state, and the codes of what is wrong."""
    trust = {} if anchors is None else {"trust": {"trust_anchors": anchors}, "verify": {"verify_trust": True}}
    with c2pa.Context.from_dict(trust) as context, c2pa.Reader(media_type, io.BytesIO(data), context=context) as reader:
        found = json.loads(reader.json())
    return found["validation_state"], [each["code"] for each in found.get("validation_status") or ()]


def changed(data: bytes, place: int) -> bytes:
    other = bytearray(data)
    other[place] ^= 1
    return bytes(other)


def faults_of(data: bytes) -> tuple[str, ...]:
    """Of a file whose manifest does not verify."""
    found = read(data)
    assert found is not None and not found.valid
    return found.faults


def authority_of(files: SigningFiles) -> str:
    return "-----BEGIN" + files.certificates.read_text().split("-----BEGIN")[2]


@pytest.mark.parametrize("suffix", TYPES)
def test_trusted_and_valid(suffix: str, signed: dict[str, bytes], files: SigningFiles, tmp_path: Path) -> None:
    """A reader with the authority on its list trusts the signer; ours has no list, and says if the file is whole."""
    kind = TYPES[suffix]
    assert state(signed[suffix], kind, authority_of(files)) == ("Trusted", [])
    assert state(signed[suffix], kind) == ("Valid", [UNTRUSTED])
    assert state(signed[suffix], kind, authority_of(signing_files(tmp_path))) == ("Valid", [UNTRUSTED])
    found = read(signed[suffix])
    assert found is not None and found.valid and found.faults == ()


@pytest.mark.parametrize("suffix", TYPES)
def test_a_byte_changed(suffix: str, plain: dict[str, bytes], signed: dict[str, bytes]) -> None:
    """Wherever it is: the manifest does not verify, or is not found, or all is said as before: the byte meant nothing.

    Such bytes are in the manifest's own frames and padding, of which a kilobyte is zeros, and in the type of an M4A.
    """
    data = signed[suffix]
    whole, size = read(data), len(data) - len(plain[suffix])
    begin = data.find(b"c2pa") - 100
    silent = 0
    for place in range(0, len(data), len(data) // PLACES):
        found = read(changed(data, place))
        if found is not None and found.valid:
            assert found == whole and (begin < place < begin + size + 200 or (suffix == ".m4a" and place < 32)), place
            silent += 1
    assert silent < PLACES * size / len(data)
    tag = data.find(SAID.encode())
    assert tag > 0
    for place in range(tag, tag + len(SAID), 9):
        assert not getattr(read(changed(data, place)), "valid", False), "the tag is signed, too"


@pytest.mark.parametrize("suffix", TYPES)
def test_bytes_added_and_taken_away(suffix: str, signed: dict[str, bytes]) -> None:
    hashed = "assertion.bmffHash.mismatch" if suffix == ".m4a" else "assertion.dataHash.mismatch"
    assert faults_of(signed[suffix] + b"\0") == (hashed,)
    assert faults_of(signed[suffix][:-9])


def test_what_was_changed_is_named(signed: dict[str, bytes]) -> None:
    data = signed[".wav"]
    consent, digest = data.find(b"form 12"), data.find(DIGEST.encode())
    version = data.find(b"voice-clone", data.find(b"claim_generator_info"))
    assert min(consent, digest, version) > 0
    assert faults_of(changed(data, 1000)) == ("assertion.dataHash.mismatch",), "a sample"
    for place in (consent, digest):
        assert faults_of(changed(data, place)) == ("assertion.hashedURI.mismatch",)
    assert faults_of(changed(data, version)) == ("claimSignature.mismatch",)


def test_a_manifest_on_another_sound(signed: dict[str, bytes]) -> None:
    """The other sound has as many samples, so that only they differ."""
    data = bytearray(signed[".wav"])
    data[1000:3000] = bytes(2000)
    assert faults_of(bytes(data)) == ("assertion.dataHash.mismatch",)


@pytest.mark.parametrize("suffix", [".wav", ".mp3", ".flac"])
def test_encoded_again_there_is_none(suffix: str, signed: dict[str, bytes]) -> None:
    samples, rate = soundfile.read(io.BytesIO(signed[suffix]))
    again = io.BytesIO()
    soundfile.write(again, samples, rate, format="WAV")
    assert read(again.getvalue()) is None


def test_a_signed_m4a_plays(plain: dict[str, bytes], signed: dict[str, bytes]) -> None:
    heard = []
    for each in (plain, signed):
        with av.open(io.BytesIO(each[".m4a"]), "r") as file:
            heard.append([frame.to_ndarray().tobytes() for frame in file.decode(audio=0)])
    assert heard[0] == heard[1] != []


def test_signed_again_the_last_one_counts(signed: dict[str, bytes], tmp_path: Path) -> None:
    files = signing_files(tmp_path)
    found = read(FileSigner(files.certificates, files.key).sign(signed[".wav"], "audio/wav", "other_family"))
    assert found is not None and found.valid and (found.family, found.consent) == ("other_family", None)


def test_a_certificate_that_expires(signed: dict[str, bytes], plain: dict[str, bytes], tmp_path: Path) -> None:
    """No authority has stamped the time, so the rules take the time of the reader."""
    found, seconds = None, 5
    while found is None:
        began = time.monotonic()
        files = signing_files(tmp_path, ends=seconds * SECOND)
        end = time.monotonic() + seconds + 1
        with contextlib.suppress(InvalidArgument, Internal):
            signer = FileSigner(files.certificates, files.key)
            data = signer.sign(plain[".wav"], "audio/wav", "some_family", DIGEST)
            found = read(data)
        if found is None or not found.valid:
            assert time.monotonic() - began > seconds - 1.5, "it has not expired yet"
            found, seconds = None, 4 * seconds  # a busy machine needs longer
    time.sleep(max(0.0, end - time.monotonic()))
    judged, codes = state(data)
    assert judged == "Invalid" and sorted(codes) == ["signingCredential.expired", UNTRUSTED]
    assert state(data, anchors=authority_of(files))[0] == "Invalid"
    later = read(data)
    assert later == Manifest(**{**vars(found), "valid": False, "faults": ("signingCredential.expired",)}), "all is said"
    with pytest.raises(Internal, match=r"files cannot be signed any more: .*not valid at time of signing"):
        signer.sign(plain[".wav"], "audio/wav")


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ({"begins": -2 * DAY, "ends": -DAY}, "the certificate was not valid at time of signing"),
        ({"begins": DAY}, "the certificate was not valid at time of signing"),
        ({"purpose": False}, "the certificate"),
    ],
)
def test_a_certificate_that_may_not_sign(certificate: dict[str, Any], reason: str, tmp_path: Path) -> None:
    files = signing_files(tmp_path, **certificate)
    with pytest.raises(InvalidArgument, match=f"cannot sign files: .*{reason}"):
        FileSigner(files.certificates, files.key)


def key_of_another_curve() -> bytes:
    return generate_private_key(SECP384R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize("kind", ["empty", "text", "another curve", "with a password", "the authority alone"])
def test_keys_that_are_none(kind: str, files: SigningFiles, tmp_path: Path) -> None:
    """One clear error when the signer is made, none when the first file is to be signed."""
    key, certificates = tmp_path / "key.pem", tmp_path / "certificates.pem"
    secret = load_pem_private_key(files.key.read_bytes(), None)
    locked = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    given = {"empty": b"", "text": b"no key", "another curve": key_of_another_curve(), "with a password": locked}
    key.write_bytes(given.get(kind, files.key.read_bytes()))
    chain = files.certificates.read_text() if kind in given else authority_of(files)
    certificates.write_text(chain)
    with pytest.raises(InvalidArgument, match="cannot sign files: "):
        FileSigner(certificates, key)
