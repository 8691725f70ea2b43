"""Settings of who learns from whom: fingerprints, clusters and the relation between clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.base import Count, Positive, Settings, Share

Part = Literal["mean", "text", "label"]


class FingerprintSettings(Settings):
    """What a client tells of its data: sketched gradients at the shared start."""

    parts: list[Part] = Field(
        default=["text", "label"],
        min_length=1,
        description="mean: plain gradient; text: what the text is; label: what tells labels apart",
    )
    blocks: Positive = Field(2, description="gradients of the last so many blocks")
    head: bool = Field(True, description="and of the head, where all clients have as many labels")
    batches: Annotated[int, Field(ge=2, le=64)] = Field(64, description="most batches used")
    folds: Annotated[int, Field(ge=2, le=64)] = Field(
        8, description="parts sent apart, for reliability and resampling"
    )
    sketch: Count = Field(1024, description="numbers sent per part and fold; 0: all of them")
    dims: Annotated[int, Field(ge=1, le=64)] = Field(64, description="most principal components")
    warmup: Count = Field(0, description="epochs of local training before the gradient is taken")


class ClusterSettings(Settings):
    """How clients are grouped by their fingerprints."""

    method: Literal["kmeans", "spectral", "hdbscan", "oracle", "one", "permuted"] = Field(
        "kmeans",
        description="oracle: by task; one: all together; permuted: k-means with names shuffled",
    )
    k: Positive | None = Field(None, description="number of clusters; null: chosen")
    largest: Annotated[int, Field(ge=2, le=64)] = Field(8, description="largest k tried")
    smallest: Annotated[int, Field(ge=2)] = Field(2, description="hdbscan: smallest cluster")
    resamples: Annotated[int, Field(ge=2, le=64)] = Field(
        8, description="bootstrap resamples by which a split's stability is judged"
    )

    @model_validator(mode="after")
    def _k_is_heard(self) -> ClusterSettings:
        if self.k is not None and self.method in ("hdbscan", "oracle", "one"):
            raise ValueError(f"k: {self.k} given, but method {self.method!r} finds its own number")
        return self


class RelationSettings(Settings):
    """From fingerprints to W: affinity, neighbours, step."""

    affinity: Literal["rbf", "cosine", "uniform"] = Field(
        "rbf", description="uniform: fingerprints do not count"
    )
    alpha: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        1.0, description="rbf: exp(-alpha * distance^2); auto: each client's validation data picks"
    )
    eta: Share | Literal["even", "auto"] = Field(
        "even",
        description="step toward the neighbours' mean; even: own counts as one of them (2/3 among "
        "three alike); auto: validation data picks",
    )
    nearest: Positive | None = Field(3, description="neighbours per client; null: all")
    cross: Share = Field(0.0, description="factor on edges between clusters")
    singletons: Literal["alone", "joined"] = Field(
        "alone", description="a client without neighbours: left alone, or joined to its nearest"
    )
    warmup: Count = Field(0, description="rounds before clients begin to learn from each other")
