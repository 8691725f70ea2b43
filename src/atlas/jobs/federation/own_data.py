"""What a run tells of its clients' own files: rows used and left out, and what to beware of."""

from __future__ import annotations

import math
from typing import Any

from atlas.backbones.truncation import count_truncated
from atlas.build.devices import device_warnings
from atlas.build.federation import Federation
from atlas.build.models import open_backbone
from atlas.federation.clients import ClientData, DataFacts, RowCounts
from atlas.federation.training.evaluate import chance_score, majority_scores
from atlas.runs.events import Observe

FEW_TESTS = 50
"""Below so many test examples one score says little."""


def describe_data(federation: Federation) -> dict[str, dict[str, Any]]:
    """Counts and warnings of every client that has files of its own; empty without any.

    `used`, `dropped`, `duplicates` and `conflicts` add up to `rows`; `unlabelled`, `judged` and
    `beyond` add up to `dropped`. `truncated` are among those used.
    """
    if federation.told:
        return {
            client: {**facts.rows, "warnings": []}
            for client, facts in sorted(federation.told.items())
            if facts.rows is not None
        }
    members = {m.id: m for holder in federation.holders.values() for m in holder.members}
    return {
        client: _describe(federation, member, member.counts)
        for client, member in sorted(members.items())
        if member.counts is not None
    }


def data_facts(federation: Federation) -> dict[str, DataFacts]:
    """What may be known of every client's data, counted here or as its node told it."""
    if federation.told:
        return dict(federation.told)
    members = {m.id: m for holder in federation.holders.values() for m in holder.members}
    own = describe_data(federation)
    return {
        client: DataFacts(
            train=len(member.train),
            validation=len(member.validation),
            test=len(member.test),
            majority=majority_scores(member.task, member.train, member.test)["score"],
            chance=chance_score(member.task, member.test),
            # Notes name files and lines, and warnings repeat them.
            rows={k: v for k, v in own[client].items() if k != "warnings"}
            if client in own
            else None,
        )
        for client, member in sorted(members.items())
    }


def tell_data(federation: Federation, observe: Observe) -> None:
    """The event `data`, where there is anything to tell."""
    found = describe_data(federation)
    if found:
        observe("data", {"clients": found})


def _describe(federation: Federation, member: ClientData, counts: RowCounts) -> dict[str, Any]:
    config = federation.config
    splits = (member.train, member.validation, member.test)
    examples = [example for split in splits for example in split]
    backbone = open_backbone(config, member.backbone)
    kept = config.backbone.max_length
    truncated = count_truncated(backbone, member.task, examples, kept)
    return {
        "rows": counts.rows,
        "used": len(examples),
        "train": len(member.train),
        "validation": len(member.validation),
        "test": len(member.test),
        "dropped": counts.dropped,
        "unlabelled": counts.unlabelled,
        "judged": counts.judged,
        "beyond": counts.beyond,
        "duplicates": counts.duplicates,
        "conflicts": counts.conflicts,
        "truncated": truncated,
        "warnings": [
            *row_warnings(member),
            *_judging_warnings(member),
            *device_warnings(config, member.device),
        ],
    }


def row_warnings(member: ClientData) -> list[str]:
    """What was found in a client's files, and which of their rows are not used."""
    counts = member.counts or RowCounts()
    told = list(counts.notes)
    if counts.judged:
        told.append(
            f"{_rows(counts.judged)} not used: clients of task {member.task.name!r} are tested or "
            "validated by the same texts"
        )
    if counts.beyond:
        told.append(f"{_rows(counts.beyond)} not used: beyond data.train or data.test")
    return told


def _judging_warnings(member: ClientData) -> list[str]:
    """Why this client's score may mean little."""
    told = []
    labels = {example.label for example in member.train}
    if member.task.kind == "classification" and len(labels) == 1:
        name = member.task.labels[labels.pop()]
        told.append(f"one class only: all {len(member.train)} training examples are {name!r}")
    tests = len(member.test)
    if tests < FEW_TESTS:
        error = 100 * math.sqrt(0.25 / tests)
        told.append(
            f"{tests} test examples are too few to tell: their score has a standard error of up to "
            f"{error:.0f} points; give {FEW_TESTS} or more, by more rows, data.shares or test_data"
        )
    return told


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
