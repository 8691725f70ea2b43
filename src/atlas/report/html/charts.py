"""What charts are made of, as plain values; `assets/` draws them.

A colour is a slot of the palette (a number) or a tone of the style sheet (`alone`, `majority`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]
Colour = int | str
ROUND: Spec = {"label": "round", "integer": True, "format": "integer"}
STEP: Spec = {"label": "step", "format": "integer"}
SCORE: Spec = {"label": "score, %", "format": "score", "span": 4, "max": 100}
"""Of scores: never so near that a tenth of a point fills the picture."""
SHARE: Spec = {"format": "share", "min": 0, "max": 1, "zero": True}
MOST_POINTS = 400
"""Of one line; of more, evenly spaced ones are kept."""
MOST_LINES = 40
"""Clients that have a line each; of more, the band tells."""
MOST_CELLS = 60_000
"""Of all heatmaps behind one slider."""
MOST_ROWS = 200
"""Names beside one chart."""


@dataclass(frozen=True)
class Section:
    """One thing to see: what it shows, what to look for, its charts and tables.

    Attributes:
        id: Its place in the page; letters, digits and hyphens.
        chapter: What it stands under in the contents.
        title: A few words.
        sentence: What it shows.
        look: What to look for.
        charts: See the functions below.
        tables: {title, columns: [{name, format}], rows, strong}.
        note: What else to know.
        texts: {title, text, open}: settings and the like.
    """

    id: str
    chapter: str
    title: str
    sentence: str
    look: str = ""
    charts: Sequence[Spec] = ()
    tables: Sequence[Spec] = ()
    note: str = ""
    texts: Sequence[Spec] = field(default_factory=tuple)


def line(points: Mapping[int, float | None], name: str, colour: Colour, **more: object) -> Spec:
    """One line; `points` by round or step."""
    places = thin(sorted(points))
    return {"name": name, "colour": colour, "x": places, "y": [points[p] for p in places], **more}


def band(rounds: Mapping[int, Sequence[float]], name: str, colour: Colour, **more: object) -> Spec:
    """A line of means with all it is the mean of as a band, where there is more than one."""
    places = thin(sorted(rounds))
    spec = line({p: statistics.fmean(rounds[p]) for p in places}, name, colour, **more)
    if any(len(rounds[p]) > 1 for p in places):
        spec |= {"low": [min(rounds[p]) for p in places], "high": [max(rounds[p]) for p in places]}
    return spec


def lines(series: Iterable[Spec], x: Spec, y: Spec, **more: object) -> Spec:
    """A chart of lines."""
    return {"type": "line", "series": list(series), "x": x, "y": y, **more}


def dots(rows: Sequence[str], series: Iterable[Spec], x: Spec, **more: object) -> Spec:
    """A row for each name, with a mark for each series: {name, colour, values, low, high}."""
    return {"type": "dots", "rows": list(rows), "series": list(series), "x": x, **more}


def bars(categories: Sequence[Any], series: Iterable[Spec], x: Spec, y: Spec) -> Spec:
    """Stacked bars."""
    return {"type": "bars", "categories": list(categories), "series": list(series), "x": x, "y": y}


def scatter(points: Iterable[Spec], x: Spec, y: Spec, **more: object) -> Spec:
    """Points {x, y, name, colour, shape, group, lines}."""
    return {"type": "scatter", "points": list(points), "x": x, "y": y, **more}


def heatmap(
    rows: Sequence[str], columns: Sequence[Any], frames: Sequence[Spec], **more: object
) -> Spec:
    """Cells coloured by their value; several frames {name, values} have a slider.

    The scale goes from the least to the most of all frames unless `low` and `high` are given.
    """
    each = max(1, len(rows) * len(columns))
    kept = thin(list(range(len(frames))), max(2, MOST_CELLS // each))
    shown = [frames[place] for place in kept]
    values = [v for frame in shown for row in frame["values"] for v in row if number(v) is not None]
    spec: Spec = {
        "type": "heatmap",
        "rows": list(rows),
        "columns": list(columns),
        "frames": shown,
        "low": min(values, default=0.0),
        "high": max(values, default=1.0),
        **more,
    }
    return spec


def table(columns: Mapping[str, str], rows: Sequence[Sequence[Any]], **more: object) -> Spec:
    """A table; `columns` are names with the format of their values."""
    heads = [{"name": name, "format": how} for name, how in columns.items()]
    return {"columns": heads, "rows": [list(row) for row in rows], **more}


def tagged(text: str, colour: Colour) -> Spec:
    """A cell with a dot of a colour."""
    return {"text": text, "colour": colour}


def tile(label: str, value: float, how: str, note: str = "", tone: str = "") -> Spec:
    """One large figure: what it is, its value, and a few words below."""
    return {"label": label, "value": value, "format": how, "note": note, "tone": tone}


def level(value: float, name: str, colour: Colour, **more: object) -> Spec:
    """A line across a chart at one value."""
    return {"value": value, "name": name, "colour": colour, **more}


def thin(places: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """Evenly spaced ones of many, the first and the last among them."""
    if len(places) <= most:
        return list(places)
    step = (len(places) - 1) / (most - 1)
    return [places[round(n * step)] for n in range(most)]


def number(value: object) -> float | None:
    """A finite number as it is, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def percent(value: object) -> float | None:
    """A share in percent; None where there is none."""
    found = number(value)
    return None if found is None else 100 * found
