"""The settings of a run as strict, frozen pydantic models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from atlas.config.plan import (
    AlignSettings,
    ClusterSettings,
    Device,
    DeviceSettings,
    FingerprintSettings,
    MixingSettings,
    Positive,
    RankSettings,
    RelationSettings,
    RelevanceSettings,
    RouteSettings,
    Settings,
    Share,
    SplitSettings,
    Track,
    WireSettings,
)
from atlas.config.training import (
    CLIENT_ID,
    AdapterSettings,
    BackboneSettings,
    ClientId,
    TrainSettings,
)

Metric = Literal["accuracy", "balanced_accuracy", "f1", "matthews", "exact_match", "token_f1"]


class PartitionSettings(Settings):
    """How one task's training data is dealt to its clients."""

    method: Literal["iid", "dirichlet", "field"] = Field(
        "iid", description="dealt at random, in unequal shares of labels, or by a field of records"
    )
    alpha: Annotated[float, Field(gt=0)] = Field(0.5, description="dirichlet concentration")
    field: str | None = Field(None, description="record field that names the client's share")


class ShareSettings(Settings):
    """How a client's own file is shared out; what is left is the test."""

    train: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of a client's own file that trains"
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share that chooses; the rest is the test"
    )

    @model_validator(mode="after")
    def _leaves_a_test(self) -> ShareSettings:
        if self.train + self.validation >= 1:
            raise ValueError(
                f"train {self.train:g} and validation {self.validation:g} leave nothing for the "
                "test; allowed: less than 1 together"
            )
        return self


class DataSettings(Settings):
    """Where examples come from and how they are dealt."""

    source: str = Field(
        "synthetic",
        description="synthetic (made here), files (folders of `path`), hub (by its library), or "
        "the name of a plugin's own",
    )
    path: Path | None = Field(None, description="folder of tasks; default: ATLAS_DATA")
    tasks: list[str] = Field(default_factory=list, description="empty: all synthetic tasks")
    clients_per_task: Positive = Field(3, description="clients among whom a task is dealt")
    clients_of: dict[str, Positive] = Field(
        default_factory=dict, description="clients of single tasks, over `clients_per_task`"
    )
    partition: PartitionSettings = PartitionSettings()
    partitions: dict[str, PartitionSettings] = Field(
        default_factory=dict, description="partition of single tasks, over `partition`"
    )
    train: Positive | None = Field(
        48, description="training examples per client; null: all, the default of `clients`"
    )
    trains: dict[str, Positive] = Field(
        default_factory=dict, description="training examples of single tasks, over `train`"
    )
    validation: Positive | None = Field(
        32, description="validation examples per client; `clients`: most of them, default null"
    )
    test: Positive | None = Field(
        200, description="test examples per client; `clients`: most of them, default null"
    )
    shares: ShareSettings = ShareSettings()
    tests: Literal["apart", "shared", "unseen"] = Field(
        "apart",
        description="apart: no two clients share a test example; shared: each draws from all of "
        "its task; unseen: also from the training data that no client holds; both for less noise",
    )
    noise: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="synthetic: share of flipped training labels"
    )
    difference: Share = Field(
        0.0,
        description="synthetic: how far label shares of a task's clients differ, from half and "
        "half for all (0) to 5 % for the first and 95 % for the last of them (1)",
    )

    def client_count(self, task: str) -> int:
        """Clients among whom a task is dealt."""
        return self.clients_of.get(task, self.clients_per_task)


class TaskSettings(Settings):
    """A task of the user's own."""

    kind: Literal["classification", "causal"] = Field(
        "classification", description="choose a label, or write an answer"
    )
    text: list[str] = Field(
        min_length=1, max_length=8, description="fields of a record that are read"
    )
    label: str = Field("label", description="field that holds the label or the answer")
    labels: list[str] = Field(
        default_factory=list,
        description="names of the labels, in order; causal: answers that all records choose from",
    )
    metric: Metric = Field("accuracy", description="what its clients are scored by")
    prompt: str = Field("", description="causal: the prompt, with {field} for every text field")
    choices: str = Field("", description="causal: field with candidate answers, for accuracy")
    answer_marker: str = Field("", description="causal: only what comes after it is compared")
    max_new_tokens: Annotated[int, Field(ge=0, le=4096)] = Field(
        0, description="causal: length limit of its answers below the backbone's; 0: that one"
    )
    path: Path | None = Field(None, description="folder or hub id of its files, if elsewhere")


class ClientSettings(Settings):
    """One client of the user's own federation."""

    id: ClientId = Field(description="its name in tables and folders")
    task: str = Field(description="a task of `tasks`, or one that is built in")
    data: Path | None = Field(
        None,
        description="JSONL or CSV file, split here into train, validation, test; null: it lies on "
        "the client's own node (atlas deploy)",
    )
    test_data: Path | None = Field(None, description="a separate test file")
    device: str = Field("", description="bounds its ranks, unless ranks.method is fixed")
    backbone: str = Field("", description="a model of its own; default: backbone.name")


class ServerSettings(Settings):
    """Where the adapters of all clients are kept, the server's and the local engine's."""

    state: Literal["auto", "memory", "disk"] = Field(
        "auto",
        description="memory, or disk: a temporary file; auto: disk if a backbone's clients have "
        "adapters of more than 256 MB together; the same bits either way",
    )


class FlowerSettings(Settings):
    """How long a server waits for clients on other machines, and how many it needs."""

    deadline: Annotated[float, Field(gt=0, le=43_200)] = Field(
        3600.0,
        description="seconds for an answer; a client that takes longer has failed in that round, "
        "and its late answer is dropped",
    )
    quorum: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="share of the clients asked in a round that must have trained"
    )
    wait: Annotated[float, Field(ge=0)] = Field(
        600.0,
        description="seconds to wait for nodes: at the start for all of them, later for a quorum",
    )


class FederationConfig(Settings):
    """A whole federation."""

    kind: Literal["federation"] = Field("federation", description="clients that share a model")
    name: Annotated[str, Field(pattern=CLIENT_ID)] = Field(
        "federation", description="name of the run folder"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="every draw of the run follows it")
    device: Device = Field("cpu", description="what models run on")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="torch threads; default: all cores"
    )
    engine: Literal["local", "flower"] = Field(
        "local", description="where clients run: stacked in this process, or each on a Flower node"
    )
    flower: FlowerSettings = FlowerSettings()
    report: bool = Field(True, description="write report.html at the end of the run")
    track: Track = Field("none", description="keep figures for TensorBoard or MLflow, too")
    rounds: Positive = Field(5, description="rounds of local training and mixing")
    strategy: str = Field("fedavg", description="who learns from whom; see atlas strategies")
    keep_best: bool | None = Field(
        None, description="clients accept mixtures by validation; null: as the strategy says"
    )
    keep_margin: Annotated[float, Field(ge=0)] = Field(
        1.0,
        description="keep_best: standard errors by which one's own adapter must be the better one "
        "on validation data to be kept",
    )
    alone: bool | Literal["needed"] = Field(
        True, description="train the solo shadow, so that gains can be shown; needed: for keep_best"
    )
    sample: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="clients per round")
    absent: Literal["restrict", "last"] = Field(
        "restrict", description="absent clients: left out of the mixture, or their last adapter"
    )
    validate_every: Annotated[int, Field(ge=0)] = Field(
        1, description="rounds between validations shown in the display; 0: never"
    )
    server: ServerSettings = ServerSettings()
    backbone: BackboneSettings = BackboneSettings()
    adapter: AdapterSettings = AdapterSettings()
    ranks: RankSettings = RankSettings()
    split: SplitSettings = SplitSettings()
    devices: dict[str, DeviceSettings] = Field(
        default_factory=dict, description="devices of the user's own, beside the built-in ones"
    )
    train: TrainSettings = TrainSettings()
    fingerprint: FingerprintSettings = FingerprintSettings()
    clusters: ClusterSettings = ClusterSettings()
    relation: RelationSettings = RelationSettings()
    mixing: MixingSettings = MixingSettings()
    route: RouteSettings = RouteSettings()
    wire: WireSettings = WireSettings()
    relevance: RelevanceSettings = RelevanceSettings()
    align: AlignSettings = AlignSettings()
    data: DataSettings = DataSettings()
    tasks: dict[str, TaskSettings] = Field(
        default_factory=dict, description="tasks of the user's own, by name"
    )
    clients: list[ClientSettings] = Field(
        default_factory=list, description="clients of the user's own; replaces `data`"
    )
    plugins: list[str] = Field(
        default_factory=list,
        description="code of your own with strategies, tasks or sources of data: .py files, or "
        "names of installed plugins",
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_files(cls, given: Any) -> Any:  # noqa: ANN401 - as yet unchecked
        """The default sizes are those of made-up data; files of one's own are used whole."""
        if not isinstance(given, dict) or not given.get("clients"):
            return given
        data = given.get("data", {})
        if not isinstance(data, dict):
            return given
        return {**given, "data": {"train": None, "validation": None, "test": None, **data}}

    @model_validator(mode="after")
    def _distinct_clients(self) -> FederationConfig:
        ids = [client.id for client in self.clients]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"clients: the id {twice[0]!r} occurs twice; ids must differ")
        return self
