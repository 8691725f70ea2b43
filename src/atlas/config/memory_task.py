"""Settings of what a memory run reads: recall, or running text with sums in between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.plan import Positive, Settings, Share


class TokenizerSettings(Settings):
    """How text becomes tokens; it is saved beside the model."""

    kind: Literal["bytes", "trained", "folder"] = Field(
        "bytes",
        description="bytes; trained: byte pairs of the training text; folder: a transformers one",
    )
    size: Annotated[int, Field(gt=256)] | None = Field(
        None, description="trained: tokens of the vocabulary; default: 1024"
    )
    folder: Path | None = Field(None, description="folder: where tokenizer.json is")

    @model_validator(mode="after")
    def _own_keys(self) -> TokenizerSettings:
        if self.size is not None and self.kind != "trained":
            raise ValueError(f"size: not a setting of kind {self.kind}, but of trained")
        if (self.folder is None) == (self.kind == "folder"):
            raise ValueError("folder: to be given with kind: folder, and only with it")
        return self


class HubTextSettings(Settings):
    """A text of the data set hub, read as a stream, or a local copy of one."""

    name: Annotated[str, Field(min_length=1)] = Field(
        description="of the data set, such as allenai/dolmino-mix-1124, or a folder of files"
    )
    config: str | None = Field(None, description="configuration of the data set")
    split: Annotated[str, Field(min_length=1)] = Field("train", description="split that is read")
    field: Annotated[str, Field(min_length=1)] = Field("text", description="where its text is")


class SumSettings(Settings):
    """Sums between the texts: a o b = c modulo a prime, every residue one token."""

    share: Share = Field(0.5, description="share of batches that are sums; 1: nothing else")
    modulus: Annotated[int, Field(ge=5)] = Field(97, description="the prime")
    operations: list[Literal["add", "subtract", "multiply", "divide"]] = Field(
        default=["add", "subtract", "multiply", "divide"],
        min_length=1,
        description="which are asked, each once",
    )
    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of each operation's pairs that is trained on"
    )


class SequenceSettings(Settings):
    """What is read: pairs and then questions far from them, or running text."""

    name: Literal["recall", "text"] = Field(
        "recall", description="pairs and then questions, or running text"
    )
    length: Annotated[int, Field(ge=4)] = Field(64, description="tokens of a sequence")
    vocabulary: Annotated[int, Field(ge=4)] | None = Field(
        None, description="recall: half keys, half values; default: 64"
    )
    pairs: Positive | None = Field(
        None, description="recall: pairs of a sequence, each asked for once; default: 8"
    )
    file: Path | None = Field(
        None,
        description="text: the file, in ATLAS_DATA or anywhere; without one and without hub a text "
        "is generated",
    )
    hub: HubTextSettings | None = Field(None, description="text: from the hub instead of a file")
    characters: Positive | None = Field(
        None, description="text: of a generated text or of the hub's stream; default: 1,000,000"
    )
    tokenizer: TokenizerSettings | None = Field(None, description="text: default: bytes")
    arithmetic: SumSettings | None = Field(
        None, description="text: sums between the texts; null: none"
    )
    test: Positive = Field(512, description="sequences of validation and test")

    @model_validator(mode="after")
    def _own_keys(self) -> SequenceSettings:
        own = {
            "recall": ("vocabulary", "pairs"),
            "text": ("file", "hub", "characters", "tokenizer", "arithmetic"),
        }
        for name, keys in own.items():
            given = [key for key in keys if getattr(self, key) is not None]
            if given and name != self.name:
                raise ValueError(f"{given[0]}: not a setting of {self.name}, but of {name}")
        if self.file is not None and self.hub is not None:
            raise ValueError("hub: a file is given already; allowed: one of the two")
        if self.file is not None and self.characters is not None:
            raise ValueError("characters: a file is read as a whole; allowed without one")
        return self
