"""Certificates and keys of a deployment: one authority, a certificate per machine, a key per node.

Everything is elliptic-curve: P-256 for TLS, P-384 for the keys by which nodes show who they are.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atlas.runs.files import write_synced

DAYS = 825
"""How long certificates last."""
PRIVATE = 0o600
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Authority:
    """Who signs the certificates of a deployment."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> Authority:
        """One that nobody has used yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Atlas deployment authority")
        draft = _draft(name, name, key.public_key())
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        draft = draft.add_extension(_usage(signs=True), critical=True)
        return cls(draft.sign(key, hashes.SHA256()), key)

    def write(self, folder: Path) -> None:
        """`ca.pem` and `ca.key`."""
        write_synced(folder / "ca.pem", self.pem)
        write_private(folder / "ca.key", _pem_of(self.key))

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def certify(self, folder: Path, stem: str, hosts: Sequence[str]) -> None:
        """Write a key and a certificate for a machine that is reached under some names."""
        key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft(_name(stem), self.certificate.subject, key.public_key())
        names = x509.SubjectAlternativeName([_host(name) for name in dict.fromkeys(hosts)])
        draft = draft.add_extension(names, critical=False)
        draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        draft = draft.add_extension(_usage(signs=False), critical=True)
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        draft = draft.add_extension(server, critical=False)
        found = draft.sign(self.key, hashes.SHA256())
        write_synced(folder / f"{stem}.pem", found.public_bytes(serialization.Encoding.PEM))
        write_private(folder / f"{stem}.key", _pem_of(key))


def write_node_key(folder: Path) -> None:
    """`node.key`, by which a node shows who it is, and `node.pub`, which the server is told."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_private(folder / "node.key", key.private_bytes(serialization.Encoding.PEM, form, none))
    write_synced(
        folder / "node.pub",
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        ),
    )


def write_private(path: Path, data: bytes) -> None:
    """A new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
        file.write(data)


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
