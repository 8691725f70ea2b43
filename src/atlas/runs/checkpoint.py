"""Checkpoints of whole rounds that survive a kill at any moment.

A round is written to a temporary folder beside its place, synced, and renamed. Its manifest is
written last and holds the size and the SHA-256 of every file, so that a damaged round is noticed
and the one before it used instead.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from atlas.errors import InputError
from atlas.runs.files import NAME, safe_child, sync_folder, write_synced

_KEPT = 2
_STATE, _META, _MANIFEST, _BLOBS = "state.safetensors", "meta.json", "manifest.json", "blobs"
_FORMAT = 1
_TEMPORARY = ".tmp-"
_ROUND = re.compile(r"[0-9]{4,9}")
_TYPE = re.compile(rb'"dtype":"([A-Z0-9_]+)"')
_ALIGNED = 8
"""The length of a safetensors header is told in so many bytes, and is a multiple of it."""
_PIECE = 1 << 22
"""Bytes of a tensor that are in memory at a time while it is saved."""


@dataclass(frozen=True, eq=False)
class SavedTensors(Mapping[str, torch.Tensor]):
    """Tensors of a saved round, read from its file when they are asked for, on the CPU."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def open(cls, path: Path) -> SavedTensors:
        """What a file holds; its header alone is read."""
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return cls(path, {name: tuple(file.get_slice(name).get_shape()) for name in names})

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        with safe_open(self.path, framework="pt") as file:
            # A copy: what is mapped begins at any byte, at which products round otherwise.
            found: torch.Tensor = file.get_tensor(name).clone()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def rows(self, name: str, some: slice) -> torch.Tensor:
        """A part of one tensor's rows."""
        with safe_open(self.path, framework="pt") as file:
            found: torch.Tensor = file.get_slice(name)[some].clone()
        return found

    def whole(self) -> dict[str, torch.Tensor]:
        """All of them at once, by one reading."""
        return load_tensors(self.path.read_bytes())


@dataclass(frozen=True, eq=False)
class SavedBlobs(Mapping[str, bytes]):
    """Bytes of a saved round by client, read and verified when they are asked for."""

    folder: Path
    entries: Mapping[str, object]

    def __getitem__(self, client: str) -> bytes:
        name = f"{_BLOBS}/{client}"
        entry, data = self.entries[name], (self.folder / name).read_bytes()
        if _fingerprint(data) != entry:
            raise ValueError(f"{name} is not as it was written")
        return data

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(f"{_BLOBS}/") for name in self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class Checkpoint:
    """One saved round; what is large is read when it is asked for.

    Attributes:
        number: The round.
        tensors: The saved tensors.
        meta: The saved plain values.
        blobs: The saved bytes by client.
    """

    number: int
    tensors: SavedTensors
    meta: dict[str, object]
    blobs: SavedBlobs


class _Damaged(Exception):
    """A round that cannot be used, and why."""


def save_round(
    rounds_dir: Path,
    number: int,
    *,
    tensors: Mapping[str, torch.Tensor],
    meta: Mapping[str, object],
    blobs: Mapping[str, bytes],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Saves a round at once and keeps it and the one before.

    The caller holds the run's lock: whatever is temporary in the folder is a dead process's.

    Args:
        rounds_dir: The folder of all rounds; made when missing.
        number: The round, from 0.
        tensors: The state of the federation.
        meta: Plain values to go with it; mappings have text keys, so that they read back equal.
        blobs: Bytes by client id; asked for one after another, so that they need not be in memory
            together.
        between: Called after every piece of a tensor, to give back memory it was read into.

    Raises:
        InputError: A blob's name is not a client id.
        TypeError: The meta values have no JSON form that reads back equal.
    """
    if not 0 <= number < 10**9:
        raise ValueError(f"round {number} is not a number from 0 to 999999999")
    _check_keys(meta)
    rounds_dir.mkdir(parents=True, exist_ok=True)
    _remove_temporary(rounds_dir)
    plain = json.dumps(meta).encode("utf-8")
    folder = rounds_dir / f"{_TEMPORARY}{number:04d}"
    (folder / _BLOBS).mkdir(parents=True)
    entries = {
        _STATE: _write_pieces(folder / _STATE, tensor_pieces(tensors, between)),
        _META: _write_pieces(folder / _META, [plain]),
    }
    for client in blobs:
        path = safe_child(folder / _BLOBS, client)
        entries[f"{_BLOBS}/{path.name}"] = _write_pieces(path, [blobs[client]])
    _write_manifest(folder, number, entries)
    place = rounds_dir / f"{number:04d}"
    if place.exists():  # Left damaged by an earlier life of this run, which now does it again.
        _set_aside(place)
    folder.rename(place)
    sync_folder(rounds_dir)
    _remove_superseded(rounds_dir, number)


def latest_round(rounds_dir: Path) -> Checkpoint | None:
    """Reads the newest round whose files are as they were written.

    Args:
        rounds_dir: The folder of all rounds.

    Returns:
        The round, or None when none was ever saved.

    Raises:
        InputError: There are rounds, but none of them is readable.
    """
    reasons = []
    for number, folder in sorted(_saved(rounds_dir).items(), reverse=True):
        try:
            return _read_round(folder, number)
        except _Damaged as damage:
            reasons.append(f"{folder.name}: {damage}")
    if reasons:
        raise InputError(f"{rounds_dir}: no saved round is readable; {'; '.join(reasons)}")
    return None


def _write_pieces(path: Path, pieces: Iterable[bytes]) -> dict[str, object]:
    """Writes and syncs a file a piece at a time; returns its entry in the manifest."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            yield piece

    write_synced(path, counted())
    return {"sha256": digest.hexdigest(), "size": size}


def tensor_pieces(
    tensors: Mapping[str, torch.Tensor], between: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """What safetensors would write, in its order, without a copy of all tensors in memory."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, end = {}, 0
    for name in order:
        value = tensors[name]
        start, end = end, end + value.nbytes
        # safetensors names its types; it is asked with an empty tensor of the same.
        dtype = _TYPE.search(save_tensors({"x": value.new_empty(0, device="cpu")}))
        if dtype is None:
            raise TypeError(f"safetensors has no name for {value.dtype}")
        header[name] = {
            "dtype": dtype[1].decode(),
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    told = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    told += b" " * (-len(told) % _ALIGNED)
    yield len(told).to_bytes(_ALIGNED, "little") + told
    for name in order:
        value = tensors[name].detach()
        rows = max(1, _PIECE // max(1, value[:1].nbytes)) if value.dim() else 1
        for part in torch.split(value, rows) if value.dim() else [value]:
            yield part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            between()


def _write_manifest(folder: Path, number: int, entries: Mapping[str, dict[str, object]]) -> None:
    """Vouches for the files of a round, after all of them are on the disk."""
    sync_folder(folder / _BLOBS)
    sync_folder(folder)
    manifest = {"format": _FORMAT, "round": number, "files": entries}
    write_synced(folder / _MANIFEST, json.dumps(manifest, indent=1).encode("utf-8"))
    sync_folder(folder)


def _fingerprint(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _check_keys(value: object) -> None:
    """Refuses keys that JSON would quietly turn into text."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the meta key {key!r} is not text and would not read back equal")
            _check_keys(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            _check_keys(entry)


def _saved(rounds_dir: Path) -> dict[int, Path]:
    """Returns the folders of saved rounds by number."""
    if not rounds_dir.is_dir():
        return {}
    return {int(path.name): path for path in rounds_dir.iterdir() if _ROUND.fullmatch(path.name)}


def _remove_superseded(rounds_dir: Path, number: int) -> None:
    """Keeps the round just saved and the one before; later ones belong to an abandoned past."""
    saved = _saved(rounds_dir)
    kept = sorted((other for other in saved if other <= number), reverse=True)[:_KEPT]
    for other in saved.keys() - set(kept):
        _set_aside(saved[other])
    _remove_temporary(rounds_dir)


def _set_aside(place: Path) -> None:
    """Takes a round away by one rename, so that no half-removed round is ever found."""
    place.rename(place.with_name(f"{_TEMPORARY}old-{place.name}"))


def _remove_temporary(rounds_dir: Path) -> None:
    for path in rounds_dir.glob(f"{_TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _read_round(folder: Path, number: int) -> Checkpoint:
    """Verifies all files of one round, a piece at a time, and opens it."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT or manifest["round"] != number:
            raise _Damaged("the manifest is of another round or format")
        entries = dict(manifest["files"])
        if not {_STATE, _META} <= set(entries):
            raise _Damaged("the manifest does not name all files")
        for name, entry in entries.items():
            _verify(folder, name, entry)
        blobs = {name: entry for name, entry in entries.items() if name not in (_STATE, _META)}
        tensors = SavedTensors.open(folder / _STATE)
        meta = json.loads((folder / _META).read_bytes())
    except OSError as error:
        raise _Damaged(f"{Path(error.filename or folder).name}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        raise _Damaged(f"not a checkpoint ({type(error).__name__})") from None
    if not isinstance(meta, dict):
        raise _Damaged(f"{_META} is not a mapping")
    return Checkpoint(number, tensors, meta, SavedBlobs(folder, blobs))


def _verify(folder: Path, name: str, entry: object) -> None:
    """Compares one file of a round with its entry in the manifest."""
    parent, _, client = name.rpartition("/")
    if name not in (_STATE, _META) and not (parent == _BLOBS and NAME.fullmatch(client)):
        raise _Damaged(f"the manifest names a strange file {name!r}")
    digest, size = hashlib.sha256(), 0
    with (folder / name).open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    if {"sha256": digest.hexdigest(), "size": size} != entry:
        raise _Damaged(f"{name} is not as it was written")


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, types and bits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
