"""Re-export of the error of bad input, for code that deals with settings."""

from atlas.errors import InputError as InputError
