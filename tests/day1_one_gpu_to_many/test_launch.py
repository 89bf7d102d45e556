"""Graded tests of lesson 1.4.

A launch is graded on what it does when something is wrong: which variable is named, who is reported missing, which rank
is accused, in seconds. Where something must be small or in one piece, it is counted: bytes of a comparison, writes of a
line, groups and their order. The hangs of the clinic are real: four ranks stand still, and the learner's tool has to
say why.
"""

from __future__ import annotations

import random
import socket
from itertools import product

import drivers_launch as drivers
import numpy as np
import pytest
import torch

from shardlab.grade import exercise

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "gpu0",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODELIST": "gpu[3-4]",
    "SLURM_JOB_ID": "7001",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1426980865",
}
WORKER = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def evaluate(lab, name: str, calls: list[tuple]) -> list:
    return lab.on_ranks(1).run(drivers.evaluate, name, calls)[0].value


def check_refused(what: str, got: object, *words: str) -> None:
    """`got` is a ValueError whose message has all `words`."""
    assert str(got).startswith("ValueError: "), f"{what} must raise ValueError, got {got!r}"
    absent = [word for word in words if word not in got]
    assert not absent, f"{what} raised {got!r}, which does not say {absent[0]!r}: name the variables and their values"


def free_port() -> int:
    """A port of this machine where nobody listens, and the next one is free too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue


# --- Who am I? --------------------------------------------------------------------------------------------------------


@exercise("1.4", "expand_nodelist", points=2)
def test_nodelists_are_spelled_out(lab, seed):
    start, rack = seed % 90 + 5, seed % 7
    cases = {
        "login": ["login"],
        "a,b2,c-d": ["a", "b2", "c-d"],
        "gpu[3-4]": ["gpu3", "gpu4"],
        "gpu[08-10,12],login": ["gpu08", "gpu09", "gpu10", "gpu12", "login"],
        "r[0-1]n[1-2]": ["r0n1", "r0n2", "r1n1", "r1n2"],
        "x[7].cluster,y": ["x7.cluster", "y"],
        f"n[{start:04d}-{start + 2:04d}],m{rack}": [*(f"n{start + i:04d}" for i in range(3)), f"m{rack}"],
    }
    for (nodelist, want), got in zip(
        cases.items(), evaluate(lab, "expand_nodelist", [(k,) for k in cases]), strict=True
    ):
        assert got == want, (
            f"expand_nodelist({nodelist!r}) is {got}, expected {want}: leading zeros stay, commas differ"
        )
    bad = ["", ",", "gpu1,", "gpu[1-", "gpu[a-b]", "gpu[]", "gpu[1,,2]", "gpu[-3]", "gpu[1-2-3]", "gpu[4-3]"]
    for nodelist, got in zip(bad, evaluate(lab, "expand_nodelist", [(b,) for b in bad]), strict=True):
        check_refused(f"expand_nodelist({nodelist!r})", got)
        assert "invalid literal" not in got, (
            f"expand_nodelist({nodelist!r}) raised {got!r}: say what is wrong with the list, not what int() cannot"
        )


@exercise("1.4", "find_launcher", points=3)
def test_the_launcher_is_found(lab):
    salloc = {"SLURM_NTASKS": "4", "SLURM_NODELIST": "gpu[3-4]", "SLURM_JOB_ID": "7001"}
    agrees = {**TORCHRUN, "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    batch = {**OPEN_MPI, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "gpu[3-4]"}
    cases = [
        ({}, "nobody"),
        ({"MASTER_ADDR": "gpu0", "MASTER_PORT": "29400"}, "nobody"),
        (salloc, "nobody"),
        (TORCHRUN, "torchrun"),
        (SLURM, "Slurm"),
        (OPEN_MPI, "Open MPI"),
        ({**SLURM, **TORCHRUN, **WORKER}, "torchrun"),
        ({**OPEN_MPI, **TORCHRUN, **WORKER}, "torchrun"),
        (agrees, "torchrun"),
        (batch, "Open MPI"),
        ({**batch, "SLURM_NTASKS": "8"}, "Open MPI"),
    ]
    found = lab.on_ranks(1).run(drivers.launchers, [env for env, _ in cases])[0].value
    for (env, want), got in zip(cases, found, strict=True):
        assert got == want, (
            f"the launcher in {env} is {got!r}, expected {want!r}. SLURM_NTASKS and MASTER_* alone start nobody; a "
            "worker of torchrun has TORCHELASTIC_RUN_ID, whatever started torchrun; ranks of mpirun in a batch script "
            "inherit the script's SLURM_PROCID=0."
        )


@exercise("1.4", "find_launcher", points=3)
def test_missing_variables_and_quarrels_are_named(lab):
    cases = [
        (without(env, name), [name])
        for env, names in (
            (TORCHRUN, ("RANK", "WORLD_SIZE", "LOCAL_RANK")),
            (SLURM, ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")),
            (OPEN_MPI, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")),
        )
        for name in names
    ]
    cases += [
        (without(TORCHRUN, "WORLD_SIZE", "LOCAL_RANK"), ["WORLD_SIZE", "LOCAL_RANK"]),
        ({**SLURM, **without(TORCHRUN, "WORLD_SIZE"), **WORKER}, ["WORLD_SIZE"]),
        ({**SLURM, **TORCHRUN}, ["RANK=5", "SLURM_PROCID=3", "SLURM_NTASKS=4", "unset RANK WORLD_SIZE LOCAL_RANK"]),
        ({**OPEN_MPI, **TORCHRUN}, ["RANK=5", "OMPI_COMM_WORLD_RANK=1", "unset RANK WORLD_SIZE LOCAL_RANK"]),
        ({**SLURM, **OPEN_MPI}, ["OMPI_COMM_WORLD_RANK=1", "SLURM_PROCID=3", "unset SLURM_PROCID SLURM_LOCALID"]),
        ({**SLURM, **TORCHRUN, "RANK": "3"}, ["WORLD_SIZE=8", "SLURM_NTASKS=4"]),
    ]
    found = lab.on_ranks(1).run(drivers.launchers, [env for env, _ in cases])[0].value
    for (env, words), got in zip(cases, found, strict=True):
        check_refused(f"find_launcher({env})", got, *words)


@exercise("1.4", "meeting_point", points=3)
def test_every_rank_comes_to_the_same_point(lab):
    step = {**SLURM, "SLURM_STEP_NODELIST": "gpu4", "SLURM_STEP_ID": "2"}
    chosen = {"MASTER_ADDR": "login", "MASTER_PORT": "1234"}
    cases = [
        ("TORCHRUN", TORCHRUN, ("gpu0", 29400)),
        ("SLURM", SLURM, ("gpu3", 26008)),
        ("SLURM", {**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, ("gpu3", 26008)),
        ("SLURM", step, ("gpu4", 26010)),
        ("SLURM", {**SLURM, "SLURM_JOB_NODELIST": "cpu[01-02]"}, ("cpu01", 26008)),
        ("SLURM", {**without(SLURM, "SLURM_JOB_ID"), "SLURM_JOBID": "7002"}, ("gpu3", 26016)),
        ("SLURM", {**SLURM, **chosen}, ("login", 1234)),
        ("SLURM", {**SLURM, "MASTER_PORT": "1234"}, ("gpu3", 1234)),
        ("SLURM", {**SLURM, "MASTER_ADDR": "login"}, ("login", 26008)),
        ("SLURM", {**without(SLURM, "SLURM_NODELIST", "SLURM_JOB_ID"), **chosen}, ("login", 1234)),
        ("OPEN_MPI", OPEN_MPI, ("127.0.0.1", 25579)),
        ("OPEN_MPI", {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4", **chosen}, ("login", 1234)),
        ("OPEN_MPI", {**without(OPEN_MPI, "PMIX_NAMESPACE"), "MASTER_PORT": "1234"}, ("127.0.0.1", 1234)),
    ]
    found = lab.on_ranks(1).run(drivers.meeting_points, [case[:2] for case in cases])[0].value
    for (launcher, env, want), got in zip(cases, found, strict=True):
        assert got == want, f"meeting_point for {launcher} with {env} is {got}, expected {want}"


@exercise("1.4", "meeting_point", points=2)
def test_two_jobs_do_not_meet(lab, seed):
    first = seed % 1_000_000
    jobs = {
        (job, step): {**SLURM, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        for job, step in product(range(first, first + 200), range(8))
    }
    found = lab.on_ranks(1).run(drivers.meeting_points, [("SLURM", env) for env in jobs.values()])[0].value
    places: dict = {}
    for job, place in zip(jobs, found, strict=True):
        assert place not in places, (
            f"(job, step) {places[place]} and {job} both meet at {place}: derive the port from both"
        )
        places[place] = job
        assert 1024 < place[1] < 32768, f"port {place[1]} of (job, step) {job} is not one of PORTS"


@exercise("1.4", "meeting_point", points=1)
def test_what_is_needed_to_meet_is_named(lab):
    cases = [
        ("TORCHRUN", without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR"),
        ("TORCHRUN", without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT"),
        ("TORCHRUN", {**TORCHRUN, "MASTER_PORT": "ssh"}, "MASTER_PORT"),
        ("SLURM", without(SLURM, "SLURM_NODELIST"), "SLURM_NODELIST"),
        ("SLURM", without(SLURM, "SLURM_JOB_ID"), "SLURM_JOB_ID"),
        ("OPEN_MPI", {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}, "MASTER_ADDR"),
        ("OPEN_MPI", without(OPEN_MPI, "PMIX_NAMESPACE"), "MASTER_PORT"),
    ]
    found = lab.on_ranks(1).run(drivers.meeting_points, [case[:2] for case in cases])[0].value
    for (launcher, env, name), got in zip(cases, found, strict=True):
        check_refused(f"meeting_point for {launcher} with {env}", got, name)


@exercise("1.4", "Environment.from_env", points=3)
def test_the_environment_is_read(lab):
    tasks = {"SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "2", "SLURM_NTASKS": "5", "SLURM_PROCID": "4"}
    cases = [
        ({}, ("python", 0, 1, 0, 1, "127.0.0.1", 0, 0, False)),
        (TORCHRUN, ("torchrun", 5, 8, 1, 4, "gpu0", 29400, 0, False)),
        ({**TORCHRUN, **WORKER}, ("torchrun", 5, 8, 1, 4, "gpu0", 29400, 2, True)),
        ({**SLURM, **TORCHRUN, **WORKER}, ("torchrun", 5, 8, 1, 4, "gpu0", 29400, 2, True)),
        (SLURM, ("Slurm", 3, 4, 1, 2, "gpu3", 26008, 0, False)),
        ({**SLURM, **tasks, "SLURM_LOCALID": "0"}, ("Slurm", 4, 5, 0, 1, "gpu3", 26008, 0, False)),
        (OPEN_MPI, ("Open MPI", 1, 2, 1, 2, "127.0.0.1", 25579, 0, False)),
    ]
    names = ("launcher", "rank", "world_size", "local_rank", "local_world_size", "master_address", "master_port")
    for (env, want), got in zip(
        cases, evaluate(lab, "Environment.from_env", [(env,) for env, _ in cases]), strict=True
    ):
        assert not isinstance(got, str), f"Environment.from_env({env}) raised {got}"
        for name, value in zip((*names, "attempt", "agent_has_store"), want, strict=True):
            assert getattr(got, name) == value, (
                f"Environment.from_env({env}).{name} is {getattr(got, name)!r}, expected {value!r}"
            )


@exercise("1.4", "Environment.from_env", points=3)
def test_contradictions_are_named(lab):
    cases = [
        ({**TORCHRUN, "RANK": "8"}, "RANK=8", "WORLD_SIZE=8"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK=-1"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"),
        (without(TORCHRUN, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE", "many"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "MASTER_PORT=0"),
        ({**SLURM, "SLURM_PROCID": "4"}, "SLURM_PROCID=4", "SLURM_NTASKS=4"),
        ({**SLURM, "SLURM_LOCALID": "2"}, "SLURM_LOCALID=2"),
        ({**TORCHRUN, **WORKER, "TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT", "x"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK=2"),
        ({**SLURM, **TORCHRUN}, "SLURM_PROCID=3", "RANK=5"),
        (without(SLURM, "SLURM_NODELIST"), "SLURM_NODELIST"),
    ]
    found = evaluate(lab, "Environment.from_env", [(env,) for env, *_ in cases])
    for (env, *words), got in zip(cases, found, strict=True):
        check_refused(f"Environment.from_env({env})", got, *words)


# --- Joining the others -----------------------------------------------------------------------------------------------


@exercise("1.4", "meet", points=2)
def test_a_new_attempt_finds_no_old_notes(lab):
    for result in lab.on_ranks(3).run(drivers.notes_of_two_attempts, free_port()):
        assert result.value == ["from attempt 0", "nothing"], (
            f"rank 0 left a note in the store of attempt 0. Rank {result.rank} finds in the stores of attempts 0 and 1 "
            f"{result.value}. All ranks of one attempt share a store, and the next attempt must not see what the last "
            "one left there: addresses of processes that are gone."
        )


@exercise("1.4", "meet", points=3)
def test_who_did_not_come_is_named(lab):
    port = free_port()
    for result in lab.on_ranks(2).run(drivers.meet_in_vain, port, 4, 1.0, per_rank=[0, 1]):
        error, seconds = result.value
        what = f"meet of 4 ranks at port {port}, of which two come: rank {result.rank}"
        assert error.startswith("TimeoutError"), (
            f"{what} must raise TimeoutError, got {error!r}. Rank 0 came first and gives up first: the store has to "
            "stay until the other one has been told."
        )
        for words in ("2 of 4", f"127.0.0.1:{port}", "2, 3"):
            assert words in error, f"{what} raised {error!r}, which does not say {words!r}"
        assert seconds < 12, f"{what} gave up after {seconds:.1f} s, with a timeout of 1 s"


@exercise("1.4", "meet", points=2)
def test_a_store_that_nobody_opens_or_another_has(lab):
    port = free_port()
    error, seconds = lab.on_ranks(1).run(drivers.meet_in_vain, port, 2, 1.0, per_rank=[1])[0].value
    what = f"meet of rank 1 of 2 at port {port}, where rank 0 never opens a store,"
    assert error.startswith("TimeoutError"), f"{what} must raise TimeoutError, got {error!r}"
    assert f"127.0.0.1:{port}" in error and "1 of 2" in error, f"{what} raised {error!r}: say where, and 1 of 2"
    assert seconds < 8, f"{what} gave up after {seconds:.1f} s, with a timeout of 1 s"
    error, port = lab.on_ranks(1).run(drivers.meet_at_a_taken_port)[0].value
    assert error.startswith("ConnectionError") and str(port) in error, (
        f"meet at port {port}, where another program listens, must raise ConnectionError with the port, got {error!r}"
    )


@exercise("1.4", "meet", points=1)
def test_rank_0_goes_while_others_wait(lab):
    error, _ = lab.on_ranks(2).run(drivers.meet_a_host, free_port(), 0.0, 10.0, True)[1].value
    assert error.startswith("ConnectionError"), (
        f"rank 0 has opened the store and ended while rank 1 waits for rank 2: rank 1 must raise ConnectionError, got "
        f"{error!r}"
    )


@exercise("1.4", "meet", points=1)
def test_the_timeout_is_for_all_of_it(lab):
    (_, there), (error, gave_up) = (
        result.value for result in lab.on_ranks(2).run(drivers.meet_a_host, free_port(), 2.0, 3.0, False)
    )
    assert error.startswith("TimeoutError"), f"meet of rank 1, to whom nobody else comes, gives {error!r}"
    assert gave_up - there < 2, (
        f"meet with a timeout of 3 s, where the store opens after 2 s, waited {gave_up - there:.1f} s for the other "
        "ranks: what it took to find the store is part of the time"
    )


@exercise("1.4", "connect", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_join_and_leave(lab, ranks):
    port, names = free_port(), ", ".join(drivers.RANK_VARIABLES)
    for result in lab.on_ranks(ranks).run(drivers.connected, port):
        rank, seen = str(result.rank), result.value
        assert (seen["rank"], seen["ranks"]) == (result.rank, ranks), (
            f"rank {rank} became {seen['rank']} of {seen['ranks']}"
        )
        assert seen["total"].eq(ranks).all(), (
            f"rank {rank}: an all-reduce of ones over {ranks} ranks is {seen['total']}"
        )
        want = [rank, str(ranks), rank, str(ranks), "127.0.0.1", str(port)]
        assert seen["variables"] == want, (
            f"inside connect, rank {rank} has {names} {seen['variables']} in os.environ, expected {want}: libraries "
            "look there, also under srun and mpirun"
        )
        assert not seen["after"], f"rank {rank} still has a process group after the block"
        assert seen["variables after"] == [[None] * 5 + ["1234"]] * 3, (
            f"after connect, after a block that raised and after a meet in vain, rank {rank} has {names} "
            f"{seen['variables after']} in os.environ, expected what was there before: MASTER_PORT 1234 and no other"
        )
        assert seen["after an error"] is False, f"rank {rank} still has a process group after a block that raised"


@exercise("1.4", "connect", points=2)
def test_no_collective_waits_for_ever(lab):
    error, seconds = lab.on_ranks(2).run(drivers.wait_alone, free_port(), 1.5)[0].value
    assert "Error" in error and seconds < 12, (
        f"after connect(timeout=1.5), rank 0 waited {seconds:.1f} s in an all-reduce that rank 1 never made, and got "
        f"{error!r}: give the timeout to init_process_group, whose own is 30 minutes"
    )


@exercise("1.4", "connect", points=1)
def test_a_timeout_is_positive(lab):
    error = lab.on_ranks(1).run(drivers.connect_with, 0.0)[0].value
    check_refused("connect with timeout 0", error)


@exercise("1.4", "make_groups", points=4)
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [(4, {"dp": 2, "tp": 2}), (3, {"dp": 3}), (6, {"dp": 3, "tp": 2}), (4, {"pp": 2, "dp": 1, "tp": 2})],
    ids=["2 x 2", "3", "3 x 2", "2 x 1 x 2"],
)
def test_all_ranks_make_all_groups_in_one_order(lab, ranks, layout):
    grid = np.arange(ranks).reshape(tuple(layout.values()))
    lines = {
        name: np.moveaxis(grid, axis, -1).reshape(-1, size).tolist() for axis, (name, size) in enumerate(layout.items())
    }
    want = [members for name in layout for members in lines[name]]
    for result in lab.on_ranks(ranks).run(drivers.grid, layout, 7.0):
        where = f"make_groups({layout}) on {ranks} ranks: rank {result.rank}"
        made = [members for members, _ in result.value["made"]]
        assert made == want, (
            f"{where} made the groups {made}, expected {want}: every rank makes all of them, in this order"
        )
        limits = {limit for _, limit in result.value["made"]}
        assert limits == {7.0}, f"{where} gave new_group the timeouts {limits}, expected 7 s: it takes over no other's"
        mine = {name: next(line for line in lines[name] if result.rank in line) for name in layout}
        assert result.value["mine"] == mine, f"{where} has the groups {result.value['mine']}, expected {mine}"
        sums = {name: float(sum(line)) for name, line in mine.items()}
        assert result.value["sums"] == sums, (
            f"{where}: sums of ranks over its groups are {result.value['sums']}, not {sums}"
        )


@exercise("1.4", "make_groups", points=1)
def test_a_layout_that_does_not_fit_is_refused(lab):
    layouts = [{"dp": 2, "tp": 3}, {"dp": 8}, {}, {"dp": 4, "tp": 0}, {"dp": -2, "tp": -2}]
    for result in lab.on_ranks(4).run(drivers.refused_grids, layouts):
        for layout, (error, made) in zip(layouts, result.value, strict=True):
            check_refused(f"make_groups({layout}) on 4 ranks", error)
            assert made == 0, f"make_groups({layout}) made {made} groups before it raised: the other ranks wait in them"


# --- Telling ranks apart ----------------------------------------------------------------------------------------------


@exercise("1.4", "write_lines", points=3)
def test_a_line_is_one_write(lab, seed):
    long = "".join(chr(0x4E00 + (seed + i) % 5000) for i in range(3000))  # 9,000 bytes
    cases = [
        ("[rank 1] ", "one"),
        ("[rank 2] ", "two\nlines"),
        ("> ", ""),
        ("", "a\n\nb"),
        ("[rank 30] ", f"é{long}\nend"),
        ("[rank 4] ", "a broken \ud800 name"),
    ]
    for (prefix, text), writes in zip(cases, lab.on_ranks(1).run(drivers.written, cases)[0].value, strict=True):
        where = f"write_lines({prefix!r}, {text[:20]!r} ...)"
        for write in writes:
            assert write.count(b"\n") == 1 and write.endswith(b"\n"), (
                f"{where} made a write of {write[:60]!r}: each call of os.write has to be one whole line with its end, "
                "or another rank's text comes in between"
            )
            assert len(write) <= 4096, f"{where} made a write of {len(write)} bytes, the kernel keeps 4,096 together"
            assert write.decode(errors="replace").startswith(prefix), (
                f"{where} wrote {write[:60]!r}, without the prefix"
            )
            assert "\ufffd" not in write.decode(errors="replace"), f"{where} cut a letter in two: {write[-30:]!r}"
        pieces = [write.decode()[len(prefix) : -1] for write in writes]
        assert "".join(pieces) == text.replace("\n", "").replace("\ud800", "?"), (
            f"{where} wrote {len(''.join(pieces))} characters of {len(text)}"
        )
        wanted = len(text.split("\n"))
        enough = len(writes) == wanted if len(text) < 100 else len(writes) <= wanted + 9_000 // 400
        assert enough, f"{where} made {len(writes)} writes for {wanted} lines"


@exercise("1.4", "write_lines", points=1)
def test_a_prefix_leaves_room(lab):
    error = lab.on_ranks(1).run(drivers.write_nowhere, "-" * 4092, "\N{GRINNING FACE}")[0].value
    check_refused("write_lines with a prefix of 4,092 letters", error)


@exercise("1.4", "rank_logger", points=2)
def test_a_message_is_logged_once(lab):
    for result in lab.on_ranks(2).run(drivers.logged):
        texts = ("train: step 1", "train: two", "lines", "data: another")
        lines = [f"[rank {result.rank}] {text}\n".encode() for text in texts]
        assert result.value == lines, (
            f"rank {result.rank} logged an info, a debug, a warning of two lines and an info, under a root logger: "
            f"stderr got {result.value}, expected {lines}. Ask twice and there is still one handler; the root logger "
            "must not repeat it."
        )


@exercise("1.4", "rank_logger", points=2)
def test_lines_of_four_ranks_stay_whole(lab, tmp_path):
    path, steps = tmp_path / "log", 100
    lab.on_ranks(4).run(drivers.share_a_file, str(path), steps)
    texts = [text for step in range(steps) for text in (f"train: step {step} begins", f"step {step} ends {'.' * 100}")]
    want = [f"[rank {rank}] {text}" for rank in range(4) for text in texts]
    got = path.read_text().splitlines()
    torn = [line for line in got if line not in set(want)]
    assert not torn, f"4 ranks logged to one file, and a line became {torn[0]!r}"
    assert sorted(got) == sorted(want), f"4 ranks logged {len(want)} lines to one file, {len(got)} are there"


# --- Equal or different, on purpose -----------------------------------------------------------------------------------


@exercise("1.4", "seed_everything", points=3)
def test_equal_or_different_as_asked(lab, seed):
    seed %= 10_000
    calls = [(seed, 0), (seed, 3), (seed + 1, 3), (seed, 0)]
    same, other_rank, other_seed, again = lab.on_ranks(1).run(drivers.draws, calls)[0].value
    for library, number in same.items():
        where = f"{library} after seed_everything({seed}, rank)"
        assert other_rank[library] == number, f"{where} draws {number} on rank 0 and {other_rank[library]} on rank 3"
        assert again[library] == number, f"{where} draws {number}, and {again[library]} the second time"
        assert other_seed[library] != number, f"{where} draws the same number with seed {seed + 1}"


@exercise("1.4", "seed_everything", points=3)
def test_ranks_and_runs_share_no_numbers(lab, seed):
    first = seed % 10_000
    calls = [(first + run, rank, True) for run in range(8) for rank in range(8)] + [
        (first + run, 0) for run in range(8)
    ]
    drawn = lab.on_ranks(1).run(drivers.draws, calls)[0].value
    for library in drawn[0]:
        seen: dict = {}
        for call, numbers in zip(calls, drawn, strict=True):
            twin = seen.setdefault(numbers[library], call)
            assert twin == call, (
                f"{library} draws the same numbers after seed_everything{twin} and {call}: seed and rank need to be "
                "mixed, not added, and a rank's own numbers must not be those that all ranks share"
            )


@exercise("1.4", "seed_everything", points=1)
def test_negative_seeds_are_refused(lab):
    for arguments, got in zip(calls := [(-1, 0), (0, -1, True)], evaluate(lab, "seed_everything", calls), strict=True):
        check_refused(f"seed_everything{arguments}", got)


def some_tensors(seed: int) -> dict[str, torch.Tensor]:
    """No two are the same; some differ in order, one bit, dtype or shape alone."""
    torch.manual_seed(seed)
    plain = torch.randn(6, 4)
    swapped = plain.clone()
    swapped[[0, 1]] = plain[[1, 0]]
    bit = plain.clone()
    bit.view(torch.int32)[5, 3] ^= 1
    return {
        "numbers": plain,
        "two rows swapped": swapped,
        "one bit flipped": bit,
        "another shape": plain.reshape(4, 6),
        "another number of dimensions": plain.flatten(),
        "the same bytes as int32": plain.view(torch.int32),
        "bfloat16": plain.bfloat16(),
        "NaN": torch.full((6, 4), torch.nan),
        "zeros": torch.zeros(6, 4),
        "negative zeros": -torch.zeros(6, 4),
        "a scalar": torch.tensor(1.0),
        "nothing": torch.zeros(0),
        "nothing, of another shape": torch.zeros(0, 3),
        "booleans": torch.ones(6, 4, dtype=torch.bool),
        "complex": torch.full((3,), 1 + 2j),
        "complex, as a view that conjugates": torch.full((3,), 1 + 2j).conj(),
        "a view that negates": torch.full((3,), 1 + 2j).conj().imag,
        "many dimensions": torch.ones([1] * 30),
    }


@exercise("1.4", "digest", points=3)
def test_a_digest_stands_for_its_tensor(lab, seed):
    tensors = some_tensors(seed)
    (first, second) = lab.on_ranks(2).run(drivers.digests, list(tensors.values()))
    seen: dict = {}
    names = [name for name, tensor in tensors.items() for _ in range(1 + (tensor.dim() == 2))]
    for name, got, elsewhere in zip(names, first.value, second.value, strict=True):
        assert got.dtype == torch.uint8 and got.shape == (64,), (
            f"digest of {name} is {got.dtype} of {list(got.shape)}, not 64 bytes"
        )
        assert torch.equal(got, elsewhere), f"digest of {name} differs between two processes that have the same tensor"
        twin = seen.setdefault(bytes(got.tolist()), name)
        assert twin == name, f"digest of {twin!r} and of {name!r} are the same, the tensors are not"
    assert len(seen) == len(tensors), "digest of a matrix depends on how it lies in memory, not only on its elements"
    kind = bytes(first.value[0].tolist())[16:]
    assert kind == b"float32[6, 4]".ljust(48, b"\0"), f"the last 48 bytes of a digest say dtype and shape, got {kind!r}"


@exercise("1.4", "assert_same_on_all_ranks", points=3)
def test_ranks_that_differ_are_named_on_every_rank(lab, seed):
    tensors = some_tensors(seed)
    odd = seed % 4
    pairs = [
        ("numbers", "numbers"),
        ("NaN", "NaN"),
        ("nothing", "nothing"),
        *(("numbers", name) for name in list(tensors)[1:7]),
    ]
    pairs += [("zeros", "negative zeros"), ("NaN", "numbers")]
    copies = [[tensors[pair[rank == odd]] for pair in pairs] for rank in range(4)]
    rest = ", ".join(str(rank) for rank in range(4) if rank != odd)
    for result in lab.on_ranks(4).run(drivers.compare_copies, None, per_rank=copies):
        for i, ((right, wrong), said) in enumerate(zip(pairs, result.value, strict=True)):
            where = f"assert_same_on_all_ranks, {right} on three ranks and {wrong} on rank {odd}: rank {result.rank}"
            if right == wrong:
                assert not said, f"{where} raised {said}, though all have the same bits"
                continue
            assert said.startswith("AssertionError"), f"{where} must raise AssertionError, got {said or 'no error'!r}"
            for words in (f"copy {i}", f"ranks {rest}", f"rank {odd}"):
                assert words in said, f"{where} raised {said!r}, which does not say {words!r}"
            assert said.index(f"ranks {rest}") < said.index(f"rank {odd}"), (
                f"{where}: most frequent first, got {said!r}"
            )


@exercise("1.4", "assert_same_on_all_ranks", points=3)
@pytest.mark.parametrize("numel", [1, 250_000])
def test_what_travels_does_not_grow(lab, numel):
    copies = [[torch.ones(numel)]] * 4
    for result in lab.on_ranks(4).run(drivers.compare_copies, None, per_rank=copies):
        sent = result.traffic.sent_bytes()
        assert 0 < sent <= 3 * 64, (
            f"assert_same_on_all_ranks of {4 * numel:,} bytes on 4 ranks: rank {result.rank} sent {sent:,} bytes, a "
            f"digest to three others is {3 * 64}"
        )


@exercise("1.4", "assert_same_on_all_ranks", points=1)
def test_only_the_group_compares(lab):
    copies = [[torch.tensor([float(rank == 3)])] for rank in range(4)]  # rank 3 differs, and rank 0 is not in the group
    for result in lab.on_ranks(4).run(drivers.compare_copies, [1, 2, 3], per_rank=copies):
        if result.rank:
            (said,) = result.value
            assert "ranks 1, 2 " in said and "rank 3 " in said, (
                f"in the group of the ranks 1, 2, 3, rank 3 has another tensor; rank {result.rank} says {said!r}: name "
                "global ranks, get_process_group_ranks has them"
            )


# --- The detective ----------------------------------------------------------------------------------------------------

WORLD = (0, 1, 2, 3)


def history(seed: int, calls: int) -> list[list[drivers.Event]]:
    """What 4 ranks, as 2 x 2, call in a program where all is well."""
    random_number = random.Random(seed)
    groups = [WORLD, (0, 1), (2, 3), (0, 2), (1, 3)]
    made: list[list[drivers.Event]] = [[] for _ in WORLD]
    for number in range(calls):
        group = WORLD if number % 4 == 0 else random_number.choice(groups)
        event = (random_number.choice(["all_reduce", "broadcast", "all_gather"]), group, (random_number.randint(1, 3),))
        for rank in group:
            made[rank].append(event)
    return made


def behind(made: list[list[drivers.Event]], late: int) -> list[list[drivers.Event]]:
    """The same, when one rank has made only 30 of its calls."""
    return [calls[:30] if rank == late else calls for rank, calls in enumerate(made)]


def examine(lab, name: str, cases: list) -> list:
    return lab.on_ranks(1).run(drivers.inspect_calls, name, cases)[0].value


A, B, C = ("all_reduce", WORLD, (4,)), ("broadcast", WORLD, (4,)), ("all_reduce", WORLD, (5,))
LEFT, RIGHT, FRONT, BACK = (("all_reduce", group, (4,)) for group in ((0, 1), (2, 3), (0, 2), (1, 3)))
EXITS = [("exit", (rank,), ()) for rank in WORLD]


@exercise("1.4", "replay", points=3)
def test_the_replay_stops_where_the_ranks_do(lab, seed):
    cases = [
        ("nothing", [[], [], [], []], [0, 0, 0, 0]),
        ("all is well", [[A, B]] * 4, [2, 2, 2, 2]),
        ("rank 1 calls something else", [[A, B], [A, C], [A, B], [A, B]], [1, 1, 1, 1]),
        ("rank 2 is behind", [[A, B], [A, B], [A], [A, B]], [1, 1, 1, 1]),
        ("pairs", [[LEFT, A], [LEFT, A], [RIGHT], [RIGHT, A]], [1, 1, 1, 1]),
        ("a pair is not held up by others", [[LEFT, LEFT, A], [LEFT, LEFT], [B], [B]], [2, 2, 0, 0]),
        ("two dimensions", [[LEFT, FRONT], [LEFT, BACK], [RIGHT, FRONT], [RIGHT, BACK]], [2, 2, 2, 2]),
        ("a circle", [[A, LEFT], [LEFT, A], [A], [A]], [0, 0, 0, 0]),
        ("an all-to-all of different blocks", [[("all_to_all", WORLD, (rank,))] for rank in WORLD], [1, 1, 1, 1]),
        ("rank 3 has left", [[A], [A], [A], [EXITS[3]]], [0, 0, 0, 1]),
        *(
            (f"200 calls, seed {seed + i}", made := history(seed + i, 200), [len(calls) for calls in made])
            for i in range(3)
        ),
    ]
    for (what, case, want), got in zip(cases, examine(lab, "replay", [case for _, case, _ in cases]), strict=True):
        shown = f" ({case})" if len(case[0]) < 5 else ""
        assert got == want, (
            f"replay of {what}{shown} is {got}, expected {want}: a call goes through when its whole group is there"
        )


def check_mismatch(what: str, got: object, want: tuple | None, case: list) -> None:
    """`want`: rank, index, and the others."""
    shown = f"first_mismatch of {what}" + (f" ({case})" if len(case[0]) < 5 else "")
    if want is None:
        assert got is None, f"{shown} accuses {got}: nobody called anything else; who is behind may still come"
        return
    assert got is not None and not isinstance(got, str), f"{shown} is {got!r}, expected rank {want[0]}"
    rank, index, others = want
    assert (got.rank, got.index) == (rank, index), (
        f"{shown} names rank {got.rank}, index {got.index}; expected rank {rank}, index {index}"
    )
    assert tuple(got.others) == others, f"{shown}: the others are {got.others}, expected {others}"
    call, expected = case[rank][index], next(e for e in case[others[0]][got.expected.line :])
    assert (got.call.op, got.call.ranks, got.call.shape, got.call.line) == (*call, index), (
        f"{shown}: call is {got.call}"
    )
    assert (got.expected.op, got.expected.shape) == (expected[0], expected[2]), f"{shown}: expected is {got.expected}"


@exercise("1.4", "first_mismatch", points=4)
def test_the_odd_one_out_is_named(lab):
    pair = ("all_reduce", (0, 1), (4,))
    pairs = [("new_group", WORLD, members) for members in ((0, 1), (2, 3))]
    cases = [
        ("all is well", [[A, B]] * 4, None),
        ("nothing", [[]] * 4, None),
        ("rank 1 skips A", [[A, B], [B], [A, B], [A, B]], (1, 0, (0, 2, 3))),
        ("rank 0 is the odd one", [[B, A], [A, B], [A, B], [A, B]], (0, 0, (1, 2, 3))),
        ("rank 3 has another shape", [[A, A], [A, A], [A, A], [A, C]], (3, 1, (0, 1, 2))),
        ("two against two", [[A], [B], [A], [B]], (1, 0, (0, 2))),
        ("one against one", [[pair], [("broadcast", (0, 1), (4,))]], (1, 0, (0,))),
        ("a late rank and an odd one", [[A, B], [A], [A, C], [A, B]], (2, 1, (0, 3))),
        ("rank 2 is behind", [[A, B], [A, B], [A], [A, B]], None),
        ("rank 2 has not begun", [[A], [A], [], [A]], None),
        ("rank 2 has left", [[A, B], [A, B], [A, EXITS[2]], [A, B]], (2, 1, (0, 1, 3))),
        ("all have left", [[A, exit] for exit in EXITS], None),
        ("one has left, another is behind", [[A], [EXITS[1]], [], [A]], (1, 0, (0, 3))),
        ("an all-to-all of different blocks", [[("all_to_all", WORLD, (rank,))] for rank in WORLD], None),
        ("groups in another order", [pairs, pairs, pairs[::-1], pairs], (2, 0, (0, 1, 3))),
        ("two are through, and rank 1 keeps rank 0 waiting", [[LEFT], [], [EXITS[2]], [EXITS[3]]], None),
    ]
    for (what, case, want), got in zip(
        cases, examine(lab, "first_mismatch", [case for _, case, _ in cases]), strict=True
    ):
        check_mismatch(what, got, want, case)


@exercise("1.4", "first_mismatch", points=3)
def test_groups_are_told_apart(lab, seed):
    other = ("broadcast", (2, 3), (4,))
    cases = [
        ("only a pair disagrees", [[LEFT, A], [LEFT, A], [RIGHT, A], [other, A]], (3, 0, (2,))),
        ("a circle: rank 1 goes to its pair first", [[A, LEFT], [LEFT, A], [A], [A]], (1, 0, (0, 2, 3))),
        ("waiting for one who waits for a late one", [[LEFT, FRONT], [LEFT], [RIGHT, FRONT], []], None),
        ("as many calls, but of other groups", [[LEFT, FRONT], [LEFT, BACK], [RIGHT, FRONT], [RIGHT, BACK]], None),
        ("a pair is behind, the other is done", [[LEFT, A], [LEFT, A], [RIGHT], []], None),
    ]
    for i in range(4):
        made = history(seed + i, 100)
        rank = (seed + i) % 4
        index = next(index for index, call in enumerate(made[rank]) if index > 20 and call[1] == WORLD)
        op, group, shape = made[rank][index]
        made[rank] = [*made[rank][:index], (op, group, (*shape, 9)), *made[rank][index + 1 :]]
        cases.append(
            (f"100 calls, another shape at rank {rank}", made, (rank, index, tuple(r for r in WORLD if r != rank)))
        )
        cases.append((f"100 calls, rank {rank} is behind", behind(history(seed + i, 100), rank), None))
    for (what, case, want), got in zip(
        cases, examine(lab, "first_mismatch", [case for _, case, _ in cases]), strict=True
    ):
        check_mismatch(what, got, want, case)


@exercise("1.4", "slow_ranks", points=3)
def test_slow_is_who_is_waited_for_and_waits_for_nobody(lab, seed):
    cases = [
        ("all is well", [[A, B]] * 4, []),
        ("rank 2 is behind", [[A, B], [A, B], [A], [A, B]], [(2, (0, 1, 3), 1)]),
        ("two are behind", [[A], [], [A], []], [(1, (0, 2), 0), (3, (0, 2), 0)]),
        ("fewer calls, but nobody waits", [[LEFT, LEFT], [LEFT, LEFT], [RIGHT], [RIGHT]], []),
        ("waiting for one who waits", [[LEFT, FRONT], [LEFT], [RIGHT, FRONT], []], [(3, (2,), 0)]),
        ("rank 2 has left", [[A, B], [A, B], [A, EXITS[2]], [A, B]], []),
        ("one has left, another is behind", [[A], [EXITS[1]], [], [A]], [(2, (0, 3), 0)]),
        ("a circle", [[A, LEFT], [LEFT, A], [A], [A]], []),
        ("two are through", [[LEFT], [], [EXITS[2]], [EXITS[3]]], [(1, (0,), 0)]),
    ]
    made = history(seed, 100)
    late = seed % 4
    cases.append(("100 calls", behind(made, late), late))
    for (what, case, want), got in zip(cases, examine(lab, "slow_ranks", [case for _, case, _ in cases]), strict=True):
        found = [(slow.rank, tuple(slow.waiting), slow.call.line) for slow in got]
        if isinstance(want, int):
            found, want = [slow.rank for slow in got], [want]
        shown = f" ({case})" if len(case[0]) < 5 else ""
        assert found == want, (
            f"slow_ranks of {what}{shown} is {found}, expected {want}, as (rank, who waits, index of the call in which "
            "the first of them does)"
        )


# --- The clinic: real hangs -------------------------------------------------------------------------------------------

DEADLINE = 0.5

FAULTS = {  # what the culprit calls, and what the others wait in
    "skip": ("broadcast", "dist.broadcast(weights, 0)", "dist.all_reduce(loss)"),
    "leave": ("exit", "with watch:", "dist.all_reduce(loss)"),
    "shape": ("all_reduce", "dist.all_reduce(loss[:1] if odd else loss)", "dist.all_reduce(loss[:1] if odd else loss)"),
    "dtype": ("all_reduce",) + ("dist.all_reduce(loss.double() if odd else loss)",) * 2,
    "order": ("broadcast", "call(loss, 0)", "call(loss, 0)"),
    "groups": ("new_group",) + ("dist.new_group(members, timeout=timedelta(seconds=20))",) * 2,
    "circle": ("all_reduce",) + ("dist.all_reduce(loss, group=group)",) * 2,
}


@exercise("1.4", "first_mismatch", points=7)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_real_hang_is_explained_in_seconds(lab, seed, fault):
    culprit = seed % 4
    op, line, expected = FAULTS[fault]
    for result in lab.on_ranks(4).run(drivers.clinic, fault, culprit, DEADLINE):
        where = f"the hang {fault!r}, by rank {culprit}: rank {result.rank}'s watch"
        seen = result.value
        assert seen["in time"] and seen["mismatch"], f"{where} found nothing in {seen['seconds']:.1f} s"
        rank, called, _, file = seen["mismatch"]
        assert rank == culprit, f"{where} accuses rank {rank}"
        assert called == op, f"{where} says that it called {called}, it called {op}"
        assert file.endswith("drivers_launch.py") and seen["line"] == line, (
            f"{where} points to {file}: {seen['line']!r}"
        )
        assert seen["expected line"] == expected, f"{where} says that the others wait in {seen['expected line']!r}"


@exercise("1.4", "slow_ranks", points=2)
def test_a_slow_rank_is_no_hang(lab, seed):
    culprit = seed % 4
    results = lab.on_ranks(4).run(drivers.clinic, "slow", culprit, DEADLINE)
    for result in results:
        assert result.value["mismatch"] is None, (
            f"rank {culprit} is slow; rank {result.rank} accuses {result.value['mismatch']}"
        )
        assert result.value["in time"], f"rank {culprit} is slow; rank {result.rank} had not ended after 15 s"
    said = {slow for result in results for slow in result.value["slow"]}
    assert said == {(culprit, "time.sleep(SLOW_SECONDS)")}, (
        f"rank {culprit} sleeps while the others wait: reported were {said}, expected this rank and where it sleeps"
    )


@exercise("1.4", "slow_ranks", points=1)
def test_nothing_is_said_when_all_is_well(lab):
    for result in lab.on_ranks(4).run(drivers.clinic, "none", 0, 5.0):
        assert result.value["in time"] and not result.value["mismatch"] and not result.value["slow"], result.value
