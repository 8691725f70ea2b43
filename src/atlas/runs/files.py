"""Files that are either there whole or not at all, safe names, and values that JSON can hold."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from atlas.errors import InputError

FILE_MODE = 0o644
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_name(name: str, what: str) -> None:
    """Refuses a name that could lead out of its folder.

    Args:
        name: The name of a run or a client.
        what: What to call it in the error.

    Raises:
        InputError: The name has other characters than allowed, or is too long.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"{what} {name!r} is not allowed; allowed: 1 to 64 letters, digits, - or _"
        )


def safe_child(parent: Path, name: str) -> Path:
    """Returns the path of a client's file or folder, which lies inside `parent`.

    Args:
        parent: The folder that must hold it.
        name: The client's id.

    Returns:
        ``parent / name``; it need not exist.

    Raises:
        InputError: The name is not a client id, or a link leads out of the folder.
    """
    check_name(name, "client id")
    child = parent / name
    if child.resolve() != parent.resolve() / name:
        raise InputError(f"client id {name!r}: {child} is a link that leads elsewhere")
    return child


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turns a failure to write what the user named into bad input.

    Args:
        what: The place, as the user gave it: `--to x.csv`.

    Raises:
        InputError: Writing fails.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def fresh_target(to: Path) -> Iterator[None]:
    """Refuses a folder to write to (`--to`) that exists or cannot be written.

    Args:
        to: The folder.

    Raises:
        InputError: It exists already, or writing fails.
    """
    with writing(f"--to {to}"):
        if to.exists():
            raise InputError(f"--to {to}: exists already; name a new folder")
        yield


def write_synced(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Writes a new file through to the disk.

    Args:
        path: The file; it must not exist.
        data: Its content, whole or in pieces.
    """
    with path.open("xb") as file:
        # Set, not left to the umask: others may read a run, whoever made it.
        os.fchmod(file.fileno(), FILE_MODE)
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Writes a folder's entries (creations, renames) through to the disk.

    Args:
        path: The folder.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Writes or replaces a file so that a reader sees the old or the new content, never a part.

    Args:
        path: The file.
        data: Its new content.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_text_atomic(path: Path, text: str) -> None:
    """Writes or replaces a UTF-8 file at once; see `write_bytes_atomic`.

    Args:
        path: The file.
        text: Its new content.
    """
    write_bytes_atomic(path, text.encode("utf-8"))


def plain(value: object) -> object:
    """Turns a value into plain JSON values; NaN and the infinities become None.

    Args:
        value: Mappings, sequences, text, numbers, truth values, None, and whatever offers
            ``tolist`` (arrays, tensors and their scalars).

    Returns:
        The same as dictionaries with text keys, lists and scalars.

    Raises:
        TypeError: The value is of another type.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(entry) for entry in value]
    # Asked by its method, so that a log needs neither numpy nor torch.
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return plain(tolist())
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def to_json_line(value: Mapping[str, object]) -> str:
    """Writes a mapping as one line of standard JSON.

    Args:
        value: The mapping; see `plain`.

    Returns:
        The line with its newline.
    """
    return json.dumps(plain(value), allow_nan=False, separators=(", ", ": ")) + "\n"
