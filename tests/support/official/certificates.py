"""Certificates of the kind that C2PA wants of a signer: for e-mail protection, by an authority that is no signer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ORGANISATION = "A studio"


@dataclass(frozen=True)
class SigningFiles:
    """PEM files: the certificate and that of its authority; the private key."""

    certificates: Path
    key: Path


_DAY = timedelta(days=1)


def signing_files(
    folder: Path, begins: timedelta = -_DAY, ends: timedelta = 30 * _DAY, purpose: bool = True
) -> SigningFiles:
    """A new authority, and a certificate that it has signed.

    Args:
        folder: where the files go.
        begins, ends: when the certificate is valid, from now.
        purpose: whether it says that it is for e-mail protection; C2PA refuses one that does not.
    """
    authority_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    authority = _certificate("An authority", authority_key, None, authority_key, -_DAY, 30 * _DAY, False)
    certificate = _certificate("A signer", key, authority, authority_key, begins, ends, purpose)
    files = SigningFiles(folder / "certificates.pem", folder / "key.pem")
    files.certificates.write_bytes(certificate.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: EllipticCurvePrivateKey,
    begins: timedelta,
    ends: timedelta,
    purpose: bool,
) -> x509.Certificate:
    """For `key`; `issuer` None: an authority's own."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    is_authority, now = issuer is None, datetime.now(timezone.utc)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                **usage,
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if purpose:
        usage_of_keys = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(usage_of_keys, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
