"""What a package offers at its front, imported when it is first asked for.

Importing a package so costs nothing, and packages may lean on each other's files in any order.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def exports(
    package: str, where: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: Its full name.
        where: The names it offers, by the module that has them, told from the package on.
    """
    homes = {name: f"{package}.{module}" for module, names in where.items() for name in names}

    def load(name: str) -> Any:  # noqa: ANN401 - whatever the package offers
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return sorted(homes), load, lambda: sorted(homes)
