"""The root certificate of an installation, and the server's certificates that it signs.

The root may sign only for this machine's names and for private addresses, so that its key can
impersonate nothing else on a device that trusts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from backend.core.private_networks import LOOPBACK, PRIVATE
from backend.errors import AppError

LOCALHOST = "localhost"
LOCAL_ADDRESS = IPv4Address("127.0.0.1")

ROOT_DAYS = 3650
SERVER_DAYS = 365
"""Apple's devices refuse certificates of servers that last for more than 825 days, and those of
public roots that last for more than 398."""
MAX_COMMON_NAME_LENGTH = 64
"""Maximum length of a common name."""
RENEW_BEFORE = timedelta(days=30)
_CLOCK_TOLERANCE = timedelta(days=1)
"""Certificates begin this long before they are made, for devices with a slow clock."""


class CertificateError(AppError):
    """A file of the local network's certificates is damaged."""

    slug, title = "lan-certificate", "The local network's certificate cannot be used"


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def from_pem(cls, text: str) -> CertifiedKey:
        """Read the text that `to_pem` writes. Raises `ValueError` for another one."""
        data = text.encode()
        key = serialization.load_pem_private_key(data, password=None)
        certificate = x509.load_pem_x509_certificate(data)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("The key is of another kind.")  # noqa: TRY004  # as for other contents
        return cls(certificate, key)

    def to_pem(self) -> str:
        """The key and the certificate, for a private file."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return (key + self.certificate.public_bytes(serialization.Encoding.PEM)).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the certificate, in pairs of hexadecimal digits."""
        return self.certificate.fingerprint(hashes.SHA256()).hex(":").upper()

    def is_due(self, at: datetime) -> bool:
        """True if the certificate ends soon, or has ended."""
        return at + RENEW_BEFORE > self.certificate.not_valid_after_utc

    def find_allowed(self, names: Sequence[str]) -> list[str]:
        """Return the names that this root may sign for."""
        extension = self.certificate.extensions.get_extension_for_class(x509.NameConstraints)
        permitted = extension.value.permitted_subtrees or ()
        allowed = {each.value for each in permitted if isinstance(each, x509.DNSName)}
        return [each for each in names if each in allowed]

    def covers(
        self, root: CertifiedKey, names: Sequence[str], addresses: Sequence[IPv4Address]
    ) -> bool:
        try:
            self.certificate.verify_directly_issued_by(root.certificate)
        except (ValueError, InvalidSignature):
            return False
        extension = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        own = extension.value
        return set(names) <= set(own.get_values_for_type(x509.DNSName)) and set(addresses) <= set(
            own.get_values_for_type(x509.IPAddress)
        )

    def sign_server(
        self, names: Sequence[str], addresses: Sequence[IPv4Address], at: datetime
    ) -> CertifiedKey:
        """Make a server's certificate for the names and addresses, and for this machine's own."""
        key = ec.generate_private_key(ec.SECP256R1())
        root = self.certificate
        subjects: list[x509.GeneralName] = [x509.DNSName(each) for each in (*names, LOCALHOST)]
        subjects += [x509.IPAddress(each) for each in dict.fromkeys((*addresses, LOCAL_ADDRESS))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        ends = min(at + timedelta(days=SERVER_DAYS), root.not_valid_after_utc)
        builder = (
            _builder(_name("Talekeeper"), key, at, ends)
            .issuer_name(root.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
            .add_extension(issuer, critical=False)
        )
        return CertifiedKey(builder.sign(self.key, hashes.SHA256()), key)


def make_root(label: str, names: Sequence[str], at: datetime) -> CertifiedKey:
    """Make a root that may sign for these names, for `localhost` and for private addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Talekeeper on {label}")
    allowed: list[x509.GeneralName] = [x509.DNSName(each) for each in (*names, LOCALHOST)]
    allowed += [x509.IPAddress(each) for each in (*PRIVATE, *LOOPBACK)]
    builder = (
        _builder(name, key, at, at + timedelta(days=ROOT_DAYS))
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(allowed, None), critical=True)
    )
    return CertifiedKey(builder.sign(key, hashes.SHA256()), key)


def _builder(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, at: datetime, ends: datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _CLOCK_TOLERANCE)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:MAX_COMMON_NAME_LENGTH])])
