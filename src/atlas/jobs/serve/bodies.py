"""What requests may hold; anything else is refused with the field's name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST_TEXTS = 256
MOST_LETTERS = 100_000
"""Of one text; models read far less of it."""
MOST_TOKENS = 1024

Text = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]
Fields = Annotated[list[Text], Field(min_length=1, max_length=8)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ClassifyInput(_Body):
    """One text for a client of its own."""

    client: str | None = None
    texts: Text | Fields


class ClassifyBody(_Body):
    """Texts to be classified.

    Attributes:
        client: Who answers inputs that name nobody.
        inputs: Texts; lists of them where a task reads two; or objects that name their own client.
    """

    client: str | None = None
    inputs: Annotated[
        list[Text | Fields | ClassifyInput], Field(min_length=1, max_length=MOST_TEXTS)
    ]


class CompletionBody(_Body):
    """A request as OpenAI's completions have it; the model is a client's id.

    Answers are greedy: what would draw at random is refused rather than ignored.
    """

    model: str
    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    stream: Literal[False] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    stop: Text | Annotated[list[Text], Field(max_length=4)] | None = None
    seed: int | None = None
    user: str | None = None

    @field_validator("temperature")
    @classmethod
    def _greedy(cls, value: float | None) -> float | None:
        if value:
            raise ValueError(f"{value:g} given, but answers are greedy; allowed: 0")
        return value

    @property
    def prompts(self) -> list[str]:
        """All of them."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        """Texts before which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []
