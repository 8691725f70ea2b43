"""The texts that signatures are made of, tokenised once for a group of clients and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from atlas.federation.batching.forward import Model
from atlas.federation.batching.store import ExampleStore
from atlas.federation.clients import Example, Holder, Task, TaskKind

ANCHORS = "anchors"
"""The part of a store that holds the anchor texts."""
PROBED = Task(name="probed", kind="causal", text=("text",), label="answer", metric="exact_match")


def as_prompts(task: Task, examples: Sequence[Example]) -> list[Example]:
    """Examples as a causal model reads them; a label becomes an answer by its name.

    Texts stand on lines of their own and the answer starts a line, as in prompts without a
    template.
    """
    if task.kind == "causal":
        return list(examples)
    return [
        Example(("\n".join(example.texts) + "\n",), -1, task.labels[example.label])
        for example in examples
    ]


@dataclass
class SignatureStores:
    """What a group's signatures are taken from; built when first asked for.

    Attributes:
        find_probe: The probe of a name, texts entering at its last block.
        find_texts: So many anchor texts.
    """

    find_probe: Callable[[str], Model]
    find_texts: Callable[[int], Sequence[str]]
    _built: dict[tuple[str, str | int], ExampleStore] = field(default_factory=dict)

    def probed(self, probe: str, holders: Mapping[str, Holder], max_length: int) -> ExampleStore:
        """The probe with everybody's training examples, by client."""
        key = ("probe", probe)
        if key not in self._built:
            model = self.find_probe(probe)
            room = min(max_length, model.backbone.max_positions)
            parts = {
                client: (PROBED, as_prompts(holder.data.task, holder.data.train))
                for client, holder in holders.items()
            }
            self._built[key] = ExampleStore(model, parts, room)
        return self._built[key]

    def anchored(self, count: int, model: Model, max_length: int) -> ExampleStore:
        """A model with so many anchor texts."""
        key = (ANCHORS, count)
        if key not in self._built:
            kind: TaskKind = "causal" if model.backbone.can_generate else "classification"
            task = Task(name=ANCHORS, kind=kind, text=("text",), label="")
            examples = [Example((text,), -1) for text in self.find_texts(count)]
            self._built[key] = ExampleStore(model, {ANCHORS: (task, examples)}, max_length)
        return self._built[key]
