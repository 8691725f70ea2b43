"""Files and folders that settings name, as absolute paths: a saved run finds them from anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DATA_VARIABLE = "ATLAS_DATA"


def anchor(settings: dict[str, Any], base: Path) -> dict[str, Any]:
    """A copy in which every relative path is absolute, as seen from `base`.

    Files must be paths; a backbone or a task's place may also be a name, and is taken for a path
    only where such a folder exists. Malformed settings are left for validation to refuse.
    """
    anchored = dict(settings)
    _apply(anchored, "data", {"path": base}, {})
    _apply(anchored, "task", {"file": base}, {})
    _apply(anchored, "backbone", {}, {"name": base})
    backbone = anchored.get("backbone")
    if isinstance(backbone, dict) and isinstance(backbone.get("deal"), list):
        names = [_place(base, name) if isinstance(name, str) else name for name in backbone["deal"]]
        anchored["backbone"] = {**backbone, "deal": names}
    if isinstance(anchored.get("plugins"), list):
        anchored["plugins"] = [_plugin(name, base) for name in anchored["plugins"]]
    if isinstance(anchored.get("clients"), list):
        clients = {str(i): client for i, client in enumerate(anchored["clients"])}
        for key in clients:
            _apply(clients, key, {"data": base, "test_data": base}, {"backbone": base})
        anchored["clients"] = list(clients.values())
    if isinstance(anchored.get("tasks"), dict):
        anchored["tasks"] = dict(anchored["tasks"])
        for name in anchored["tasks"]:
            _apply(anchored["tasks"], name, {}, {"path": base})
    return anchored


def _plugin(name: object, base: Path) -> object:
    """A file's path; an installed plugin's name stays as it is."""
    if not isinstance(name, str) or not name.endswith(".py"):
        return name
    return os.path.normpath(base / Path(name).expanduser())


def _apply(
    holder: dict[str, Any], key: str, files: dict[str, Path], folders: dict[str, Path]
) -> None:
    block = holder.get(key)
    if not isinstance(block, dict):
        return
    block = holder[key] = dict(block)
    for name, base in {**files, **folders}.items():
        value = block.get(name)
        if not isinstance(value, str) or not value:
            continue
        block[name] = _seen_from(base, value) if name in files else _place(base, value)


def _seen_from(base: Path, value: str) -> str:
    return os.path.normpath(base / Path(value).expanduser())


def _place(base: Path, value: str) -> str:
    """A folder's path, also with the number of blocks kept of a model behind it; or the name."""
    whole, sign, blocks = value.rpartition("@")
    for folder, rest in ((value, ""), (whole, sign + blocks)):
        path = _seen_from(base, folder)
        if folder and _is_folder(Path(path)):
            return path + rest
    return value


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def fill_data_path(settings: dict[str, Any]) -> dict[str, Any]:
    """Write the environment's data folder into settings that would read it anyway.

    That is the folder of a federation's files, and a memory run's text where it lies in there.
    """
    folder = os.environ.get(DATA_VARIABLE, "")
    if not folder:
        return settings
    place = Path(folder).expanduser().absolute()
    data, task = settings.get("data"), settings.get("task")
    if isinstance(data, dict) and data.get("source") == "files" and data.get("path") is None:
        settings = {**settings, "data": {**data, "path": str(place)}}
    if isinstance(task, dict) and isinstance(task.get("file"), str):
        found = place / task["file"]
        if _is_file(found):
            settings = {**settings, "task": {**task, "file": str(found)}}
    return settings


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
