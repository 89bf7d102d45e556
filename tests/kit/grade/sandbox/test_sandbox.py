"""The sandbox on this machine: every way out is tried from inside, and each attempt would notice an open one."""

import os
import sys
from pathlib import Path

import cloudpickle
import pytest

from shardlab.grade.sandbox import probes
from shardlab.grade.sandbox.level import Level, isolation
from shardlab.grade.sandbox.limits import MIB, Limits
from shardlab.grade.sandbox.sandbox import open_sandbox
from shardlab.grade.sandbox.self_test import escapes, require_isolation
from shardlab.ranks import RankError, RankPool, run_ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a sandbox does not see the kit's tests
FOUND = isolation()
needs_sandbox = pytest.mark.skipif(FOUND.level is Level.NONE, reason=f"no sandbox here: {FOUND.reason}")


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Ranks in a sandbox that bounds them tightly."""
    place = tmp_path_factory.mktemp("workspace").resolve()
    place.chmod(0o755)
    limits = Limits(data_bytes=1024 * MIB, file_bytes=4 * MIB, scratch_bytes=8 * MIB, processes=128)
    with open_sandbox(FOUND.level, place, limits) as sandbox, RankPool(enclosure=sandbox.enclosure) as pool:
        yield pool


@pytest.mark.slow
@needs_sandbox
def test_every_way_out_is_barred():
    ways = escapes(FOUND.level)
    assert len(ways) == len(probes.PROBES) >= 17
    assert {name: got for name, got in ways.items() if got} == {}


def test_an_open_way_stops_the_grading(monkeypatch):
    monkeypatch.setattr("shardlab.grade.sandbox.self_test.escapes", lambda level: {"read": "", "write": "/etc"})
    with pytest.raises(Exception, match=r"is open \(write: /etc\), so nothing is graded"):
        require_isolation(Level.FULL)


def outside_of_any_sandbox(folder: str):
    """The harmless ones among the probes, where there is nothing to stop them."""
    os.environ["SECRET"] = "a word in the environment"
    seen = probes.Outside(os.getppid(), 1, "a word in the environment", (folder,), folder, 1)
    names = ["read the grader's files", "see or signal other processes", "the grader's environment"]
    return [probes.PROBES[name](seen) for name in names]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the probes are for Linux")
def test_a_probe_tells_what_it_got_hold_of(tmp_path):
    files, processes, words = run_ranks(outside_of_any_sandbox, 1, str(tmp_path))[0]
    assert str(tmp_path) in files
    assert processes.startswith("process")
    assert words == "a secret of the grader"


def hold(many: int):
    return sum(bytearray(many))


def write(many: int):
    with (Path(os.environ["TMPDIR"]) / "file").open("wb") as file:
        return file.write(bytes(many))


def add_up():
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor)
    return tensor.item(), os.getuid(), os.environ.get("HOME"), Path.cwd().as_posix()


@pytest.mark.slow
@needs_sandbox
def test_ranks_talk_to_each_other_inside(pool):
    first, second, third = pool.run(add_up, 3)
    assert first == second == third
    assert first[0] == 6.0
    assert (first[1] >= 64_000) == (FOUND.level is Level.FULL)
    assert first[2:] == ("/tmp", "/tmp")


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(("use", "much"), [(hold, 2048 * MIB), (write, 16 * MIB)])
def test_limits_are_met_with_an_error_and_not_with_silence(pool, use, much):
    assert pool.run(use, 1, MIB) is not None
    with pytest.raises(RankError) as caught:
        pool.run(use, 1, much)
    assert caught.value.reports[0].state in ("raised", "killed")
    assert pool.run(add_up, 2)[0][0] == 3.0
