"""A deployment without Flower's processes: nodes are trainers in folders, reached by calls."""

from types import SimpleNamespace

from atlas.config.load import load_config
from atlas.engines.flower.records import pack, unpack
from atlas.federation.exchange.transport import Failure
from atlas.jobs.deploy.serve import begin
from atlas.jobs.deploy.trainer import NodeTrainer
from atlas.jobs.runner import new_folder

SIZES = {"clients_per_task": 1, "train": 8, "validation": 8, "test": 8}
CLIENTS = ("order-1", "paraphrase-1", "sentiment-1")


def settings(*more):
    sizes = [f"data.{name}={size}" for name, size in SIZES.items()]
    base = ["backbone.name=tiny", "backbone.dtype=float64", "size=quick", "threads=1", *sizes]
    plan = ["fingerprint.sketch=16", "fingerprint.folds=2", "ranks.method=fixed"]
    return load_config("demo", [*base, *plan, "rounds=3", "flower.wait=0", "report=false", *more])


def new_run(config, parent):
    folder = new_folder(config, parent, 1)
    begin(folder)
    return folder


class Gone(Exception):
    """A server that was killed."""


class Nodes:
    """Three nodes by number, and the way to them; stands for `Post`.

    Attributes:
        away: Nodes that do not answer.
        after: Called with the task once nodes have answered it, before the server hears of it.
        log: Tasks asked of nodes, one entry per message.
    """

    deadline = 1.0

    def __init__(self, root, clients=CLIENTS):
        self.folders = {}
        for number, client in enumerate(clients, start=1):
            folder = root / f"node-{number}"
            folder.mkdir(parents=True)
            (folder / "node.yaml").write_text(f"clients:\n  {client}: null\n")
            self.folders[number] = folder
        self.trainers = {number: NodeTrainer(f) for number, f in self.folders.items()}
        self.away, self.log = set(), []
        self.after = lambda task: None

    @property
    def grid(self):
        return SimpleNamespace(get_node_ids=lambda: set(self.folders) - self.away)

    def restart(self, number):
        """Another trainer in place of one that was killed."""
        self.trainers[number] = NodeTrainer(self.folders[number])

    def exchange(self, parcels, about):
        answers = {}
        for name, (node, parcel) in parcels.items():
            if node in self.away:
                answers[name] = Failure("no answer within 1 seconds")
                continue
            self.log.append((node, about, parcel.texts("tasks")))
            answers[name] = unpack(pack(self.trainers[node].answer(unpack(pack(parcel)))))
        self.after(about)
        return answers


class Nth:
    """Calls something the n-th time that a task was answered."""

    def __init__(self, task, number, then):
        self.task, self.left, self.then = task, number, then

    def __call__(self, about):
        self.left -= about == self.task
        if about == self.task and self.left == 0:
            self.then()


def die():
    raise Gone
