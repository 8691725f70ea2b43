"""What studies of every kind of run share: values of compared keys, paired tests, lines of a file.

A row is one run of one arm; rows of an arm are its seeds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from atlas.config.grid import Combination
from atlas.config.reading import parse_override
from atlas.ops.metrics import paired_comparison

Row = dict[str, Any]


def values_of(texts: Combination) -> dict[str, Any]:
    """Compared keys with their values as settings files would hold them."""
    return {key: parse_override(f"{key}={text}")[1] for key, text in texts.items()}


def against_first(means: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Every arm against the first, paired seed by seed."""
    first, *others = means
    return [
        {"first": first, "second": name, "seeds": len(means[name])}
        | paired_comparison(means[first], means[name])
        for name in others
    ]


def csv_text(rows: Sequence[Row], figures: Sequence[str]) -> str:
    """`compare.csv`: what was compared, then the figures named, a line for each row."""
    text = io.StringIO()
    # Arms need not have the same keys.
    keys = list(dict.fromkeys(key for row in rows for key in row["keys"]))
    names = ["arm"] if "columns" in rows[0] else []
    writer = csv.DictWriter(
        text, [*names, *keys, *figures], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({**row, **row["keys"]} for row in rows)
    return text.getvalue()
