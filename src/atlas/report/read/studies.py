"""What tables and pictures of a study share: its rows by arm, and what sets arms apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def rows_by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of every arm, in the order in which they were compared."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row["arm"], []).append(row)
    return arms


def columns_of(row: Row) -> dict[str, object]:
    """What sets an arm apart: its name where it has one, and its compared values but the seed."""
    found: dict[str, object] = row.get("columns") or row["keys"]
    return {key: value for key, value in found.items() if key != "seed"}


def compares_relations(rows: Sequence[Row]) -> bool:
    """Whether who learns from whom is part of what is compared."""
    return any(is_relation(key) for row in rows for key in row["keys"])


def compares_mixtures(rows: Sequence[Row]) -> bool:
    """Whether arms may differ in how well their mixtures fit the ranks they are cut to."""
    keys = {key.partition(".")[0] for row in rows for key in row["keys"]}
    return bool(keys & {"strategy", "ranks", "adapter", "mixing"})


def is_relation(key: str) -> bool:
    """Whether a key is one of `relation`."""
    return key.partition(".")[0] == "relation"


def distance_of(row: Row, end: str) -> float | None:
    """How far apart clients of one cluster were as mixed, in the `first` or the `last` round."""
    found = row.get("distance")
    return None if found is None else float(found[end]["mixed"])


def mean_distance(rows: Sequence[Row], end: str) -> float | None:
    """The mean of `distance_of` over the rows that have one."""
    found = [value for row in rows if (value := distance_of(row, end)) is not None]
    return statistics.fmean(found) if found else None


def swept_keys(rows: Sequence[Row]) -> list[str]:
    """The compared keys whose values are all numbers; the seed is not compared but averaged."""
    # The name of an arm is a column as well; it is no number.
    return [k for k in columns_of(rows[0]) if all(_is_number(columns_of(r)[k]) for r in rows)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
