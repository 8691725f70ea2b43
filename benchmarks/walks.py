"""How far a reader has to walk: `python benchmarks/walks.py`.

Counts the files and functions of Atlas that one round of the tiny demo passes through (from the
command to the summary, and of that the round alone; what importing calls is left out), and the frames between a training step of a
memory model and the kernel of its rule. It names functions only where it must, so that the same
script can be run on an earlier checkout: `PYTHONPATH=<checkout>/src python benchmarks/walks.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import atlas

HOME = str(Path(atlas.__file__).parent)
ROUND, KERNEL = "run_round", "_ExactScan.forward"
STEP = ("MemoryTrainer.step", "Learner.step")
"""A training step of a memory model; the second is what its class was called before."""
DEMO = ["run", "demo", "size=quick", "backbone.name=tiny", "rounds=1", "data.test=20", "threads=1"]
RECALL = ["run", "recall", "size=quick", "train.steps=2", "train.round_steps=2", "threads=1"]
Look = Callable[[FrameType, str], None]


def main() -> None:
    """Walk both ways and print."""
    whole, inside = visit_demo()
    for name, seen in (("one round of the demo, command to summary", whole), ("its round", inside)):
        files = {file for file, _ in seen}
        print(f"{name}: {len(seen)} functions in {len(files)} files")
    frames = visit_kernel()
    print(f"training step to memory kernel: {len(frames)} frames")
    for frame in frames:
        print(f"  {frame}")


def visit_demo() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Functions that a demo of one round calls, all of them and those of the round alone."""
    whole: set[tuple[str, str]] = set()
    inside: set[tuple[str, str]] = set()
    under_way = False

    def look(frame: FrameType, event: str) -> None:
        nonlocal under_way
        code = frame.f_code
        if not (code.co_filename.startswith(HOME) and code.co_flags & inspect.CO_OPTIMIZED):
            return  # another library's, or the body of a module or a class
        if importing(frame):
            return
        if code.co_name == ROUND:
            under_way = event == "call"
        if event == "call" and not code.co_name.startswith("<"):
            found = (code.co_filename, code.co_qualname)
            whole.add(found)
            if under_way:
                inside.add(found)

    with watched(look):
        command(DEMO)
    return whole, inside


def importing(frame: FrameType | None) -> bool:
    """Whether this happens because a module of ours is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(HOME):
            return True
        frame = frame.f_back
    return False


def visit_kernel() -> list[str]:
    """Our frames from a training step of the memory model to its kernel, outermost first."""
    stacks: list[list[str]] = []

    def look(frame: FrameType, event: str) -> None:
        if event == "call" and frame.f_code.co_qualname == KERNEL and not stacks:
            stacks.append([*reversed(list(ours(frame)))])

    with watched(look):
        command(RECALL)
    stack = stacks[0]
    step = next(i for i, name in enumerate(stack) if name.endswith(STEP))
    return stack[step:]


def ours(frame: FrameType | None) -> Iterator[str]:
    """The frames of Atlas from `frame` outwards."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(HOME):
            file = Path(frame.f_code.co_filename).relative_to(HOME)
            yield f"{file} {frame.f_code.co_qualname}"
        frame = frame.f_back


@contextlib.contextmanager
def watched(look: Look) -> Iterator[None]:
    """Call `look` at every call and return, in all threads."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return"):
            look(frame, event)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def command(words: list[str]) -> None:
    """Run the command line quietly in this process, in a folder of its own."""
    from atlas.cli import main as run_command

    before = sys.argv
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["atlas", *words, "--out", place]
        try:
            run_command()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.argv = before


if __name__ == "__main__":
    main()
