"""Progress of a run on standard error: live bars on a terminal, else one line every ten seconds.

Standard output carries the result alone, so that it can be piped. Time is ``trio.current_time()``; in a simulated run,
which may take an hour for a virtual second or the other way round, lines and bars come by real time all the same, and
tell the virtual one (``by_events``). A fetcher that makes no progress for thirty seconds has the
tail of its trace printed once, which is when a person wants to read it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleet.sim import guard

LINE_SECONDS: Final = 10.0
REFRESH_SECONDS: Final = 0.25
STALL_SECONDS: Final = 30.0
MAX_BARS: Final = 12
"""Bars shown at once; of a larger fleet the slowest fetchers, who decide when the run ends."""
MAX_NAMED: Final = 12
"""Fetchers that a plain line gives one by one; of more it gives the range, and the slowest few by name."""
_SLOWEST_NAMED: Final = 4
EVENTS_PER_LOOK: Final = 256
"""Of a simulated run, between two looks at the real clock: some milliseconds, and cheap beside the events."""
_BAR_WIDTH: Final = 24  # with names, counts and a note about a stall beside it, 80 columns hold a row

Tail = Callable[[str], Sequence[str]]


@dataclass(slots=True)
class _Fetcher:
    done: float
    total: float
    moved_at: float
    told: bool = False

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0

    def count(self) -> str:
        return f"{self.done:,.0f}/{self.total:,.0f}"


class Progress:
    """What the run is doing. Calls are cheap; drawing happens in ``run``, a task of the harness.

    ``tail`` gives the last lines of a peer's trace. ``quiet`` draws nothing at all.
    """

    def __init__(
        self,
        title: str,
        *,
        console: Console | None = None,
        quiet: bool = False,
        line_seconds: float = LINE_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        tail: Tail | None = None,
    ) -> None:
        self._title = title
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._line_seconds = line_seconds
        self._stall_seconds = stall_seconds
        self._tail = tail
        self._phase = "starting"
        self._fetchers: dict[str, _Fetcher] = {}
        self._started: float | None = None
        self._simulated_since: float | None = None
        """By the real clock, in a simulated run."""
        self._seen_at = 0.0

    def phase(self, what: str) -> None:
        """Name what the run does now, such as ``"single-stream baseline"``; it stands in front of the figures."""
        self._phase = what

    def announce(self, what: str) -> None:
        """Name what the run does now in a line of its own, when nothing will draw while it lasts."""
        self._phase = what
        if not self._quiet:
            self.say(f"{self._title}: {what}")

    def track(self, peer: str, total: float) -> None:
        """Show ``peer``, which has ``total`` to do (pieces, say) and nothing done."""
        self._fetchers[peer] = _Fetcher(0, total, trio.current_time())

    def update(self, peer: str, done: float) -> None:
        """``peer`` has done so much in all. An untracked peer is ignored, as one may finish after the display ends."""
        fetcher = self._fetchers.get(peer)
        if fetcher is not None and done != fetcher.done:
            fetcher.done = done
            fetcher.moved_at = trio.current_time()
            fetcher.told = False

    def clear(self) -> None:
        """Forget every peer, as between two phases."""
        self._fetchers.clear()

    def say(self, line: str) -> None:
        """Print one line on standard error at once, above the bars; also when quiet."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def release_terminal(self) -> None:
        """Give the terminal its cursor back, for an exit that does not wait for ``run`` to end."""
        self._console.show_cursor(show=True)

    async def run(self) -> None:
        """Draw until cancelled."""
        self._started = trio.current_time()
        if self._quiet:
            return
        if not self._console.is_terminal:
            while True:
                await trio.sleep(self._line_seconds)
                self.say(self.line())
                self._report_stalls()
        with self._live() as live:
            while True:
                await trio.sleep(REFRESH_SECONDS)
                live.refresh()
                self._report_stalls()

    @contextlib.contextmanager
    def by_events(self) -> Iterator[Callable[[], None]]:
        """Draw during a simulated run: gives a function for the run to call with each of its events.

        No task can do it there, as its clock would be the virtual one. Peers that stall have their trace in
        ``events.jsonl``: on the virtual clock thirty seconds may be over before a person has read the line.
        """
        if self._quiet:
            yield lambda: None
            return
        self._started = 0.0
        self._simulated_since = guard.real_seconds()
        calls = itertools.count(1)
        with self._live() if self._console.is_terminal else contextlib.nullcontext() as live:
            every = self._line_seconds if live is None else REFRESH_SECONDS
            due = self._simulated_since + every

            def tick() -> None:
                nonlocal due
                if next(calls) % EVENTS_PER_LOOK:
                    return
                now = guard.real_seconds()
                if now < due:
                    return
                due = now + every
                if live is None:
                    self.say(self.line())
                else:
                    live.refresh()

            yield tick

    @contextlib.contextmanager
    def _live(self) -> Iterator[Live]:
        # transient: once the run ends its bars make way for the result
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            get_renderable=self.bars,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            yield live

    def line(self) -> str:
        """The state in one plain line, with what each fetcher has done."""
        if not self._fetchers:
            return self._head()
        if len(self._fetchers) <= MAX_NAMED:
            each = ", ".join(f"{name} {fetcher.count()}" for name, fetcher in self._fetchers.items())
            return f"{self._head()}: {each}"
        counts = sorted(fetcher.done for fetcher in self._fetchers.values())
        least, median, most = (f"{count:,.0f}" for count in (counts[0], statistics.median_low(counts), counts[-1]))
        finished = sum(fetcher.share == 1.0 for fetcher in self._fetchers.values())
        head = (
            f"{self._head()}, {finished} of {len(self._fetchers)} finished: least {least}, median {median}, most {most}"
        )
        behind = [(name, fetcher) for name, fetcher in self._slowest_first() if fetcher.share < 1.0]
        named = ", ".join(f"{name} {fetcher.count()}" for name, fetcher in behind[:_SLOWEST_NAMED])
        return f"{head}; slowest {named}" if named else head

    def bars(self) -> RenderableType:
        """The state as bars, for a terminal."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column()
        grid.add_column(justify="right", no_wrap=True)
        shown = {name for name, _ in self._slowest_first()[:MAX_BARS]}
        for name, fetcher in self._fetchers.items():
            if name in shown:
                stalled = self._now() - fetcher.moved_at
                note = f"no progress for {stalled:.0f} s" if fetcher.share < 1.0 and stalled >= 2 else ""
                bar = ProgressBar(total=max(fetcher.total, 1), completed=fetcher.done, width=_BAR_WIDTH)
                grid.add_row(Text(name), bar, Text(fetcher.count()), Text(note, style="yellow"))
        parts: list[RenderableType] = [Text(self._head(), style="bold", overflow="ellipsis", no_wrap=True), grid]
        if hidden := len(self._fetchers) - len(shown):
            parts.append(Text(f"and {hidden} that are as far or further", style="dim"))
        return Group(*parts)

    def _head(self) -> str:
        head = f"{self._title}: {self._elapsed()}, {self._phase}"
        if not self._fetchers:
            return head
        total = sum(fetcher.total for fetcher in self._fetchers.values())
        share = sum(fetcher.share * fetcher.total for fetcher in self._fetchers.values()) / total if total else 1.0
        return f"{head}, {math.floor(100 * share)}% done"  # 100% is said when it is true

    def _elapsed(self) -> str:
        elapsed = self._now() - self._started if self._started is not None else 0.0
        if self._simulated_since is None:
            return f"{elapsed:.0f} s"
        return f"{elapsed:.3f} virtual s in {guard.real_seconds() - self._simulated_since:.0f} s"

    def _now(self) -> float:
        if trio.lowlevel.in_trio_run():  # else bars that appear before a simulated run, or vanish after it
            self._seen_at = trio.current_time()
        return self._seen_at

    def _slowest_first(self) -> list[tuple[str, _Fetcher]]:
        return sorted(self._fetchers.items(), key=lambda item: item[1].share)

    def _report_stalls(self) -> None:
        now = trio.current_time()
        for name, fetcher in self._fetchers.items():
            stalled = now - fetcher.moved_at
            if fetcher.told or fetcher.share == 1.0 or stalled < self._stall_seconds:
                continue
            fetcher.told = True
            lines = self._tail(name) if self._tail is not None else ()
            self.say(f"{name} made no progress for {stalled:.0f} s at {fetcher.count()}; the end of its trace:")
            for line in lines or ["no events"]:
                self.say(f"  {line}")
