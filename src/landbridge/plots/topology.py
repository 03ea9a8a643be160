"""A picture of a topology: one self-contained SVG, the same for the same bus.

A band for each region, side by side: its servers in the upper row (solid), its clients below (dashed), near
the servers that they are linked to. A link is the thicker and greener the cheaper it is, dotted when it is
down; a route lies under its links as a band of its own colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

_BOX_WIDTH, _BOX_HEIGHT = 124, 44
_COLUMN, _ROW = 176, 118
_MARGIN, _BAND_TITLE, _BAND_GAP = 36, 60, 24
#: Pixels that a letter of a link's label takes, about.
_LETTER = 6.2
#: Columns of terminals in a line of bands; a band that is wider has a line of its own.
_MOST_COLUMNS = 7
#: Pixels that the explanation of the colours takes.
_KEY_WIDTH = 5 * 100
#: Up to so many ms a link has this colour; dearer ones the last.
_COLOURS = (
    (20.0, "#1a9850"),
    (60.0, "#66a61e"),
    (150.0, "#d9a404"),
    (400.0, "#e6701b"),
    (float("inf"), "#c62f2f"),
)
_DOWN = "#9aa3ad"
#: Where on its link a label may be, the best place first.
_SHARES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82)
_ROUTES = ("#2f6fde", "#8e44c9", "#0f9aa8")
_STYLE = """
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
  .region { font-size: 12px; font-weight: 600; letter-spacing: .08em; fill: #6b7785; paint-order: stroke;
    stroke: #f5f7fa; stroke-width: 6px; }
  .name { font-weight: 600; text-anchor: middle; }
  .note { font-size: 11px; fill: #6b7785; text-anchor: middle; }
  .cost { font-size: 11px; text-anchor: middle; }
  .key { font-size: 11px; fill: #6b7785; }
"""


class TopologyNode(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal in the picture."""

    id: str
    name: str
    mode: Literal["server", "client"]
    region: str = ""
    up: bool = True
    draining: bool = False


class TopologyLink(msgspec.Struct, frozen=True):
    """A link between two terminals, by their ids."""

    here: str
    there: str
    cost: float | None  #: ms; None: it is down


class _Place(NamedTuple):
    x: float
    y: float


def svg(
    nodes: Sequence[TopologyNode],
    links: Iterable[TopologyLink],
    routes: Iterable[Sequence[str]] = (),
    *,
    in_page: bool = False,
) -> str:
    """``routes``: paths as ids, the source first. What belongs to terminals that aren't there is left out.
    ``in_page``: for a page of HTML, whose style sheet has the letters and the colours."""
    bands = _bands(nodes)
    known = {node.id for node in nodes}
    drawn = sorted(
        (link for link in links if {link.here, link.there} <= known and link.here != link.there),
        key=lambda link: (link.here, link.there),
    )
    places, frames, titles, width, height = _layout(_rows(bands, drawn))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 34}" '
        f'viewBox="0 0 {width} {height + 34}" class="topology" role="img" '
        f'aria-label="terminals and their links">',
        *([] if in_page else [f"<style>{_STYLE}</style>"]),
        f'<rect class="sheet" width="{width}" height="{height + 34}" fill="#fff"/>',
        *frames,
    ]
    for number, route in enumerate(routes):
        if set(route) <= known:
            parts += _route(route, places, _ROUTES[number % len(_ROUTES)])
    parts += [_line(link, places) for link in drawn]
    parts += [_box(node, places[node.id]) for band in bands.values() for node in band]
    parts += titles  # over the links that swing above the rows
    parts += _labels(drawn, places)
    parts += [_key(height + 16), "</svg>"]
    return "\n".join(parts) + "\n"


# -- the layout --------------------------------------------------------------------------------------


def _bands(nodes: Sequence[TopologyNode]) -> dict[str, list[TopologyNode]]:
    bands: dict[str, list[TopologyNode]] = {}
    for node in sorted(nodes, key=lambda node: (node.region, node.name, node.id)):
        bands.setdefault(node.region, []).append(node)
    return bands


def _rows(
    bands: Mapping[str, list[TopologyNode]], links: Sequence[TopologyLink]
) -> dict[str, tuple[list[TopologyNode], list[TopologyNode]]]:
    """Region → its servers and its clients, each from left to right; one of them may be empty."""
    rows: dict[str, tuple[list[TopologyNode], list[TopologyNode]]] = {}
    for region, band in bands.items():
        servers = [node for node in band if node.mode == "server"]
        columns = {node.id: column for column, node in enumerate(servers)}

        def middle(client: TopologyNode, columns: Mapping[str, int] = columns) -> float:
            ends = [
                end
                for link in links
                for end in (link.here, link.there)
                if client.id in (link.here, link.there)
            ]
            found = [columns[end] for end in ends if end in columns]
            return sum(found) / len(found) if found else len(columns)

        clients = [node for node in band if node.mode == "client"]
        rows[region] = servers, sorted(clients, key=lambda each: (middle(each), each.name, each.id))
    return rows


def _lines(rows: Mapping[str, tuple[list[TopologyNode], list[TopologyNode]]]) -> list[list[str]]:
    """The regions that stand side by side, line by line."""
    lines: list[list[str]] = []
    taken = _MOST_COLUMNS
    for region, both in rows.items():
        columns = max(map(len, both))
        if taken + columns > _MOST_COLUMNS:
            lines.append([])
            taken = 0
        lines[-1].append(region)
        taken += columns
    return lines


def _layout(
    rows: Mapping[str, tuple[list[TopologyNode], list[TopologyNode]]],
) -> tuple[dict[str, _Place], list[str], list[str], int, int]:
    """Where each terminal stands, the frames of the bands and their titles, width and height."""
    places: dict[str, _Place] = {}
    frames: list[str] = []
    titles: list[str] = []
    y, width = _MARGIN, _KEY_WIDTH + 2 * _MARGIN
    for line in _lines(rows):
        filled = {region: [row for row in rows[region] if row] for region in line}
        depth = max(len(each) for each in filled.values())
        height = _BAND_TITLE + (depth - 1) * _ROW + _BOX_HEIGHT + 26
        x = _MARGIN // 2
        for region in line:
            broad = max(map(len, filled[region])) * _COLUMN
            frames.append(
                f'<rect class="band" x="{x}" y="{y}" width="{broad}" height="{height}" rx="14" '
                f'fill="#f5f7fa" stroke="#e1e6ec"/>'
            )
            titles.append(
                f'<text class="region" x="{x + 16}" y="{y + 22}">{escape(region or "no region")}</text>'
            )
            for place, row in enumerate(filled[region]):
                left = x + (broad - len(row) * _COLUMN) / 2 + _COLUMN / 2
                for column, node in enumerate(row):
                    places[node.id] = _Place(
                        left + column * _COLUMN, y + _BAND_TITLE + _BOX_HEIGHT / 2 + place * _ROW
                    )
            x += broad + _BAND_GAP
        width = max(width, x - _BAND_GAP + _MARGIN // 2)
        y += height + _BAND_GAP
    return places, frames, titles, width, y


def _bend(here: _Place, there: _Place) -> _Place:
    """The control point of the curve between two: links along a row swing above it, so that they don't cross
    the boxes between; others swing aside a little, so that two of them rarely coincide."""
    span = abs(here.x - there.x)
    if here.y == there.y:
        swing = 0 if span <= _COLUMN + _BAND_GAP else min(60 + span / 8, 150)
        return _Place((here.x + there.x) / 2, here.y - swing)
    aside = 26 if span < 1 and abs(here.y - there.y) > 1.5 * _ROW else 0
    return _Place((here.x + there.x) / 2 + 2 * aside, (here.y + there.y) / 2)


def _curve(here: _Place, there: _Place) -> str:
    by = _bend(here, there)
    return f"M {here.x:g} {here.y:g} Q {by.x:g} {by.y:g} {there.x:g} {there.y:g}"


# -- the parts ---------------------------------------------------------------------------------------


def _colour(cost: float) -> str:
    return next(colour for most, colour in _COLOURS if cost <= most)


def _ends(link: TopologyLink, places: Mapping[str, _Place]) -> tuple[_Place, _Place]:
    """Left to right, so that a link looks the same whichever end named it."""
    here, there = sorted((places[link.here], places[link.there]))
    return here, there


def _line(link: TopologyLink, places: Mapping[str, _Place]) -> str:
    curve = _curve(*_ends(link, places))
    if link.cost is None:
        return f'<path d="{curve}" fill="none" stroke="{_DOWN}" stroke-width="1.5" stroke-dasharray="2 5"/>'
    width = 3.0 if link.cost <= 60 else 2.2 if link.cost <= 150 else 1.6
    return f'<path d="{curve}" fill="none" stroke="{_colour(link.cost)}" stroke-width="{width:g}"/>'


def _labels(links: Sequence[TopologyLink], places: Mapping[str, _Place]) -> list[str]:
    """One on each link, where it is on no terminal and on no other label, if there is such a place."""
    taken = [(place, _BOX_WIDTH / 2 + 24, _BOX_HEIGHT / 2 + 8) for place in places.values()]
    labels: list[str] = []
    for link in links:
        spots = [_along(*_ends(link, places), share) for share in _SHARES]
        free = [
            spot
            for spot in spots
            if not any(abs(spot.x - x) < wide and abs(spot.y - y) < high for (x, y), wide, high in taken)
        ]
        spot = (free or spots)[0]
        taken.append((spot, 46, 15))
        if link.cost is None:
            words = "down"
        else:
            words = f"{link.cost:.1f} ms" if link.cost < 10 else f"{link.cost:.0f} ms"
        wide = _LETTER * len(words) + 8
        labels.append(
            f'<rect class="plate" x="{spot.x - wide / 2:g}" y="{spot.y - 8:g}" width="{wide:g}" height="16" '
            f'rx="8" fill="#fff" stroke="#e1e6ec"/>'
            f'<text class="cost" x="{spot.x:g}" y="{spot.y + 4:g}">{words}</text>'
        )
    return labels


def _along(here: _Place, there: _Place, share: float) -> _Place:
    """The point of the curve that lies at this share of it."""
    by, rest = _bend(here, there), 1 - share
    x, y = (
        rest * rest * p + 2 * rest * share * q + share * share * r
        for p, q, r in zip(here, by, there, strict=True)
    )
    return _Place(round(x, 1), round(y, 1))


def _route(route: Sequence[str], places: Mapping[str, _Place], colour: str) -> list[str]:
    return [
        f'<path d="{_curve(*sorted((places[here], places[there])))}" fill="none" stroke="{colour}" '
        f'stroke-width="11" stroke-linecap="round" opacity="0.28"/>'
        for here, there in pairwise(route)
    ]


def _box(node: TopologyNode, place: _Place) -> str:
    notes = [node.mode, *(["draining"] if node.draining else []), *([] if node.up else ["down"])]
    dash = ' stroke-dasharray="6 4"' if node.mode == "client" else ""
    stroke = "#3e4c59" if node.up else _DOWN
    fill = "#fff" if node.up and not node.draining else "#eceff3"
    state = "" if node.up and not node.draining else " off"
    name = node.name if len(node.name) <= 15 else f"{node.name[:14]}…"
    return (
        f"<g><title>{escape(node.name)} ({escape(node.id)})</title>"
        f'<rect class="box{state}" x="{place.x - _BOX_WIDTH / 2:g}" y="{place.y - _BOX_HEIGHT / 2:g}" '
        f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="9" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="1.6"{dash}/>'
        f'<text class="name" x="{place.x:g}" y="{place.y - 1:g}">{escape(name)}</text>'
        f'<text class="note" x="{place.x:g}" y="{place.y + 14:g}">{" · ".join(notes)}</text></g>'
    )


def _key(y: float) -> str:
    """What the colours mean."""
    parts, x, least = [], float(_MARGIN), 0.0
    for most, colour in _COLOURS:
        words = f"{least:g}–{most:g} ms" if most != float("inf") else f"> {least:g}"
        parts.append(
            f'<path d="M {x:g} {y} h 16" stroke="{colour}" stroke-width="3"/>'
            f'<text class="key" x="{x + 20:g}" y="{y + 4}">{words}</text>'
        )
        x, least = x + 100, most
    return "".join(parts)
