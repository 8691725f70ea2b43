"""The errors that every layer may raise."""

from __future__ import annotations


class InputError(ValueError):
    """The user's input is bad: the message names it and what is allowed; exit code 2."""
