"""The list of checks, and their running one by one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardlab.doctor import core, machine, programs
from shardlab.doctor.finding import Finding, missing


@dataclass(frozen=True)
class Check:
    """A question to this machine. Without an answer to a `required` one the core of the course does not run."""

    name: str
    serves: str  # what it is for
    ask: Callable[[], Finding]
    required: bool = False


CHECKS = (
    Check("Python", "everything", core.python, required=True),
    Check("torch", "everything", core.torch, required=True),
    Check("packages", "everything", core.packages, required=True),
    Check("checkout", "labs, results, figures", machine.checkout, required=True),
    Check("ranks", "every lab", core.ranks, required=True),
    Check("Jupyter kernel", "notebooks", core.jupyter_kernel, required=True),
    Check("cores", "ranks side by side", machine.cores),
    Check("memory", "ranks side by side", machine.memory),
    Check("disk", "packages, checkpoints", machine.disk),
    Check("shared memory", "NCCL, data-loader workers", machine.shared_memory),
    Check("GPUs", "tiers 2 and 3", machine.gpus),
    Check("port", "torchrun with a fixed address", machine.ports),
    Check("C++ compiler", "torch.compile", programs.compiler),
    Check("network namespaces", "laptop cluster, sandboxed grading", programs.namespaces),
    Check("shaped links", "laptop cluster", programs.links),
    Check("Slurm", "lesson 4.1", programs.slurm),
    Check("bubblewrap", "sandboxed grading, for instructors", programs.bubblewrap),
    Check("slides", "building the decks", programs.slides),
    Check("Chromium", "slides as PDF, browser test", programs.chromium),
    Check("playwright", "browser test, for authors", programs.playwright),
)


def examine(checks: Iterable[Check] = CHECKS) -> Iterator[tuple[Check, Finding]]:
    """Every check with its finding, as soon as it is known; about ten seconds in all."""
    for check in checks:
        try:
            yield check, check.ask()
        except Exception as error:  # a broken environment breaks in ways no check foresees, and the others must go on
            yield check, missing(f"{type(error).__name__}: {error}")
