"""Which pieces to ask a source for: rarest first, ties broken by a seeded shuffle. Pure state, no clock, no network.

The order of a piece is ``availability * pieces + tie``: how many sources offer it, then this fetcher's own
permutation, so that fetchers that see the same rarity still ask for different pieces (Legout et al., IMC 2006).

Sources that hold everything are asked second. A seeder's bytes are the scarcest in a swarm: every byte it sends twice
is one that a fetcher could have passed on. So a full source is asked only for pieces that no usable partial source
offers, unless the caller says otherwise (``also_common``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray


class Picker:
    """Availability and choice for one artifact at one fetcher. Sources are named by small integers of the caller's."""

    def __init__(self, have: NDArray[np.bool_], rng: random.Random) -> None:
        """``have``: the pieces held already, shape (pieces,); copied."""
        pieces = len(have)
        ties = list(range(pieces))
        rng.shuffle(ties)
        self._pieces = pieces
        self._order = np.array(ties, dtype=np.int64)
        self._partial = np.zeros(pieces, dtype=np.int32)
        self._offers: dict[int, NDArray[np.bool_]] = {}
        self._usable: dict[int, bool] = {}
        self._full: dict[int, bool] = {}
        self._wanted = ~have
        self._missing = ~have
        self._left = int(self._missing.sum())

    # --- sources ---

    def set_source(self, source: int, offers: NDArray[np.bool_], *, usable: bool) -> None:
        """Replace all that ``source`` offers, shape (pieces,). An unusable source's offers do not count as usable."""
        self.remove_source(source)
        self._offers[source] = offers.copy()
        self._usable[source] = usable
        self._full[source] = bool(offers.all())
        self._count(source, 1)

    def remove_source(self, source: int) -> None:
        """Forget a source; an unknown one is no error."""
        if source in self._offers:
            self._count(source, -1)
            del self._offers[source], self._usable[source], self._full[source]

    def set_usable(self, source: int, usable: bool) -> None:
        """A choked or backed-off source keeps its offers, but others are not spared for its sake."""
        if self._usable[source] != usable:
            self._count(source, -1)
            self._usable[source] = usable
            self._count(source, 1)

    def add_offers(self, source: int, pieces: tuple[int, ...]) -> None:
        """``source`` now offers these pieces too. The indices are in range: the caller has checked them."""
        offers = self._offers[source]
        partial = self._usable[source] and not self._full[source]
        for piece in pieces:
            if not offers[piece]:
                offers[piece] = True
                self._order[piece] += self._pieces
                if partial:
                    self._partial[piece] += 1
        if not self._full[source] and offers.all():
            self._count(source, -1)
            self._full[source] = True
            self._count(source, 1)

    def withdraw_offer(self, source: int, piece: int) -> None:
        """``source`` does not offer this piece for now.

        A full source stays one: were it counted as partial for a single refusal, the other full ones would not be asked
        for anything that it offers.
        """
        if self._offers[source][piece]:
            self._offers[source][piece] = False
            self._order[piece] -= self._pieces
            if self._usable[source] and not self._full[source]:
                self._partial[piece] -= 1

    def _count(self, source: int, sign: int) -> None:
        offers = self._offers[source]
        self._order[offers] += sign * self._pieces
        if self._usable[source] and not self._full[source]:
            self._partial[offers] += sign

    def offers(self, source: int, piece: int) -> bool:
        """Whether ``source`` is known to offer ``piece``."""
        return bool(self._offers[source][piece])

    def is_full(self, source: int) -> bool:
        """Whether ``source`` has offered every piece."""
        return self._full[source]

    # --- pieces ---

    def asked(self, piece: int) -> None:
        """A request for the piece is out: it is not chosen again until ``wanted``."""
        self._wanted[piece] = False

    def wanted(self, piece: int) -> None:
        """No request for the piece is out any more, and it is still missing."""
        self._wanted[piece] = self._missing[piece]

    def verified(self, piece: int) -> None:
        """The piece is held."""
        self._left -= bool(self._missing[piece])
        self._wanted[piece] = False
        self._missing[piece] = False

    def is_missing(self, piece: int) -> bool:
        """Whether the piece is not held yet."""
        return bool(self._missing[piece])

    @property
    def complete(self) -> bool:
        """Whether every piece is held."""
        return self._left == 0

    def all_asked(self) -> bool:
        """True when every missing piece has a request out: the endgame."""
        return not self._wanted.any()

    def nowhere(self) -> list[int]:
        """The missing pieces that no source offers."""
        return [int(piece) for piece in np.flatnonzero(self._missing & (self._order < self._pieces))]

    def choose(self, source: int, count: int, *, also_common: bool) -> list[int]:
        """Up to ``count`` pieces to ask ``source`` for, in order of asking.

        ``also_common`` lets a full source be asked for pieces that usable partial sources offer too.
        """
        candidates = self._wanted & self._offers[source]
        if self._full[source] and not also_common:
            candidates &= self._partial == 0
        found = np.flatnonzero(candidates)
        if len(found) == 0:
            return []
        order = self._order[found]
        if len(found) > count:
            nearest = np.argpartition(order, count - 1)[:count]
            found, order = found[nearest], order[nearest]
        return [int(piece) for piece in found[np.argsort(order)]]
