"""Every cap that a remote peer's behaviour can run into, with its reason. Each has a test at the cap.

Sizes are bytes, times are seconds, the rest are counts.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# wire: CBOR
MAX_CBOR_DEPTH: Final = 16
"""No message nests deeper than 6; 16 leaves room, and cbor2 itself stops at 400."""
MAX_CBOR_INT_MAP: Final = 256
"""Pairs in a map that has an integer key. Python hashes an int to itself, with no secret, so whoever chooses the keys
chooses their places in the dict: 20,000 crafted 64-bit keys in 140 KB cost 270 ms against 1.4 ms for chance ones, and
the cost is quadratic. Hashes of text and bytes are keyed. Integer keys are the fields of a schema: dozens."""
MAX_CBOR_ITEMS: Final = 65_536
"""Items in one decoded frame: seven full HAVEs fit."""

# wire: frames
MAX_CONTROL_FRAME: Final = 1 * MIB
"""A control frame's payload; checked in the header, before anything is allocated."""
MAX_MESSAGES_PER_FRAME: Final = 1_024
"""One frame holds at most this many messages, so decoding one frame stays in the low milliseconds."""
MAX_CONTROL_OUTBOX: Final = 4 * MIB
"""Encoded control messages waiting for a peer that does not read. Beyond it the link is cut and counted."""
MAX_HELLO: Final = 1_024
"""A hello's payload: 200 bytes and the address, with room for features to come."""
MAX_REASON: Final = 255
"""Characters of a goodbye."""
HAVE_BATCH: Final = 8_192
"""Pieces in one HAVE: seven of them fit the item limit of a frame."""
MAX_STAMP_AHEAD_MILLIS: Final = 600_000
"""How far ahead of this clock a stamp may be: ten minutes, beyond any honest clock's error."""
MAX_ADDRESS: Final = 255
"""A listen address's text in HELLO (RFC 1035's limit for a name)."""

# net: handshakes and links
HANDSHAKE_SECONDS: Final = 10.0
"""From accept or dial to the end of the session handshake. Three round trips on the slowest link we model."""
MAX_PENDING_HANDSHAKES: Final = 256
"""Unproved links one listener holds; a newcomer beyond it displaces the oldest of them."""
MAX_LINKS: Final = 512
"""Proved links one peer holds; two (control and bulk) to each neighbour."""
PING_SECONDS: Final = 10.0
"""A control link that received nothing for so long is asked for a sign of life."""
LIVENESS_SECONDS: Final = 30.0
"""A control link that received nothing for so long is broken."""
CLOSE_SECONDS: Final = 1.0
"""How long a graceful close waits for the peer to take the goodbye."""
MAX_REMEMBERED_PEERS: Final = 4_096
"""Peers whose ban, or count of ended sessions, is remembered; the oldest are forgotten."""
MAX_CHANNEL_CERTIFICATE: Final = 2 * KIB
"""A channel certificate's DER; ours are 0.4 KiB. Checked before it is parsed."""
MAX_CHANNEL_ANSWERS: Final = 4 * KIB
"""TLS answers (27 bytes for each KeyUpdate) waiting for this side to send next. One update serves for 400 GB."""
MAX_CHANNEL_HANDSHAKE: Final = 16 * KIB
"""Bytes one side may send before its TLS handshake is done; ours take 3 KiB. OpenSSL alone would hold 100 KiB."""

# swarm
MAX_PIECE_SIZE: Final = 16 * MIB
"""Largest piece: a piece is verified as a whole, so this bounds what a lying source can make us throw away."""
MAX_PIECES: Final = 262_144
"""Pieces in one artifact: 8 MiB of hashes in the manifest, and 32 KiB a bitfield."""
MANIFEST_PAGE_PIECES: Final = 16_384
"""Hashes in one MANIFEST message: 512 KiB, half a control frame."""
MAX_REQUESTS_PER_LINK: Final = 256
"""Requests one neighbour may have waiting at a source for one artifact; honest fetchers keep to it, so one more is a
violation."""
MAX_ANSWERS_ADRIFT: Final = 1_024
"""Requests that a neighbour may leave unanswered when it leaves a swarm: their pieces may still be on their way. An
honest one has answered all but those in flight, at most ``MAX_REQUESTS_PER_LINK`` an artifact."""
MAX_ARTIFACTS: Final = 64
"""Artifacts one peer shares or fetches at once."""
