"""In which phase of grokking a series of measurements is.

A model first learns its training answers by heart (memorisation); waves then take shape in its
weights while held-out answers stay wrong (circuit formation); the waves take over and what was
learned by heart goes (clean-up); in the end it knows the rule (grokking).

A phase is entered where its thresholds are met at several points running, and left only where
they are missed by a margin as often: one point decides nothing, and noise about a threshold does
not flicker. Training accuracy takes no part, so that train and test may rise together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST = "memorisation"


@dataclass(frozen=True)
class Phase:
    """A phase and what it takes.

    Attributes:
        name: In words.
        fourier: The least Fourier concentration (per-neuron share).
        accuracy: The least accuracy on held-out pairs.
    """

    name: str
    fourier: float
    accuracy: float

    def met(self, fourier: float, accuracy: float, margin: float = 0.0) -> bool:
        """Whether a point is in it, or not further out than the margin."""
        return fourier >= self.fourier - margin and accuracy >= self.accuracy - margin


PHASES = (
    Phase(FIRST, 0.0, 0.0),
    Phase("circuit formation", 0.3, 0.0),
    Phase("clean-up", 0.6, 0.7),
    Phase("grokking", 0.8, 0.9),
)
"""In their order; each takes what the one before takes, and more."""
HOLD = 3
"""Points running that it takes to enter a phase or to leave it."""
MARGIN = 0.05
"""By how much a phase must be missed to be left."""


@dataclass(frozen=True)
class PhaseStart:
    """Where a phase began: its name, and the step of the first of the points that showed it."""

    name: str
    step: int


def find_phases(
    steps: Sequence[int], fourier: Sequence[float], accuracy: Sequence[float]
) -> list[PhaseStart]:
    """The phases that a series went through, in time; the last one is where it is.

    A series that falls back is told so: the earlier phase then occurs again.

    Args:
        steps: Of the points, rising.
        fourier: Fourier concentration at each.
        accuracy: On held-out pairs at each.

    Raises:
        ValueError: The series are of unequal length.
    """
    if not len(steps) == len(fourier) == len(accuracy):
        raise ValueError("steps, fourier and accuracy must be of equal length")
    found: list[PhaseStart] = []
    current = 0
    for end in range(len(steps)):
        if end == 0:
            found.append(PhaseStart(FIRST, steps[0]))
        start = end - HOLD + 1
        if start < 0:
            continue
        points = list(zip(fourier[start : end + 1], accuracy[start : end + 1], strict=True))
        # The least that all of these points show, and the most that all of them allow.
        shown = min(_highest(f, a) for f, a in points)
        allowed = max(_highest(f, a, MARGIN) for f, a in points)
        moved = max(current, shown) if shown > current else min(current, allowed)
        if moved != current:
            current = moved
            found.append(PhaseStart(PHASES[current].name, steps[start]))
    return found


def first_starts(phases: Sequence[PhaseStart]) -> list[PhaseStart]:
    """Each phase at its first start."""
    seen: dict[str, PhaseStart] = {}
    for phase in phases:
        seen.setdefault(phase.name, phase)
    return list(seen.values())


def _highest(fourier: float, accuracy: float, margin: float = 0.0) -> int:
    """The number of the last phase whose thresholds a point meets; nothing meets no threshold."""
    met = [i for i, phase in enumerate(PHASES) if phase.met(fourier, accuracy, margin)]
    return max(met, default=0)
