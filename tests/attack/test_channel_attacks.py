"""Hostile ends of a TLS channel: wrong certificates, nonsense, silence. Every one is refused with the right blame,
reaches no application byte, and leaves the listener to honest peers."""

from __future__ import annotations

import datetime
import functools
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL

from fleet.errors import LinkBroken, PeerViolation
from fleet.identity.channel_cert import (
    CLOCK_SLACK_SECONDS,
    IDENTITY_EXTENSION,
    VALIDITY_SECONDS,
    ChannelCertificate,
    peer_of_certificate_untrusted,
)
from fleet.identity.keys import CHANNEL_DOMAIN, HANDSHAKE_DOMAIN, Identity
from fleet.limits import MAX_CHANNEL_ANSWERS, MAX_CHANNEL_CERTIFICATE
from fleet.net.tls import TlsBinding, TlsLink, TlsListener

NOW = 1_800_000_000.0
DAY = 86_400.0
MALLORY = Identity(bytes([66]) * 32)
ALICE = Identity(bytes([1]) * 32)
BOB = Identity(bytes([2]) * 32)
P256 = ec.generate_private_key(ec.SECP256R1())
OTHER_P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
RSA = rsa.generate_private_key(65_537, 2_048)
ED25519 = ed25519.Ed25519PrivateKey.generate()
UNKNOWN = x509.ObjectIdentifier("2.25.1")
# Encodes to as many bytes as IDENTITY_EXTENSION, so that one can be patched into the other.
TWIN = x509.ObjectIdentifier(IDENTITY_EXTENSION.dotted_string[:-1] + "5")

Endpoint = tuple[list[x509.Certificate], Any]  # what it presents, and its key


def spki(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def identity_value(key: Any, *, signer: Identity = MALLORY, named: Identity = MALLORY, **change: Any) -> bytes:
    signature = signer.sign(change.get("domain", CHANNEL_DOMAIN), change.get("over", spki(key)))
    return b"\x04\x60" + named.peer_id + signature


def forge(
    key: Any = P256,
    *,
    signed_by: Any = None,
    digest: hashes.HashAlgorithm | None = None,
    value: bytes | None = None,
    critical: bool = True,
    start: float = NOW,
    end: float = NOW + DAY,
    extra: list[tuple[x509.ExtensionType, bool]] | None = None,
    without_identity: bool = False,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mallory")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime.datetime.fromtimestamp(start, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(end, datetime.UTC))
    )
    if not without_identity:
        value = identity_value(key) if value is None else value
        builder = builder.add_extension(x509.UnrecognizedExtension(IDENTITY_EXTENSION, value), critical=critical)
    for extension, is_critical in extra or []:
        builder = builder.add_extension(extension, critical=is_critical)
    signer = key if signed_by is None else signed_by
    return builder.sign(signer, None if signer is ED25519 else digest or hashes.SHA256())


def der_length(body: bytes) -> bytes:
    return bytes([len(body)]) if len(body) < 128 else b"\x82" + struct.pack(">H", len(body))


def with_twin_extension() -> x509.Certificate:
    """The identity extension twice, which no builder makes: patched and signed again."""
    twin = forge(extra=[(x509.UnrecognizedExtension(TWIN, identity_value(P256)), True)])
    tbs = twin.tbs_certificate_bytes
    ours, theirs = (oid_bytes(oid) for oid in (IDENTITY_EXTENSION, TWIN))
    assert len(ours) == len(theirs)
    assert tbs.count(theirs) == 1
    tbs = tbs.replace(theirs, ours)
    signature = b"\0" + P256.sign(tbs, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    body = tbs + algorithm + b"\x03" + der_length(signature) + signature
    return x509.load_der_x509_certificate(b"\x30" + der_length(body) + body)


def oid_bytes(oid: x509.ObjectIdentifier) -> bytes:
    first, second, *rest = map(int, oid.dotted_string.split("."))
    out = bytearray()
    for arc in (first * 40 + second, *rest):
        septets = [arc & 127]
        while arc := arc >> 7:
            septets.append(arc & 127 | 128)
        out += bytes(reversed(septets))
    return bytes(out)


def of(certificate: x509.Certificate, key: Any = P256, *more: x509.Certificate) -> Endpoint:
    return [certificate, *more], key


BAD: dict[str, tuple[Callable[[], Endpoint], str]] = {
    "two certificates": (lambda: of(forge(), P256, forge()), "more than one certificate"),
    "expired": (lambda: of(forge(start=NOW - 9 * DAY, end=NOW - DAY - 1)), "expired"),
    "not valid yet": (lambda: of(forge(start=NOW + DAY + 1, end=NOW + 9 * DAY)), "not valid yet"),
    "unknown critical extension": (
        lambda: of(forge(extra=[(x509.UnrecognizedExtension(UNKNOWN, b"\x05\0"), True)])),
        "critical extension 2.25.1",
    ),
    "known critical extension": (
        lambda: of(forge(extra=[(x509.BasicConstraints(ca=True, path_length=None), True)])),
        "critical extension 2.5.29.19",
    ),
    "no identity": (lambda: of(forge(without_identity=True)), "names no identity"),
    "identity not critical": (lambda: of(forge(critical=False)), "not critical"),
    "identity twice": (lambda: of(with_twin_extension()), "twice"),
    "identity cut short": (lambda: of(forge(value=identity_value(P256)[:-1])), "identity extension is malformed"),
    "identity too long": (lambda: of(forge(value=identity_value(P256) + b"\0")), "identity extension is malformed"),
    "identity empty": (lambda: of(forge(value=b"")), "identity extension is malformed"),
    "key signature over another key": (
        lambda: of(forge(value=identity_value(P256, over=spki(OTHER_P256)))),
        "does not verify",
    ),
    "key signature for another purpose": (
        lambda: of(forge(value=identity_value(P256, domain=HANDSHAKE_DOMAIN))),
        "does not verify",
    ),
    "somebody else's identity": (lambda: of(forge(value=identity_value(P256, named=BOB))), "does not verify"),
    "a certificate copied under another key": (
        lambda: of(forge(value=ChannelCertificate.issue(BOB, NOW).der()[-98:])),
        "malformed|does not verify",
    ),
    "signed by another key": (lambda: of(forge(signed_by=OTHER_P256)), "not signed by its own key"),
    "another digest": (lambda: of(forge(digest=hashes.SHA384())), "SHA-256"),
    "P-384": (lambda: of(forge(P384), P384), "not ECDSA P-256"),
    "RSA": (lambda: of(forge(RSA), RSA), "not ECDSA P-256"),
    "Ed25519": (lambda: of(forge(ED25519), ED25519), "not ECDSA P-256"),
    "oversized certificate": (
        lambda: of(forge(extra=[(x509.UnrecognizedExtension(UNKNOWN, bytes(MAX_CHANNEL_CERTIFICATE)), False)])),
        "more than 2,048",
    ),
    "oversized handshake": (
        lambda: of(forge(extra=[(x509.UnrecognizedExtension(UNKNOWN, bytes(40_000)), False)])),
        "of handshake, more than",
    ),
}


# the certificate alone


@pytest.mark.parametrize("name", [name for name in BAD if name != "two certificates"])
def test_a_bad_certificate_is_a_violation(name: str) -> None:
    (certificates, _), reason = BAD[name][0](), BAD[name][1]
    with pytest.raises(PeerViolation, match="more than 2,048" if "oversized" in name else reason):
        peer_of_certificate_untrusted(certificates[0].public_bytes(Encoding.DER), NOW)


def test_a_good_certificate_names_its_peer_for_as_long_as_it_is_valid() -> None:
    der = ChannelCertificate.issue(BOB, NOW).der()
    for wall_time in (NOW - CLOCK_SLACK_SECONDS, NOW, NOW + VALIDITY_SECONDS + CLOCK_SLACK_SECONDS):
        assert peer_of_certificate_untrusted(der, wall_time) == BOB.peer_id
    for wall_time in (NOW - CLOCK_SLACK_SECONDS - 1, NOW + VALIDITY_SECONDS + CLOCK_SLACK_SECONDS + 1):
        with pytest.raises(PeerViolation, match="clocks"):
            peer_of_certificate_untrusted(der, wall_time)


def test_an_extension_that_nobody_must_understand_is_ignored() -> None:
    certificate = forge(extra=[(x509.UnrecognizedExtension(UNKNOWN, b"\x05\0"), False)])
    assert peer_of_certificate_untrusted(certificate.public_bytes(Encoding.DER), NOW) == MALLORY.peer_id


def test_a_certificate_at_the_cap() -> None:
    def padded(size: int) -> bytes:
        return forge(extra=[(x509.UnrecognizedExtension(UNKNOWN, bytes(size)), False)]).public_bytes(Encoding.DER)

    size = MAX_CHANNEL_CERTIFICATE - len(padded(1_000)) + 1_000
    # The length of an ECDSA signature varies, so draw until both sides of the cap have been hit exactly.
    for wanted, fits in ((MAX_CHANNEL_CERTIFICATE, True), (MAX_CHANNEL_CERTIFICATE + 1, False)):
        der = b""
        while len(der) != wanted:
            der = padded(size)
            size += (wanted > len(der)) - (wanted < len(der))
        if fits:
            assert peer_of_certificate_untrusted(der, NOW) == MALLORY.peer_id
        else:
            with pytest.raises(PeerViolation, match="more than"):
                peer_of_certificate_untrusted(der, NOW)


@pytest.mark.slow
def test_damaged_certificates_raise_nothing_but_violations() -> None:
    der = ChannelCertificate.issue(BOB, NOW).der()
    rng = random.Random(20)
    for cut in range(len(der)):
        with pytest.raises(PeerViolation):
            peer_of_certificate_untrusted(der[:cut], NOW)
    with pytest.raises(PeerViolation):
        peer_of_certificate_untrusted(der + b"\0", NOW)
    for position in range(len(der)):
        for value in {der[position] ^ 1 << bit for bit in range(8)} | {0, 255, rng.randrange(256)}:
            damaged = der[:position] + bytes([value]) + der[position + 1 :]
            if damaged != der:
                with pytest.raises(PeerViolation):
                    peer_of_certificate_untrusted(damaged, NOW)


# the channel


def hostile_context(endpoint: Endpoint | None) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    if endpoint is not None:
        (certificate, *more), key = endpoint
        context.use_certificate(certificate)
        context.use_privatekey(key)
        for one in more:
            context.add_extra_chain_cert(one)
    return context


class Hostile:
    """An OpenSSL connection over a plain socket stream, without any of our checks."""

    def __init__(self, stream: trio.SocketStream, context: SSL.Context, *, client: bool) -> None:
        self.stream = stream
        self.tls = SSL.Connection(context, None)
        if client:
            self.tls.set_connect_state()
        else:
            self.tls.set_accept_state()

    async def flush(self) -> None:
        try:
            while True:
                await self.stream.send_all(self.tls.bio_read(1 << 16))
        except SSL.WantReadError:
            pass

    async def feed(self) -> None:
        data = await self.stream.receive_some(1 << 16)
        if data:
            self.tls.bio_write(data)
        else:
            raise trio.BrokenResourceError

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except SSL.WantReadError:
                await self.flush()
                await self.feed()
            else:
                await self.flush()
                return

    async def receive(self) -> bytes:
        while True:
            try:
                return self.tls.recv(1 << 14)
            except SSL.WantReadError:
                await self.flush()
                await self.feed()
            except SSL.ZeroReturnError:
                return b""

    async def intrude(self) -> None:
        """Shake hands, send application bytes at once, and stay until the other side hangs up."""
        try:
            await self.handshake()
            self.tls.send(b"application bytes")
            await self.flush()
            while await self.receive():
                pass
        except (SSL.Error, trio.BrokenResourceError):
            pass
        await self.stream.aclose()


def guarded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that hangs fails within 30 seconds."""

    @functools.wraps(test)
    async def wrapper(*args: object, **kwargs: object) -> None:
        with trio.fail_after(30):
            await test(*args, **kwargs)

    return wrapper


async def dial_raw(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


@asynccontextmanager
async def bob_listens() -> AsyncIterator[TlsListener]:
    """Bob's listener; once the attack is over, an honest peer must get through."""
    binding = TlsBinding(wall_clock=lambda: NOW)
    listener = await binding.listen(BOB)
    try:
        yield listener
        alice = await binding.dial(listener.address, ALICE, BOB.peer_id)
        bob = await listener.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.handshake)
            nursery.start_soon(bob.handshake)
        await alice.send_all([b"honest"])
        block = bytearray(10)
        assert await bob.receive_into(memoryview(block)) == 6
        await alice.aclose()
        await bob.aclose()
    finally:
        await listener.aclose()


async def assert_refused(link: TlsLink, reason: str) -> None:
    with pytest.raises(PeerViolation, match=reason):
        await link.handshake()
    assert link.channel_peer is None
    block = bytearray(100)
    with pytest.raises(LinkBroken):
        await link.receive_into(memoryview(block))
    assert block == bytes(100)
    with pytest.raises(LinkBroken):
        await link.send_all([b"x"])
    await link.aclose()


@pytest.mark.parametrize("name", BAD)
@guarded
async def test_a_listener_refuses_a_hostile_client(name: str) -> None:
    endpoint, reason = BAD[name][0](), BAD[name][1]
    async with bob_listens() as listener, trio.open_nursery() as nursery:
        intruder = Hostile(await dial_raw(listener.address), hostile_context(endpoint), client=True)
        nursery.start_soon(intruder.intrude)
        await assert_refused(await listener.accept(), reason)


@pytest.mark.parametrize("name", BAD)
@guarded
async def test_a_dialler_refuses_a_hostile_server(name: str) -> None:
    endpoint, reason = BAD[name][0](), BAD[name][1]
    binding = TlsBinding(wall_clock=lambda: NOW)
    (socket_listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with socket_listener, trio.open_nursery() as nursery:
        host, port = socket_listener.socket.getsockname()
        link = await binding.dial(f"{host}:{port}", ALICE, None)
        intruder = Hostile(await socket_listener.accept(), hostile_context(endpoint), client=False)
        nursery.start_soon(intruder.intrude)
        await assert_refused(link, reason)


@guarded
async def test_a_client_without_a_certificate() -> None:
    async with bob_listens() as listener, trio.open_nursery() as nursery:
        intruder = Hostile(await dial_raw(listener.address), hostile_context(None), client=True)
        nursery.start_soon(intruder.intrude)
        await assert_refused(await listener.accept(), "did not return a certificate")


@guarded
async def test_a_client_with_an_older_protocol() -> None:
    context = hostile_context(of(forge()))
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    async with bob_listens() as listener, trio.open_nursery() as nursery:
        intruder = Hostile(await dial_raw(listener.address), context, client=True)
        nursery.start_soon(intruder.intrude)
        await assert_refused(await listener.accept(), "unsupported protocol")


@guarded
async def test_the_stranger_is_who_it_says_but_not_who_was_dialled() -> None:
    binding = TlsBinding(wall_clock=lambda: NOW)
    (socket_listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with socket_listener, trio.open_nursery() as nursery:
        host, port = socket_listener.socket.getsockname()
        link = await binding.dial(f"{host}:{port}", ALICE, BOB.peer_id)
        intruder = Hostile(await socket_listener.accept(), hostile_context(of(forge())), client=False)
        nursery.start_soon(intruder.intrude)
        await assert_refused(link, f"expected {BOB.peer_id} at .*, found {MALLORY.peer_id}")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        bytes(200),
        b"\xff" * 200,
        random.Random(3).randbytes(50_000),
        b"\x16\x03\x01\x40\x00" + bytes(16_384),
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" * 10,
        b"\x17\x03\x03\x00\x20" + bytes(32),
        b"\x15\x03\x03\x00\x02\x01\x00" * 100,
    ],
    ids=["http", "zeros", "ones", "noise", "hello of zeros", "hello of 16 MiB", "application data", "warnings"],
)
@guarded
async def test_garbage_to_a_listener(garbage: bytes) -> None:
    async with bob_listens() as listener:
        stream = await dial_raw(listener.address)
        link = await listener.accept()
        await stream.send_all(garbage)
        with pytest.raises((PeerViolation, LinkBroken)) as caught:
            await link.handshake()
        # Only alerts may pass for a peer that breaks off in order.
        assert isinstance(caught.value, PeerViolation) or garbage.startswith(b"\x15")
        await link.aclose()
        await stream.aclose()


@guarded
async def test_a_hello_cut_short() -> None:
    hello_maker = SSL.Connection(hostile_context(of(forge())), None)
    hello_maker.set_connect_state()
    with pytest.raises(SSL.WantReadError):
        hello_maker.do_handshake()
    hello = hello_maker.bio_read(1 << 16)
    async with bob_listens() as listener:
        for cut in range(0, len(hello), 16):
            stream = await dial_raw(listener.address)
            link = await listener.accept()
            await stream.send_all(hello[:cut])
            await stream.aclose()
            with pytest.raises(LinkBroken, match="during the TLS handshake"):
                await link.handshake()
            await link.aclose()


@guarded
async def test_silence_ends_with_the_callers_deadline() -> None:
    async with bob_listens() as listener:
        stream = await dial_raw(listener.address)
        link = await listener.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.handshake)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert link.channel_peer is None
        with pytest.raises(LinkBroken):
            await link.receive_into(memoryview(bytearray(1)))
        await link.aclose()
        await stream.aclose()


# after an honest handshake


@asynccontextmanager
async def insider(context: SSL.Context | None = None) -> AsyncIterator[tuple[TlsLink, Hostile]]:
    """Bob's link to Mallory, whose certificate is in order."""
    async with bob_listens() as listener:
        context = hostile_context(of(forge())) if context is None else context
        mallory = Hostile(await dial_raw(listener.address), context, client=True)
        link = await listener.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.handshake)
            nursery.start_soon(mallory.handshake)
        assert link.channel_peer == MALLORY.peer_id
        try:
            yield link, mallory
        finally:
            link.abort()
            await trio.aclose_forcefully(mallory.stream)


@guarded
async def test_bytes_before_a_damaged_record_arrive_and_then_the_peer_is_blamed() -> None:
    async with insider() as (link, mallory):
        mallory.tls.send(b"good")
        good = mallory.tls.bio_read(1 << 16)
        mallory.tls.send(b"evil")
        evil = bytearray(mallory.tls.bio_read(1 << 16))
        evil[-1] ^= 1
        await mallory.stream.send_all(good + evil)
        block = bytearray(100)
        assert await link.receive_into(memoryview(block)) == 4
        assert block[:4] == b"good"
        for _ in range(2):
            with pytest.raises(PeerViolation, match="broke the TLS protocol") as caught:
                await link.receive_into(memoryview(block))
            assert caught.value.peer == MALLORY.peer_id
        with pytest.raises(LinkBroken):
            await link.send_all([b"x"])
        with pytest.raises(SSL.Error, match="alert"):  # and it was told
            await mallory.receive()
        await link.aclose()


@guarded
async def test_an_end_without_goodbye_is_a_truncation() -> None:
    async with insider() as (link, mallory):
        mallory.tls.send(b"half of it")
        await mallory.flush()
        await mallory.stream.send_eof()
        block = bytearray(100)
        assert await link.receive_into(memoryview(block)) == 10
        for _ in range(2):
            with pytest.raises(LinkBroken, match="without saying goodbye"):
                await link.receive_into(memoryview(block))


@pytest.mark.slow
@guarded
async def test_a_record_cut_at_every_byte_is_a_truncation() -> None:
    probe = b"x" * 20
    for cut in range(1, len(probe) + 22, 3):
        async with insider() as (link, mallory):
            mallory.tls.send(probe)
            await mallory.stream.send_all(mallory.tls.bio_read(1 << 16)[:cut])
            await mallory.stream.send_eof()
            with pytest.raises(LinkBroken):
                await link.receive_into(memoryview(bytearray(100)))


class RecordForger:
    """Seals records with a client's traffic secret, to say what OpenSSL never would (RFC 8446, 5.2 and 7.3)."""

    def __init__(self, secret: bytes) -> None:
        self.sequence = 0
        self.install(secret)

    @staticmethod
    def expand(secret: bytes, label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", length, len(label)) + label + b"\0"
        return HKDFExpand(hashes.SHA256(), length, info).derive(secret)

    def install(self, secret: bytes) -> None:
        self.secret, self.sequence = secret, 0
        self.key = AESGCM(self.expand(secret, b"key", 16))
        self.iv = self.expand(secret, b"iv", 12)

    def seal(self, content: bytes, kind: int) -> bytes:
        inner = content + bytes([kind])
        header = struct.pack(">BHH", 0x17, 0x0303, len(inner) + 16)
        nonce = (int.from_bytes(self.iv, "big") ^ self.sequence).to_bytes(12, "big")
        self.sequence += 1
        return header + self.key.encrypt(nonce, inner, header)

    def key_update(self) -> bytes:
        record = self.seal(b"\x18\0\0\x01\x01", 22)  # update_requested
        self.install(self.expand(self.secret, b"traffic upd", 32))
        return record


def leaky_context() -> tuple[SSL.Context, dict[bytes, bytes]]:
    """A client's context, and the secrets that it will have told once the handshake is done."""
    secrets: dict[bytes, bytes] = {}
    context = hostile_context(of(forge()))
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(b"TLS_AES_128_GCM_SHA256")

    def log(_: SSL.Connection, line: bytes) -> None:
        label, _, secret = line.split()
        secrets[label] = bytes.fromhex(secret.decode())

    context.set_keylog_callback(log)
    return context, secrets


@guarded
async def test_key_updates_are_answered_with_the_next_send() -> None:
    context, secrets = leaky_context()
    async with insider(context) as (link, mallory):
        forger = RecordForger(secrets[b"CLIENT_TRAFFIC_SECRET_0"])
        block = bytearray(100)
        for round_trip in range(5):
            updates = 100 if round_trip else 1
            await mallory.stream.send_all(
                b"".join(forger.key_update() for _ in range(updates)) + forger.seal(b"ask", 23)
            )
            assert await link.receive_into(memoryview(block)) == 3
            await link.send_all([b"answer"])
            assert await mallory.receive() == b"answer"
        await link.aclose()
        assert await mallory.receive() == b""


@guarded
async def test_key_updates_without_end_neither_stall_nor_swell_the_link() -> None:
    """Each asks for an answer, from a peer that does not read."""
    context, secrets = leaky_context()
    async with insider(context) as (link, mallory), trio.open_nursery() as nursery:
        forger = RecordForger(secrets[b"CLIENT_TRAFFIC_SECRET_0"])
        flood = b"".join(forger.key_update() for _ in range(5_000)) + forger.seal(b"after all", 23)
        nursery.start_soon(mallory.stream.send_all, flood)
        with pytest.raises(PeerViolation, match="without end") as caught:
            await link.receive_into(memoryview(bytearray(100)))
        assert caught.value.peer == MALLORY.peer_id
        await link.aclose()
        nursery.cancel_scope.cancel()


@guarded
async def test_key_updates_at_the_cap() -> None:
    for extra, fits in ((0, True), (2, False)):  # OpenSSL may owe the answer to the last one until the next record
        context, secrets = leaky_context()
        async with insider(context) as (link, mallory):
            await link.send_all([b"x"])  # so that nothing of the handshake waits any more
            forger = RecordForger(secrets[b"CLIENT_TRAFFIC_SECRET_0"])
            updates = MAX_CHANNEL_ANSWERS // 27 + extra
            await mallory.stream.send_all(b"".join(forger.key_update() for _ in range(updates)) + forger.seal(b"!", 23))
            block = memoryview(bytearray(100))
            assert await link.receive_into(block) == 1
            await mallory.stream.send_all(forger.seal(b"!", 23))
            if fits:
                assert await link.receive_into(block) == 1
            else:
                with pytest.raises(PeerViolation, match="without end"):
                    await link.receive_into(block)


@guarded
async def test_empty_records_by_the_thousand_end_the_link() -> None:
    context, secrets = leaky_context()
    async with insider(context) as (link, mallory):
        forger = RecordForger(secrets[b"CLIENT_TRAFFIC_SECRET_0"])
        await mallory.stream.send_all(forger.seal(b"ok", 23) + b"".join(forger.seal(b"", 23) for _ in range(1_000)))
        assert await link.receive_into(memoryview(bytearray(100))) == 2
        with pytest.raises(PeerViolation, match="record too small"):
            await link.receive_into(memoryview(bytearray(100)))
