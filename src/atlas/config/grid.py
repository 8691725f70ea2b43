"""What is compared: ``key=a,b,c`` is one run with each value, an arm a bundle of settings."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atlas.config.messages import show
from atlas.config.reading import parse_override
from atlas.errors import InputError

Combination = dict[str, str]
"""Value texts by key, in the order the keys were given."""
ARM = "arm"
"""The column that holds the names of arms."""
_LABEL = re.compile(r"[A-Za-z0-9 _-]{1,40}")


@dataclass(frozen=True)
class Arm:
    """A bundle of settings that is compared as one; without a label they are its name."""

    name: str
    settings: Combination


@dataclass(frozen=True)
class Case:
    """One run of a study.

    Attributes:
        overrides: All its settings as texts; later ones win.
        keys: Those of them that are compared.
        columns: What sets it apart from others of its seed: the name of its arm, where there are
            arms, and its values of the keys with several values.
    """

    overrides: tuple[str, ...]
    keys: Combination
    columns: Combination

    @property
    def name(self) -> str:
        """What is compared, whatever the seed."""
        words = [text if key == ARM else f"{key}={text}" for key, text in self.columns.items()]
        return " ".join(words) or "all"


def split_values(text: str) -> list[str]:
    """The values of ``a,b,c``; commas inside brackets, braces and quotes do not split."""
    return [value.strip() for value in _split(text, ",")]


def _split(text: str, separators: str) -> list[str]:
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
        if letter in separators and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return values


def expand(overrides: Sequence[str]) -> tuple[list[str], list[Combination]]:
    """Split overrides into those that stay fixed and all combinations of the others.

    Args:
        overrides: Texts such as ``strategy=local,fedavg`` and ``rounds=3``.

    Returns:
        The fixed overrides, and one mapping per combination.

    Raises:
        InputError: A key is given twice, a value is empty, or nothing is compared.
    """
    fixed, axes = _read_axes(overrides)
    if not axes:
        raise InputError("nothing to compare: give a key several values, such as seed=0,1,2")
    return fixed, _product(axes)


def _read_axes(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
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
    return fixed, axes


def _product(axes: dict[str, list[str]]) -> list[Combination]:
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def read_arm(text: str) -> Arm:
    """One arm, such as ``strategy=atlas relation.eta=0`` or ``control: relation.eta=0``.

    Args:
        text: Settings with spaces between them, after a label and a colon if it has one. With a
            label there may be none: such an arm is what the common settings make.

    Returns:
        The arm.

    Raises:
        InputError: The label has other characters, or a key is given twice or with several values.
    """
    here = f"--arm {show(text)}"
    # A label has no equals sign, so that a colon inside a value does not make one.
    head, colon, rest = f"{text.strip()} ".partition(": ")
    label = head if colon and "=" not in head else None
    if label is not None and not (label.strip() and _LABEL.fullmatch(label)):
        raise InputError(f"{here}: allowed as label: 1 to 40 letters, digits, spaces, - or _")
    settings: Combination = {}
    for part in filter(None, _split(text if label is None else rest, string.whitespace)):
        key = ".".join(parse_override(part)[0])
        value = part.partition("=")[2]
        if key in settings:
            raise InputError(f"{here}: {key} is given twice")
        if key == "seed":
            raise InputError(f"{here}: arms are paired by seed; give all of them seed=0,1,2")
        if len(split_values(value)) > 1:
            raise InputError(f"{here}: {key} has several values; give each an arm of its own")
        settings[key] = value
    if label is None and not settings:
        raise InputError(f"{here}: expected key=value, for example strategy=atlas relation.eta=0")
    return Arm(label or " ".join(f"{key}={value}" for key, value in settings.items()), settings)


def _read_arms(texts: Sequence[str]) -> list[Arm]:
    arms: list[Arm] = []
    for text in texts:
        arm = read_arm(text)
        for other in arms:
            if arm.name == other.name or arm.settings == other.settings:
                what = "label" if arm.settings != other.settings else "settings"
                raise InputError(f"--arm {show(text)}: the same {what} as {show(other.name)}")
        arms.append(arm)
    return arms


def lay_out(overrides: Sequence[str], arms: Sequence[str] = ()) -> list[Case]:
    """Every run of a study, arm by arm; each arm is run with all combinations of comma values.

    Args:
        overrides: Texts such as ``seed=0,1,2`` and ``rounds=3``.
        arms: Texts as `read_arm` takes them. Where an arm and an override set the same key, the
            arm wins.

    Returns:
        The runs, those of the first arm first.

    Raises:
        InputError: As `expand` and `read_arm`, two arms are alike, or one overlaps with a value.
    """
    if not arms:
        fixed, points = expand(overrides)
        return [Case((*fixed, *_texts(point)), point, _but_seed(point)) for point in points]
    fixed, axes = _read_axes(overrides)
    bundles = _read_arms(arms)
    for arm in bundles:
        _refuse_overlap(arm, axes)
    cases = [_case(fixed, point, arm) for arm in bundles for point in _product(axes)]
    # An arm that sets a compared key itself is the same run for all its values.
    distinct = {(case.name, *case.keys.items()): case for case in cases}
    if len(distinct) == 1:
        raise InputError("nothing to compare: give a second --arm, or several seeds: seed=0,1,2")
    return list(distinct.values())


def _refuse_overlap(arm: Arm, axes: Iterable[str]) -> None:
    """A block and a part of it cannot both be compared: rows would name values that do not hold."""
    for key, axis in itertools.product(arm.settings, axes):
        if key.startswith(f"{axis}.") or axis.startswith(f"{key}."):
            raise InputError(
                f"--arm {show(arm.name)}: {key} overlaps with {axis}, compared as well"
            )


def _case(fixed: Sequence[str], point: Combination, arm: Arm) -> Case:
    others = {key: value for key, value in point.items() if key not in arm.settings}
    keys = {**arm.settings, **others}
    columns = {ARM: arm.name, **{key: keys[key] for key in _but_seed(point)}}
    # The arm comes last, since it wins.
    return Case((*fixed, *_texts(others), *_texts(arm.settings)), keys, columns)


def _texts(settings: Combination) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _but_seed(settings: Combination) -> Combination:
    return {key: value for key, value in settings.items() if key != "seed"}
