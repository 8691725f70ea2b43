"""All clients of a finished run in one folder, for servers of many adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atlas.backbones.adapter_folder import Collected, vllm_rank, write_folder
from atlas.build.models import text_limits
from atlas.config.load import load_resolved_federation
from atlas.errors import InputError
from atlas.jobs.federation.client_models import client_names, read_client
from atlas.runs.files import fresh_target
from atlas.runs.folder import RunFolder


def export_all(folder: RunFolder, to: Path) -> dict[str, Any]:
    """Write the adapters of all clients, newcomers among them, into one new folder.

    A client whose adapter is damaged is left out and named; the others are written.

    Returns:
        The `folder`, the `clients` in it, those of them that `only_peft` serves with the reason of
        each (`refused`), the `max_lora_rank` that vLLM must be told for the others (null if there
        are none), and who was `left_out`, with reasons.

    Raises:
        InputError: The run has no adapters, none of them can be read, or the folder will not do.
    """
    config = load_resolved_federation(folder.config)
    found, left_out = [], {}
    for client in client_names(folder):
        try:
            own = read_client(folder, config, client)
        except InputError as error:
            left_out[client] = str(error)
            continue
        limits = text_limits(config).of(own.task)
        found.append(Collected(client, own.backbone, own.adapter, limits))
    if not found:
        first = next(iter(left_out.items()))
        raise InputError(f"{folder.path}: no adapter can be read; {first[0]}: {first[1]}")
    with fresh_target(to):
        write_folder(to, found, left_out)
    refused = {client.id: client.refused() for client in found if client.refused()}
    return {
        "folder": str(to),
        "clients": [client.id for client in found],
        "only_peft": list(refused),
        "refused": refused,
        "max_lora_rank": vllm_rank(found) or None,
        "left_out": left_out,
    }
