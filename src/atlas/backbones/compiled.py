"""torch.compile for the part of a block that comes after attention, where a user asks for it.

That part holds most of a block's products and all that lies between them; texts of other lengths
are other sizes of one dimension. Attention stays as it is: it is one kernel already, and adapters
on queries, keys and values hang on its modules, anew at every step.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import Literal

import torch

from atlas.backbones.families import Family
from atlas.errors import InputError

Compiler = Literal["inductor", "aot_eager"]
"""Backends of torch.compile: kernels of its own, or the traced operators one by one."""
PROJECTIONS = ("query", "key", "value")
"""Modules that are not compiled, so that adapters may hang on them."""


def compiled(family: Family, compiler: Compiler) -> Family:
    """The family with the part after attention compiled when it is first called.

    Raises:
        InputError: If its blocks have no such part, or there is no C++ compiler for the kernels.
    """
    if family.parts is None:
        raise InputError(
            f"backbone.compile: {compiler} given, but blocks of {family.name} run as a whole; "
            "allowed: null"
        )
    if compiler == "inductor" and not _found_compiler():
        raise InputError(
            "backbone.compile: inductor needs a C++ compiler (g++ or clang++, or CXX names one); "
            "allowed: aot_eager, null"
        )
    leave = torch.compile(family.parts.leave, dynamic=True, backend=compiler)
    return replace(family, parts=replace(family.parts, leave=leave))


def check_adapted(family: Family, modules: tuple[str, ...]) -> None:
    """Refuse adapters on compiled modules, which would be compiled anew at every step.

    Args:
        family: The backbone's.
        modules: Full names of the adapted modules.
    """
    free = tuple(f".{family.modules[name]}" for name in PROJECTIONS)
    wrong = next((module for module in modules if not module.endswith(free)), None)
    if wrong is not None:
        raise InputError(
            f"adapter.modules: {wrong} is compiled (backbone.compile) and cannot be adapted; "
            f"allowed: {', '.join(PROJECTIONS)}, or backbone.compile=null"
        )


def _found_compiler() -> bool:
    named = os.environ.get("CXX")
    return any(shutil.which(one) for one in ([named] if named else ["g++", "clang++"]))
