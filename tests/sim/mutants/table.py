"""The mutants: one line of our own code each, changed so that it is wrong only under faults.

``faults`` are those under which it is looked for; what they find in the code as it is is a bug of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old``, which stands once in ``module``, is replaced by ``new``."""

    name: str
    what: str
    module: str
    old: str
    new: str
    options: tuple[str, ...] = ("--peers", "5", "--pieces", "16", "--piece-kib", "16")
    faults: str = "all=2,skew_ms=200"
    finds: str = ""
    """Part of what the failure is called."""

    def exploration(self) -> list[str]:
        """The scenario and its options, for ``stress.explore``."""
        return ["content_swarm", *self.options, "--faults", self.faults]


MUTANTS: Final = (
    Mutant(
        "journal-before-data",
        "the journal is believed though the data it speaks of was never synced",
        "fleet.swarm.piece_store",
        "                if digest == manifest.piece_hash(piece):",
        "                if digest:",
        finds="unsafe: ",
    ),
    Mutant(
        "timed-out-forgotten",
        "a timed-out request is never asked again",
        "fleet.swarm.download",
        "            self._pens.take(ask)\n            self._unask(ask.piece)\n",
        "            self._pens.take(ask)\n",
        finds="deadline exceeded",
    ),
    Mutant(
        "have-forgotten",
        "what a peer holds is not told after a restart",
        "fleet.swarm.announcing",
        "        have: NDArray[np.bool_] = holding.store.have\n",
        "        have: NDArray[np.bool_] = holding.store.have & (holding.store.recovered is None)\n",
        finds="deadline exceeded",
    ),
    Mutant(
        "verified-unchecked",
        "a piece counts as verified before its hash is checked",
        "fleet.swarm.intake",
        "                store.write(incoming.piece, incoming.ask.received, run)\n",
        "                store.write(incoming.piece, incoming.ask.received, run), "
        "store.mark_verified(incoming.piece)\n",
        finds="unsafe: ",
    ),
    Mutant(
        "old-nonce",
        "a session is accepted with the nonce of an earlier one",
        "fleet.net.handshakes",
        "        nonce = self._local.environment.entropy(NONCE_SIZE)\n",
        '        nonce = self._local.environment.rng(f"nonce {self._local.name}", 0).randbytes(NONCE_SIZE)\n',
        finds="the nonce of an earlier one",
    ),
    Mutant(
        "not-redialled",
        "a lost neighbour is not dialled again",
        "fleet.net.redial",
        "            kept.up_since = None\n            self._schedule(kept, now)\n",
        "            kept.up_since = None\n",
        faults="partition=3",
        finds="deadline exceeded",
    ),
    Mutant(
        "hole-in-journal",
        "a crash finds a hole between two journal records",
        "fleet.swarm.piece_store",
        "        self._journal_end += _RECORD_SIZE\n",
        "        self._journal_end += 2 * _RECORD_SIZE\n",
        finds="cost verified pieces",
    ),
    Mutant(
        "news-dropped",
        "the queue of news for a neighbour has room for one piece, and drops the others",
        "fleet.swarm.news",
        "            pieces.append(piece)\n",
        "            pieces.extend([piece][len(pieces) :])\n",
        options=("--peers", "5", "--pieces", "64", "--piece-kib", "16", "--latency-ms", "10"),
        finds="deadline exceeded",
    ),
)
