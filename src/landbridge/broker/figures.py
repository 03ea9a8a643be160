"""Figures that a gateway in the process of a terminal adds to the terminal's metrics."""

from __future__ import annotations

from typing import NamedTuple


class GatewayFigure(NamedTuple):
    """One sample. Those of a name have the same help and labels."""

    name: str
    help: str
    labels: dict[str, str]
    value: float
    #: It only ever grows.
    counts: bool = True
