"""The board of calls: what is on it, when the finders are asked, and who speaks."""

import logging
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardlab.observe import Call, HangWatch
from shardlab.ranks import run_ranks


@dataclass
class Odd:
    """What a finder of this test returns: rank 1 made another call than the others."""

    others: tuple[int, ...]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def in_a_thread(function) -> None:
    threading.Thread(target=function, daemon=True).start()


def watched(shape_of_rank_1: int) -> dict:
    """An all-reduce, then one in which rank 1 may have another shape."""
    over, kept = threading.Event(), Kept()
    log = logging.getLogger("kit watch")
    log.addHandler(kept)
    seen = []

    def find(calls: list[list[Call]]) -> Odd | None:
        seen.append([[call.op for call in made if call.op != "exit"] for made in calls])  # rank 1 may know it first
        return Odd((0, 2)) if shape_of_rank_1 != 4 else None

    watch = HangWatch(find, lambda calls: [], log, 0.4, lambda mismatch: over.set())

    def program() -> None:
        with watch:
            dist.all_reduce(torch.ones(4))
            dist.new_subgroups_by_enumeration([[0, 1], [2]])  # finds new_group where torch itself looks it up
            dist.new_group([0, 1])
            dist.all_reduce(torch.ones(shape_of_rank_1 if dist.get_rank() == 1 else 4))
        over.set()

    in_a_thread(program)
    in_time = over.wait(10)
    return {"in time": in_time, "found": watch.mismatch is not None, "log": kept.messages, "seen": seen[-1:]}


def test_a_rank_with_another_call_is_held_up_and_one_of_the_others_says_so():
    results = run_ranks(watched, 3, 40_000)  # gloo would abort the process
    assert all(result["in time"] and result["found"] for result in results)
    assert [len(result["log"]) for result in results] == [1, 0, 0]
    assert results[0]["seen"] == [[["all_reduce", *["new_group"] * 3, "all_reduce"]] * 3]


def test_nobody_is_asked_when_nothing_stands_still():
    assert all(
        result == {"in time": True, "found": False, "log": [], "seen": []} for result in run_ranks(watched, 3, 4)
    )


def lose_the_board() -> dict:
    """An error in the block, after the store has gone with the rank that kept it."""
    dist.destroy_process_group()
    kept = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", kept[0].port), rank=0, world_size=1)
    watch = HangWatch(lambda calls: None, lambda calls: [], logging.getLogger("kit watch"), 60)
    try:
        with watch:
            dist.all_reduce(torch.ones(1))
            kept.clear()
            raise KeyError("the cause")
    except Exception as error:
        return {"error": repr(error), "watching": any("_watch" in thread.name for thread in threading.enumerate())}


def test_an_error_is_not_hidden_by_a_board_that_is_gone():
    (seen,) = run_ranks(lose_the_board, 1)
    assert seen == {"error": "KeyError('the cause')", "watching": False}


def test_the_kind_of_a_call_is_what_ranks_have_to_agree_on():
    call = Call.event("all_reduce", (0, 1), (4,), "float32", "train.py", 7)
    assert call.kind == Call.event("all_reduce", (0, 1), (4,), "float32", "other.py", 9).kind
    assert call.kind != Call.event("all_reduce", (0, 1), (5,), "float32", "train.py", 7).kind
    blocks = [Call.event("all_to_all", (0, 1), (length,), "float32", "train.py", 7) for length in (1, 2)]
    assert blocks[0].kind == blocks[1].kind
