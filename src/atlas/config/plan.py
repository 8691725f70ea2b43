"""Settings of the plan: fingerprints, clusters, relations, what travels, ranks and splits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
DEVICE = r"^(cpu|mps|cuda(:[0-9]{1,3})?)$"
Device = Annotated[str, Field(pattern=DEVICE)]
"""Where a run is computed; whether there is such a device is found out when the run starts."""
Track = Literal["none", "tensorboard", "mlflow"]
"""Who keeps a run's figures beside its own log."""


class Settings(BaseModel):
    """Base of all settings: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    splits: Literal["useful", "real"] = Field(
        "useful",
        description="which splits are kept: useful: those by which members gain and that are no "
        "cut through a cloud; real: all that come back in the other half of the data",
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
        1.0,
        description="rbf: exp(-alpha * distance^2 / scale); auto: each client's validation data "
        "picks",
    )
    scale: Literal["cluster", "median", "unit"] = Field(
        "cluster",
        description="what squared distances are divided by; median: the clients' median to their "
        "nearest other, over ln of how many there are to choose from; cluster: inside a cluster "
        "at least the median to the nearest there; unit: 1",
    )
    eta: Share | Literal["even", "shrink", "auto"] = Field(
        "even",
        description="step toward the neighbours' mean; even: own counts as one of them (2/3 among "
        "three alike); shrink: less than that where clients differ by more than noise; auto: "
        "validation data picks",
    )
    nearest: Positive | Literal["auto"] | None = Field(
        "auto",
        description="neighbours per client; null: all; auto: 8 inside clusters, 3 without clusters",
    )
    cross: Share = Field(0.0, description="factor on edges between clusters")
    siblings: Literal["affinity", "apart"] = Field(
        "affinity",
        description="edges between clusters that were one: weighed by what the two have in "
        "common, or as between any",
    )
    singletons: Literal["alone", "joined"] = Field(
        "alone", description="a client without neighbours: left alone, or joined to its nearest"
    )
    warmup: Count = Field(0, description="rounds before clients begin to learn from each other")


class MixingSettings(Settings):
    """How mixtures are brought to clients' ranks, and what becomes of what that removes."""

    cut: Literal["leading", "bands", "own"] = Field(
        "leading",
        description="a client keeps a mixture's strongest directions; bands: the same, each band "
        "of ranks averaged over those who reach it; own: those in which its own change is largest",
    )
    feedback: Share = Field(
        0.0,
        description="share of what the cut removed that the server remembers and mixes again; "
        "0: nothing is kept; 1: as if nothing had been cut",
    )
    server_rank: Positive | None = Field(
        None, description="feedback: rank of what is remembered; null: the largest of the clients"
    )

    @model_validator(mode="after")
    def _one_remedy(self) -> MixingSettings:
        if self.cut == "bands" and self.feedback > 0:
            raise ValueError(
                f"feedback: {self.feedback:g} given with cut: bands, which weighs clients anew in "
                "every band, so that nothing says whose the rest is; allowed: 0, or another cut"
            )
        return self


class RouteSettings(Settings):
    """Which modules of an adapter travel in a round; all of them train."""

    budget: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="share of an adapter's bytes that travels each way; null: as the strategy "
        "says, which is all of it under most",
    )
    choice: Literal["salience", "random"] = Field(
        "salience", description="by what modules count in training, or drawn: a control"
    )
    measure: Literal["auto", "gradient", "product"] = Field(
        "auto",
        description="what a module counts: its squared gradient, or the size of weight times "
        "gradient; auto: the one in the first round, the other from then on",
    )
    ema: Share = Field(0.5, description="what earlier rounds count in it")
    hysteresis: Annotated[float, Field(ge=0)] = Field(
        0.25, description="by how much more a shut module must count to take an open one's place"
    )
    waiting: Annotated[float, Field(ge=0)] = Field(
        1.0,
        description="after t rounds shut a module counts (1 + t) to this power times as much; 0: "
        "as much as ever",
    )


class WireSettings(Settings):
    """In which form clients send their adapters; what they are sent travels as it is."""

    form: Literal["plain", "bfloat16", "int8", "topk"] = Field(
        "plain",
        description="plain: every number as it is held; others: the change since the last reply, "
        "in two bytes a number, in one, or its largest entries alone",
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="topk: share of the numbers that is sent, 8 bytes each"
    )
    feedback: bool = Field(
        True, description="whether what a reply leaves out is added to the next; false: a control"
    )


class RelevanceSettings(Settings):
    """From signatures, which clients send after every fit, to who is relevant to whom."""

    probe: str = Field(
        "tiny-causal",
        description="simgrad: frozen causal model that takes everybody's gradients; a name as "
        "backbone.name has",
    )
    batches: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="simgrad: most batches of 16 examples that are looked at in a round"
    )
    sketch: Positive = Field(1024, description="simgrad: numbers that a gradient is sketched to")
    clip: Annotated[float, Field(gt=0)] = Field(
        1.0, description="simgrad: largest length of a signature"
    )
    noise: Annotated[float, Field(ge=0)] = Field(
        1e-4, description="simgrad: Gaussian noise on each number sent, as a share of clip"
    )
    anchors: Annotated[int, Field(ge=4, le=1024)] = Field(
        64, description="repsim: generated texts on which representations are compared"
    )
    ema: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="share of what was known before in a client's signature"
    )
    centre: bool = Field(
        True, description="whether the mean of all clients is taken off, if three or more are known"
    )
    temperature: Annotated[float, Field(ge=0.01)] = Field(
        0.15, description="of the softmax over the others; the smaller, the fewer count"
    )
    nearest: Positive = Field(16, description="most others that a client learns from")


class AlignSettings(Settings):
    """How the frozen bases of PQ-LoRA are found, so that cores mean the same in every backbone."""

    method: Literal["paired", "cca", "unpaired", "rotated", "random"] = Field(
        "paired",
        description="paired: Procrustes on the same texts through all backbones; cca: ridge CCA; "
        "ablations: unpaired (no common texts), rotated (paired, then turned), random",
    )
    texts: Annotated[int, Field(ge=2)] = Field(
        256, description="generated texts that bases are found from; none is a client's"
    )
    subspace: Positive = Field(
        4, description="a basis is sought among so many times the rank leading directions"
    )
    ridge: Annotated[float, Field(ge=0)] = Field(
        0.1, description="cca: share of the mean variance added to each side's"
    )


MB = 2**20
MAKE_ROOM = (
    "give more memory, a smaller train.batch, backbone.max_length or adapter.blocks, or, if it is "
    "not set, split.point: auto"
)
"""What a user can do for a client whose device holds not even the smallest ranks."""


class DeviceSettings(Settings):
    """A kind of device: the memory it leaves for training."""

    memory_mb: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory left for training, backbone included"
    )
    room: Share | None = Field(
        None,
        description="instead of memory_mb: 0 holds the smallest ranks everywhere, 1 the largest",
    )
    largest_rank: Positive | None = Field(None, description="rank ceiling, whatever would fit")

    @model_validator(mode="after")
    def _one_measure(self) -> DeviceSettings:
        if (self.memory_mb is None) == (self.room is None):
            raise ValueError("set exactly one of memory_mb and room")
        return self


def _profile(memory_mb: float, largest_rank: int | None = None) -> DeviceSettings:
    return DeviceSettings(memory_mb=memory_mb, room=None, largest_rank=largest_rank)


PROFILES = {
    "phone": _profile(256, 8),
    "tablet": _profile(512, 16),
    "laptop": _profile(2048, 32),
    "workstation": _profile(8192),
    "gpu-8gb": _profile(7168),
    "gpu-24gb": _profile(22528),
    "gpu-80gb": _profile(77824),
}
"""Devices by name. Memory is what is left beside the system; a GPU loses some to its runtime."""


class SplitWeights(Settings):
    """What counts in the choice of a split point."""

    memory: Annotated[float, Field(ge=0)] = Field(1.0, description="share of the budget used")
    traffic: Annotated[float, Field(ge=0)] = Field(1.0, description="activations sent")
    importance: Annotated[float, Field(ge=0)] = Field(
        1.0, description="how much of what matters is trained on the client"
    )
    balance: Annotated[float, Field(ge=0)] = Field(
        0.0, description="how evenly blocks are shared with the server"
    )


class SplitSettings(Settings):
    """How many blocks a client runs itself; a server runs the rest."""

    point: Positive | Literal["auto"] | None = Field(
        None, description="blocks on the client; auto: per device; null: all of them"
    )
    weights: SplitWeights = SplitWeights()


class RankSettings(Settings):
    """How many ranks each layer of each client gets."""

    method: Literal["fixed", "importance", "uniform", "exhaustive"] = Field(
        "fixed",
        description="fixed: adapter.rank and adapter.ranks; others fill the device's memory",
    )
    choices: list[Positive] = Field(
        default=[4, 8, 16, 32, 64], min_length=1, description="ranks a layer may get, rising"
    )
    budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="MB left for training on every client, over what its device says"
    )
    devices: list[str] = Field(
        default_factory=list, description="devices dealt to each task's clients in turn"
    )
    ceilings: Literal["kept", "ignored"] = Field("kept", description="the devices' largest_rank")
    complexity: Share = Field(
        0.5, description="share of the adapters' memory that the client's cluster must earn"
    )
    depth: Annotated[float, Field(ge=0)] = Field(
        0.5, description="how much more the last block counts than an equal one at the bottom"
    )

    @model_validator(mode="after")
    def _rising(self) -> RankSettings:
        if sorted(set(self.choices)) != self.choices:
            raise ValueError(f"choices: {self.choices} given; ranks must rise")
        return self
