"""Several processes that make one run together, as `torchrun` starts them.

Each has a number, its rank, and the first of them (rank 0) alone writes and speaks. Where nobody
started several, there is one, and nothing here does anything. Values are passed as tensors: nothing
is pickled.
"""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atlas.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """Who this process is among those that make a run.

    Attributes:
        rank: Its number, from 0.
        count: How many there are.
        device: Where values that are passed around must be.
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether it is the one that writes and speaks."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def rows(self, count: int) -> slice:
        """This process's rows of a batch of `count`, which they share evenly."""
        each = count // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def means(self, values: Sequence[float]) -> list[float]:
        """The mean of each value over all processes, the same to the bit in all of them."""
        if not self.several or not values:
            return list(values)
        import torch
        from torch import distributed

        # Not every accelerator has float64, and a loss is no better known than this.
        dtype = torch.float32 if self.device == "mps" else torch.float64
        both = torch.tensor(values, dtype=dtype, device=self.device)
        distributed.all_reduce(both)
        return [float(value) / self.count for value in both]

    def any(self, flag: bool) -> bool:
        """Whether any of them says so."""
        return self.means([float(flag)])[0] > 0

    def tell(self, text: str) -> str:
        """The first one's text, in all of them."""
        if not self.several:
            return text
        import torch
        from torch import distributed

        data = text.encode()
        size = torch.tensor([len(data)], device=self.device)
        distributed.broadcast(size, 0)
        own = data if self.first else bytes(int(size))
        letters = torch.tensor(list(own), dtype=torch.uint8, device=self.device)
        distributed.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()


ALONE = Ranks()


def follows() -> bool:
    """Whether this process is one of several and not the first: then it says nothing."""
    return os.environ.get("RANK", "0") != "0" and "WORLD_SIZE" in os.environ


def started_count() -> int:
    """How many processes were started to make a run together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_count() -> int:
    """How many of them share this machine's cores."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the other processes of a run, if there are any; they part at the end.

    Args:
        device: What models run on; of several accelerators each process takes its own.

    Raises:
        InputError: The processes were not started by torchrun, which tells them of each other.
    """
    if started_count() == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE: {started_count()} without {missing[0]}; start several processes with: "
            "torchrun --nproc-per-node 2 -m atlas run ..."
        )
    import torch
    from torch import distributed

    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), kind)
        gc.collect()
        distributed.barrier()
    except BaseException as error:
        _let_go(error)
        raise
    finally:
        # What averages gradients holds on to the group. Were it freed after the group, its last
        # reference would go while Python is locked, and its threads may wait for that lock.
        gc.collect()
        distributed.destroy_process_group()


def _let_go(error: BaseException) -> None:
    """Free what the functions that an error passed through held; where it arose is still told."""
    told: BaseException | None = error
    while told is not None:
        traceback.clear_frames(told.__traceback__)
        told = told.__cause__ or told.__context__
