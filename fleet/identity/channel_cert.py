"""Channel certificates: an X.509 certificate that proves an Ed25519 identity to TLS and DTLS.

The channel's own key is a fresh ECDSA P-256 key, because every TLS and DTLS stack can use one. The certificate is
signed by that same key and carries one critical extension that ties it to the identity::

    extension id   2.25.278858311185752176571607910884315300484   (a UUID as an arc, ITU-T X.667: needs no registrar)
    extension value, DER:  OCTET STRING (96 bytes) = Ed25519 public key (32) || signature (64)
    signature over         CHANNEL_DOMAIN || the channel key's SubjectPublicKeyInfo in DER

The handshake proves that the other side holds the channel key, the signature that the identity vouches for that key.
No authority is involved; names in the certificate mean nothing. The idea is that of libp2p's TLS handshake
specification (``tls.md``); encoding and strictness are our own.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.errors import PeerViolation
from fleet.identity.keys import CHANNEL_DOMAIN, SIGNATURE_SIZE, Identity, PeerId, verify_untrusted
from fleet.limits import MAX_CHANNEL_CERTIFICATE

IDENTITY_EXTENSION: Final = x509.ObjectIdentifier("2.25.278858311185752176571607910884315300484")

_DAY: Final = 86_400.0

CLOCK_SLACK_SECONDS: Final = _DAY
"""How far the wall clocks of two peers may differ before a certificate looks expired or not yet valid."""
VALIDITY_SECONDS: Final = 365 * _DAY
"""How long a certificate is good for. The key lives as long as the process, so this only bounds a leaked one."""

_KEY_SIZE: Final = 32
_VALUE_HEADER: Final = bytes([0x04, _KEY_SIZE + SIGNATURE_SIZE])  # DER: an OCTET STRING of 96 bytes
_NAME: Final = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "peerfleet channel")])

# What the parser may raise on hostile DER, some of it lazily, when a field is first looked at.
_MALFORMED: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    Warning,  # where the program turns them into errors
)


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, slots=True)
class ChannelCertificate:
    """A certificate and its private key, in the types that pyOpenSSL contexts take. Keep it in memory only."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey
    renew_at: float
    """Wall time from which a new one should be issued instead: half of its validity is over."""

    @classmethod
    def issue(cls, identity: Identity, wall_time: float) -> ChannelCertificate:
        """A new channel key, vouched for by ``identity``. Takes about 0.2 ms."""
        key = ec.generate_private_key(ec.SECP256R1())
        value = identity.peer_id + identity.sign(CHANNEL_DOMAIN, _spki(key.public_key()))
        start = datetime.datetime.fromtimestamp(wall_time, datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_NAME)
            .issuer_name(_NAME)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(seconds=VALIDITY_SECONDS))
            .add_extension(x509.UnrecognizedExtension(IDENTITY_EXTENSION, _VALUE_HEADER + value), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, wall_time + VALIDITY_SECONDS / 2)

    def der(self) -> bytes:
        """The certificate as it travels."""
        return self.certificate.public_bytes(Encoding.DER)


def peer_of_certificate_untrusted(der: bytes, wall_time: float) -> PeerId:
    """The identity that a channel certificate proves, once its holder has proved that it has the channel key.

    Raises ``PeerViolation``, and nothing else, for a certificate that is too large, malformed, not valid at
    ``wall_time``, of another key type, not signed by its own key, without exactly one identity extension, with a
    critical extension of any other kind, or not vouched for by the identity it names.
    """
    if len(der) > MAX_CHANNEL_CERTIFICATE:
        raise PeerViolation(f"a channel certificate has {len(der):,} bytes, more than {MAX_CHANNEL_CERTIFICATE:,}")
    try:
        certificate = x509.load_der_x509_certificate(der)
        channel_key = certificate.public_key()
        extensions = list(certificate.extensions)
        not_before = certificate.not_valid_before_utc.timestamp()
        not_after = certificate.not_valid_after_utc.timestamp()
        algorithm = certificate.signature_algorithm_oid
    except x509.DuplicateExtension as error:
        raise PeerViolation(f"a channel certificate has the extension {error.oid.dotted_string} twice") from None
    except _MALFORMED as error:
        raise PeerViolation(f"a channel certificate is malformed: {error}") from None

    if not isinstance(channel_key, ec.EllipticCurvePublicKey) or not isinstance(channel_key.curve, ec.SECP256R1):
        raise PeerViolation("a channel certificate's key is not ECDSA P-256")
    if algorithm != x509.SignatureAlgorithmOID.ECDSA_WITH_SHA256:
        raise PeerViolation("a channel certificate is not signed with ECDSA and SHA-256")
    if wall_time + CLOCK_SLACK_SECONDS < not_before:
        raise PeerViolation("a channel certificate is not valid yet: compare the clocks of the two machines")
    if wall_time - CLOCK_SLACK_SECONDS > not_after:
        raise PeerViolation("a channel certificate has expired: compare the clocks of the two machines")

    value: bytes | None = None
    for extension in extensions:
        if extension.oid == IDENTITY_EXTENSION and isinstance(extension.value, x509.UnrecognizedExtension):
            if not extension.critical:
                raise PeerViolation("a channel certificate's identity extension is not critical")
            value = extension.value.value
        elif extension.critical:
            raise PeerViolation(f"a channel certificate has the critical extension {extension.oid.dotted_string}")
    if value is None:
        raise PeerViolation("a channel certificate names no identity")
    if len(value) != len(_VALUE_HEADER) + _KEY_SIZE + SIGNATURE_SIZE or not value.startswith(_VALUE_HEADER):
        raise PeerViolation("a channel certificate's identity extension is malformed")

    try:
        channel_key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, *_MALFORMED):
        raise PeerViolation("a channel certificate is not signed by its own key") from None
    if not der.endswith(b"\0" + certificate.signature):
        # A BIT STRING whose count of unused bits is not 0: the parser takes it where those bits happen to be 0.
        raise PeerViolation("a channel certificate is malformed: its signature is not whole bytes")
    key_end = len(_VALUE_HEADER) + _KEY_SIZE
    peer = PeerId(value[len(_VALUE_HEADER) : key_end])
    verify_untrusted(peer, CHANNEL_DOMAIN, _spki(channel_key), value[key_end:])
    return peer
