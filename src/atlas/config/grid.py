"""Comma values: ``key=a,b,c`` stands for one run with each value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from atlas.errors import InputError

Combination = dict[str, str]
"""Value texts by key, in the order the keys were given."""


def split_values(text: str) -> list[str]:
    """The values of ``a,b,c``; commas inside brackets, braces and quotes do not split."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def expand(overrides: Sequence[str]) -> tuple[list[str], list[Combination]]:
    """Split overrides into those that stay fixed and all combinations of the others.

    Args:
        overrides: Texts such as ``strategy=local,fedavg`` and ``rounds=3``.

    Returns:
        The fixed overrides, and one mapping per combination.

    Raises:
        InputError: A key is given twice, a value is empty, or nothing is compared.
    """
    fixed, axes = [], {}
    for text in overrides:
        key, sign, value = text.partition("=")
        values = split_values(value)
        if not sign or len(values) == 1:
            fixed.append(text)
            continue
        if "" in values or len(set(values)) < len(values):
            raise InputError(f"{text}: every value must be given, and given once")
        if key in axes:
            raise InputError(f"{key}: compared twice; give all its values in one list")
        axes[key] = values
    if not axes:
        raise InputError("nothing to compare: give a key several values, such as seed=0,1,2")
    return fixed, [
        dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())
    ]
