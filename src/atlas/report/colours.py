"""The one place for colours: palette slots, who has which slot, and tones with a meaning.

A slot is a number; pictures on white paper take its light colour, pages also its dark one. Tasks
have the same slot everywhere, and a cluster that of the task most of its clients have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SLOTS = (
    ("#075dbd", "#4fb3f2"),
    ("#c35b0f", "#ff9655"),
    ("#02683a", "#3ccfa4"),
    ("#9b0d71", "#f08cc4"),
    ("#604d06", "#ecc04a"),
    ("#018ba4", "#8fdcf0"),
    ("#4b3fa3", "#a99cff"),
    ("#3d4654", "#c3cbd6"),
    ("#8c1d40", "#f0758f"),
    ("#5d6b12", "#c9d766"),
)
"""On light and on dark ground. Hues after Okabe and Ito, darkened until they can be read as text on
white; neighbours differ in lightness too, so that the first six can be told apart without red,
green or blue cones (tests/report/test_colours.py)."""
PALETTE = tuple(light for light, _ in SLOTS)
ALONE, FEDERATED, MAJORITY, CEILING = "#6b7684", PALETTE[0], "#a8541a", "#2f7d4f"
"""Training alone, the run itself, always the commonest answer, all data in one place."""
PHASES = {
    "memorisation": ("#cbd5e1", 7),
    "circuit formation": ("#fde68a", 4),
    "clean-up": ("#bfdbfe", 5),
    "grokking": ("#bbf7d0", 2),
}
"""Of grokking: light grounds for lines on paper, and the slot that pages tint."""


def colour(slot: int) -> str:
    """A slot's colour on white; many share, as more could not be told apart."""
    return PALETTE[slot % len(PALETTE)]


def task_slots(tasks: Iterable[str]) -> dict[str, int]:
    """A slot for every task of a run, by name."""
    return {task: slot for slot, task in enumerate(sorted(set(tasks)))}


def cluster_slots(
    labels: Sequence[int], tasks: Sequence[str], slots: Mapping[str, int]
) -> dict[int, int]:
    """A slot for every cluster: that of its commonest task, unless an earlier cluster has it.

    Args:
        labels: Cluster of each client.
        tasks: Task of each client.
        slots: Of the tasks.
    """
    held: dict[int, Counter[str]] = {}
    for label, task in zip(labels, tasks, strict=True):
        held.setdefault(label, Counter())[task] += 1
    found: dict[int, int] = {}
    free = iter(range(len(slots), len(slots) + len(held) + 1))
    for label in sorted(held):
        common = min(held[label], key=lambda task: (-held[label][task], task))
        wanted = slots.get(common)
        taken = wanted is None or wanted in found.values()
        found[label] = next(free) if taken or wanted is None else wanted
    return found


def css_variables() -> str:
    """The slots as style sheets have them, for light and dark pages and for print."""
    light, dark = (
        " ".join(f"--s{slot}: {pair[side]};" for slot, pair in enumerate(SLOTS)) for side in (0, 1)
    )
    return (
        f":root {{ {light} }}\n"
        f'[data-theme="dark"] {{ {dark} }}\n'
        "@media (prefers-color-scheme: dark) "
        f'{{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media print {{ :root, :root:not([data-theme="light"]) {{ {light} }} }}\n'
    )
