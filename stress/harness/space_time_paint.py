"""Draws a space-time picture: peers across, time downward, messages from line to line.

The rule: all is drawn in points, and everything of one kind is one path, without what would cover the same points
again; so thousands of messages stay a page that a browser opens at once.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from stress.harness.space_time_picture import (
    BARS,
    FAILURE,
    INK,
    LINES,
    MARKS,
    PHASE,
    RED,
    SIDES,
    Bar,
    Look,
    Mark,
    Note,
    Picture,
)
from stress.harness.time_axis import TimeAxis, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.path import Path

_Points: TypeAlias = Sequence[tuple[float, float]]

_SOFT: Final = "#868e96"
_FAINT: Final = "#e9ecef"
_WIDTH: Final = 648.0
"""Points of the whole, as the report's other figures."""
_LEFT: Final = 56.0
_MARGIN: Final = 6.0
"""Between the axis and the columns."""
_NOTES: Final = 196.0
_TOP: Final = 30.0
_MAX_ROOM: Final = 860.0
"""The height of what is between head and legend, at most."""
_GRID: Final = 0.75
"""Points within which two things of a kind are one."""
_TEXT: Final = 8.0
_LINE: Final = 11.0
_LETTER: Final = 5.0
"""Points that a letter takes, on average."""
_LETTERS: Final = 37
"""Of a note's line."""
_FAILURE_LINES: Final = 6
_NOTE_WEIGHT: Final = 6
_HEAD: Final = 2.6
_MANY: Final = 700
"""Lines beyond which messages have no heads, and fade."""


def paint(canvas: Canvas, picture: Picture) -> None:
    """Draw the picture; it takes the canvas' whole area and decides its height."""
    times = picture.times()
    canvas.set_layout_engine("none")
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.axis("off")
    height = 60.0
    if times and picture.hosts:
        # a note needs a line of its own, whatever else happens there
        weighted = times + [note.time for note in picture.notes for _ in range(_NOTE_WEIGHT)]
        room = min(_MAX_ROOM, 300.0 + _LINE * len(picture.notes) + 0.4 * len(times) ** 0.85)
        height = _Painter(axes, picture, time_axis(weighted, room), room).paint()
    else:
        axes.text(_WIDTH / 2, height / 2, "nothing was recorded", ha="center", va="center", color=_SOFT)
    axes.set_xlim(0, _WIDTH)
    height = math.ceil(height)  # whole, so that what is rounded stays short when it is turned upside down
    axes.set_ylim(height, 0)
    canvas.set_size_inches(_WIDTH / 72, height / 72)


class _Painter:
    """One painting. Paths are gathered by look, so that each becomes one element."""

    def __init__(self, axes: Axes, picture: Picture, axis: TimeAxis, room: float) -> None:
        self._axes = axes
        self._picture = picture
        self._axis = axis
        self._end = _TOP + room
        self._right = _WIDTH - _NOTES
        self._pitch = (self._right - _LEFT - _MARGIN) / len(picture.hosts)
        self._columns = {
            host: _LEFT + _MARGIN + (index + 0.5) * self._pitch for index, host in enumerate(picture.hosts)
        }
        self._shown: dict[str, Look] = {}

    def _y(self, time: float) -> float:
        return _TOP + self._axis.position(time)

    def paint(self) -> float:
        """From the back to the front; returns the height of the whole."""
        self._time()
        self._cuts()
        self._hosts()
        self._bars()
        self._messages()
        self._marks()
        self._notes()
        return self._legend()

    # ---- the frame

    def _time(self) -> None:
        grid, breaks = [], []
        for at, label in self._axis.ticks(2 * _LINE):
            grid.append([(_LEFT - 4, _TOP + at), (self._right, _TOP + at)])
            self._text(_LEFT - 7, _TOP + at, label, ha="right", va="center", color="#495057")
        self._stroke(grid, _FAINT, 0.5)
        self._text(_LEFT - 7, _TOP - 18, "virtual s", ha="right", va="center", color=_SOFT)
        line = []
        for span in self._axis.spans:
            top, bottom = _TOP + span.top, _TOP + span.bottom
            line.append([(_LEFT - 2.5, bottom), (_LEFT + 2.5, bottom)])
            if span.quiet and bottom - top >= 8:
                middle = (top + bottom) / 2
                zigzag = [(_LEFT + side, middle + rise) for side, rise in ((0, -4), (-3, -2), (3, 2), (0, 4))]
                breaks.append([(_LEFT, top), *zigzag, (_LEFT, bottom)])
            else:
                line.append([(_LEFT, top), (_LEFT, bottom)])
        self._stroke([*line, *breaks], _SOFT, 0.8)

    def _hosts(self) -> None:
        few = max(map(len, self._columns)) * _LETTER <= self._pitch
        every = 1 if few else math.ceil(11 / self._pitch)
        letters = max(int(self._pitch * every / _LETTER), 2)
        for index, (host, x) in enumerate(self._columns.items()):
            if index % every == 0:
                label = host if few else host.removeprefix("peer-")
                label = label if len(label) <= letters else f"{label[: letters - 1]}…"
                colour = RED if host == self._picture.failed else INK
                self._text(x, _TOP - 10, label, ha="center", va="center", color=colour)
        gaps: dict[str, list[Bar]] = {host: [] for host in self._columns}
        for bar in self._picture.bars:
            if bar.kind == "down" and bar.host in gaps:
                gaps[bar.host].append(bar)
        up, down = [], []
        for host, x in self._columns.items():
            at = _TOP
            for gap in sorted(gaps[host], key=lambda bar: bar.begin):
                up.append([(x, at), (x, self._y(gap.begin))])
                at = self._y(gap.end)
                down.append([(x, self._y(gap.begin)), (x, at)])
            up.append([(x, at), (x, self._end)])
        self._stroke(up, "#adb5bd", 1.0)
        self._stroke(down, "#ced4da", 1.0, dashes=(2.5, 3.0))

    # ---- what lasts

    def _cuts(self) -> None:
        width = min(self._pitch, 64.0)
        for cut in self._picture.cuts:
            top, bottom = self._y(cut.begin), max(self._y(cut.end), self._y(cut.begin) + 1.5)
            for side, colour, letter in zip((cut.a, cut.b), SIDES, "ab", strict=True):
                boxes = [_box(self._columns[host], top, bottom, width) for host in side if host in self._columns]
                self._fill(boxes, colour, alpha=0.14)
                self._shown[f"cut {letter}"] = Look(colour, f"partition, side {letter}")

    def _bars(self) -> None:
        for place, (kind, look) in enumerate(BARS.items()):
            boxes = []
            for bar in self._picture.bars:
                if bar.kind == kind and bar.host in self._columns:
                    # the line itself is the process's; what befalls its surroundings stands beside it
                    x = self._columns[bar.host] + (0 if kind == "pause" else min(1.5 + 3 * place, self._pitch / 2.5))
                    top = self._y(bar.begin)
                    boxes.append(_box(x, top, max(self._y(bar.end), top + 1.5), min(look.width, self._pitch / 2)))
            if boxes:
                self._fill(_distinct(boxes), look.colour, alpha=0.75)
                self._shown[kind] = look

    # ---- what travels

    def _messages(self) -> None:
        for kind, look in LINES.items():
            lines = [
                [(self._columns[each.source], self._y(each.sent)), (self._columns[each.target], self._y(each.arrived))]
                for each in self._picture.messages
                if each.late == (kind == "late") and each.source in self._columns and each.target in self._columns
            ]
            distinct = _distinct(lines)
            if not distinct:
                continue
            crowd = len(distinct) > _MANY
            self._stroke(distinct, look.colour, look.width, alpha=0.35 if crowd else 0.6)
            if not crowd:
                self._stroke([_head(*line) for line in distinct], look.colour, look.width, alpha=0.9)
            self._shown[kind] = look

    # ---- what happens at a moment

    def _marks(self) -> None:
        for kind, look in MARKS.items():
            at = [
                (self._columns[mark.host] + self._aside(mark), self._y(mark.time))
                for mark in self._picture.marks
                if mark.kind == kind and mark.host in self._columns
            ]
            if at:
                self._glyphs(kind, [points[0] for points in _distinct([[point] for point in at])])
                self._shown[kind] = look

    def _aside(self, mark: Mark) -> float:
        """How far beside its host's line a mark stands."""
        room = min(5.0, self._pitch / 3)
        if mark.kind == "lost":
            return math.copysign(room, self._columns.get(mark.source, 0.0) - self._columns[mark.host])
        return -room if mark.kind in ("up", "down") else 0.0

    def _glyphs(self, kind: str, at: Iterable[tuple[float, float]]) -> None:
        draw, size = _GLYPHS[kind]
        shapes = [[(x + size * right, y + size * below) for right, below in draw] for x, y in at]
        if kind in ("lost", "crash", "trouble"):
            halves = [half for shape in shapes for half in (shape[:2], shape[2:])]
            self._stroke(halves, MARKS[kind].colour, 0.9 if kind == "lost" else 1.6)
        elif kind in ("piece", "complete"):
            self._stroke(shapes, MARKS[kind].colour, 2 * size, cap="round")
        elif kind in ("restart", "down"):
            self._fill(shapes, "white", edge=MARKS[kind].colour)
        else:
            self._fill(shapes, MARKS[kind].colour)

    # ---- words

    def _notes(self) -> None:
        room = int((self._end - _TOP) / _LINE)
        kept: dict[int, list[str]] = {}
        notes = self._picture.notes
        for index in sorted(range(len(notes)), key=lambda index: -notes[index].rank):  # of a rank, the earlier first
            failure = notes[index].kind == FAILURE
            letters, most = (_LETTERS - 5, _FAILURE_LINES) if failure else (_LETTERS, 2)  # bold ones are wider
            lines = textwrap.wrap(notes[index].text, letters, max_lines=most, placeholder=" …")
            if lines and len(lines) <= room:
                room -= len(lines)
                kept[index] = lines
        shown = sorted(kept, key=lambda index: (notes[index].time, index))
        wanted = [(self._y(notes[index].time) - _TOP, _LINE * len(kept[index])) for index in shown]
        for index, top in zip(shown, _apart(wanted, self._end - _TOP), strict=True):
            self._note(notes[index], kept[index], _TOP + top)

    def _note(self, note: Note, lines: Sequence[str], top: float) -> None:
        at = self._y(note.time)
        colour = RED if note.kind == FAILURE else INK if note.kind == PHASE else _note_colour(note.kind)
        across = note.kind in (FAILURE, PHASE)
        if across:
            dashes = None if note.kind == FAILURE else (4.0, 3.0)
            self._stroke(
                [[(_LEFT, at), (self._right, at)]], colour, 1.4 if note.kind == FAILURE else 0.7, dashes=dashes
            )
        leader = [
            (self._right, at),
            (self._right + 4, at),
            (self._right + 12, top + _LINE / 2),
            (self._right + 15, top + _LINE / 2),
        ]
        self._stroke([leader], colour, 0.6)
        for number, line in enumerate(lines):
            weight = "bold" if across else "normal"
            text = RED if note.kind == FAILURE else INK
            self._text(self._right + 18, top + _LINE * (number + 0.5), line, va="center", color=text, weight=weight)
        if note.kind == FAILURE and self._picture.failed in self._columns:
            self._fill([_box(self._columns[self._picture.failed], at - 3.5, at + 3.5, 7)], RED)

    def _legend(self) -> float:
        x, y = _LEFT, self._end + 16
        for kind, look in self._shown.items():
            width = 16 + _LETTER * len(look.legend) + 8
            if x + width > _WIDTH:
                x, y = _LEFT, y + 13
            if kind in LINES:
                line = [(x, y - 2), (x + 11, y + 2)]
                self._stroke([line, _head(*line)], look.colour, 1.0)
            elif kind in MARKS:
                self._glyphs(kind, [(x + 6, y)])
            else:
                self._fill([_box(x + 6, y - 4, y + 4, 7)], look.colour, alpha=0.75 if kind in BARS else 0.3)
            self._text(x + 15, y, look.legend, va="center", color="#495057")
            x += width
        return y + 10

    # ---- elements

    def _text(self, x: float, y: float, text: str, **style: str) -> None:
        self._axes.text(x, y, text, fontsize=_TEXT, **style)  # type: ignore[arg-type]

    def _stroke(
        self,
        lines: Sequence[_Points],
        colour: str,
        width: float,
        *,
        alpha: float = 1.0,
        dashes: tuple[float, float] | None = None,
        cap: Literal["butt", "round"] = "butt",
    ) -> None:
        from matplotlib.patches import PathPatch

        style = {"linestyle": "solid" if dashes is None else (0, tuple(length / width for length in dashes))}
        patch = PathPatch(
            _path(lines, closed=False), fill=False, edgecolor=colour, linewidth=width, alpha=alpha, **style
        )
        patch.set_capstyle(cap)
        patch.set_joinstyle("round")
        self._axes.add_patch(patch)

    def _fill(self, shapes: Sequence[_Points], colour: str, *, alpha: float = 1.0, edge: str = "none") -> None:
        from matplotlib.patches import PathPatch

        patch = PathPatch(_path(shapes, closed=True), facecolor=colour, edgecolor=edge, linewidth=0.9, alpha=alpha)
        self._axes.add_patch(patch)


def _path(lines: Sequence[_Points], *, closed: bool) -> Path:
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    codes: list[int] = []
    for line in lines:
        points += ((round(x, 1), round(y, 1)) for x, y in line)
        codes += [int(Path.MOVETO), *[int(Path.LINETO)] * (len(line) - 1)]
        if closed:
            points.append(line[0])
            codes.append(int(Path.CLOSEPOLY))
    path = Path(points, codes) if points else Path([(0.0, 0.0)])
    path.should_simplify = False  # separate strokes are no curve
    return path


def _box(middle: float, top: float, bottom: float, width: float) -> _Points:
    left, right = middle - width / 2, middle + width / 2
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _head(start: tuple[float, float], end: tuple[float, float]) -> _Points:
    """The two strokes of an arrow's head."""
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    left, right = (
        (end[0] - _HEAD * math.cos(angle + side), end[1] - _HEAD * math.sin(angle + side)) for side in (-0.45, 0.45)
    )
    return [left, end, right]


def _distinct(shapes: Sequence[_Points]) -> list[_Points]:
    """Those that do not cover an earlier one."""
    return list({tuple((round(x / _GRID), round(y / _GRID)) for x, y in shape): shape for shape in shapes}.values())


def _apart(blocks: Sequence[tuple[float, float]], room: float) -> list[float]:
    """Tops of blocks that want to begin at given places and have given heights, in order, so that none overlap."""
    tops: list[float] = []
    free = 0.0
    for wanted, height in blocks:
        tops.append(max(wanted, free))
        free = tops[-1] + height
    bottom = room
    for index in range(len(blocks) - 1, -1, -1):
        tops[index] = min(tops[index], bottom - blocks[index][1])
        bottom = tops[index]
    return tops


def _note_colour(kind: str) -> str:
    if kind == "partition":
        return SIDES[0]
    look = MARKS.get(kind) or BARS.get(kind)
    return INK if look is None else look.colour


_CROSS: Final = ((-1, -1), (1, 1), (-1, 1), (1, -1))
_GLYPHS: Final[Mapping[str, tuple[_Points, float]]] = {
    "piece": (((0, 0), (0.01, 0)), 1.3),
    "complete": (((0, 0), (0.01, 0)), 3.0),
    "lost": (_CROSS, 1.8),
    "up": (((-1, 0.8), (1, 0.8), (0, -0.9)), 1.9),
    "down": (((-1, -0.8), (1, -0.8), (0, 0.9)), 1.9),
    "crash": (_CROSS, 3.6),
    "restart": (((0, -1), (1, 0), (0, 1), (-1, 0)), 3.0),
    "clock": (((0, -1), (1, 0), (0, 1), (-1, 0)), 3.4),
    "disk": (((-1, -1), (1, -1), (1, 1), (-1, 1)), 2.6),
    "trouble": (_CROSS, 3.0),
}
"""The shape of each kind of mark, and its size."""
