"""What goes into the ranks and what comes back."""

import math
import os
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab.ranks import RankPool, run_ranks
from shardlab.ranks.wire import UnsendableError, decode, encode


def all_ranks_sum(value: float, factor: float = 1.0) -> float:
    tensor = torch.tensor(value * factor)
    dist.all_reduce(tensor)
    return tensor.item()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_results_come_in_rank_order(ranks):
    assert run_ranks(dist.get_rank, ranks) == list(range(ranks))


def test_per_rank_argument_comes_before_the_shared_ones():
    assert run_ranks(all_ranks_sum, 3, 2.0, per_rank=[1.0, 2.0, 3.0]) == [12.0] * 3


def test_closures_and_lambdas_travel():
    offset = 7
    assert run_ranks(lambda value: value + offset, 2, per_rank=[0, 1]) == [7, 8]


def test_functions_that_use_torch_and_the_word_ops_travel():
    """cloudpickle takes every attribute called ops for the module torch.ops, which does not pickle."""
    exec(
        code := "def operators():\n    return torch.ones(1).sum().item(), hasattr(torch, 'ops')",
        scope := {"torch": torch},
    )
    assert code and run_ranks(scope["operators"], 1) == [(1.0, True)]


def test_ranks_see_the_callers_environment_and_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SHARDLAB_TEST_VALUE", "seen")
    monkeypatch.chdir(tmp_path)
    assert run_ranks(lambda: (os.environ["SHARDLAB_TEST_VALUE"], str(Path.cwd())), 1) == [("seen", str(tmp_path))]


def test_a_pools_path_comes_first(tmp_path):
    (tmp_path / "lesson_module.py").write_text("VALUE = 'mine'\n")

    def load():
        import lesson_module

        return lesson_module.VALUE

    with RankPool(path=[tmp_path]) as pool:
        assert pool.run(load, 1) == ["mine"]
        (tmp_path / "lesson_module.py").write_text("VALUE = 'edited meanwhile'\n")
        assert pool.run(load, 1) == ["edited meanwhile"], "fresh ranks import the newest version"


def test_output_is_shown_in_rank_order_with_a_prefix(capsys):
    def speak():
        for rank in reversed(range(3)):  # rank 2 speaks first
            if dist.get_rank() == rank:
                print(f"line of {rank}")
            dist.barrier()

    run_ranks(speak, 3)
    assert capsys.readouterr().out.splitlines() == [f"[rank {rank}] line of {rank}" for rank in range(3)]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_start_methods_agree(start_method):
    with RankPool(start_method=start_method) as pool:
        assert pool.run(all_ranks_sum, 2, per_rank=[1.0, 2.0], timeout=90) == [3.0, 3.0]
        assert pool.start_method == start_method


def test_subgroups_work():
    def sum_in_pairs():
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        tensor = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(tensor, group=groups[dist.get_rank() % 2])
        return tensor.item()

    assert run_ranks(sum_in_pairs, 4) == [2.0, 4.0, 2.0, 4.0]


# --- the wire -----------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass
class Measured:
    name: str
    values: list[float]


PLAIN = [
    None,
    True,
    -3,
    2**70,
    0.1,
    "text ü",
    b"\0raw",
    [1, [2, ()]],
    (1, "a"),
    {"a": 1, 2: None, (3, 4): [5.0]},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    back = decode(encode(value))
    assert back == value and type(back) is type(value)


def test_infinities_and_nan_come_back():
    back = decode(encode([math.inf, -math.inf, math.nan]))
    assert back[:2] == [math.inf, -math.inf] and math.isnan(back[2])


DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.randn(shape).mul(3).to(dtype)
    back = decode(encode({"x": tensor}))["x"]
    assert back.dtype == dtype and back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_views_parameters_and_arrays_come_back_as_values():
    tensor = torch.arange(12.0).view(3, 4)
    assert torch.equal(decode(encode(tensor.t())), tensor.t())
    assert torch.equal(decode(encode(torch.nn.Parameter(tensor))), tensor)
    assert np.array_equal(decode(encode(np.arange(6).reshape(2, 3).T)), np.arange(6).reshape(2, 3).T)
    assert decode(encode(np.float32(0.5))) == 0.5


def test_records_come_back_with_attributes():
    pair, measured = decode(encode([Pair(1, "b"), Measured("x", [1.0])]))
    assert (pair.left, pair.right, pair.record_type) == (1, "b", "Pair")
    assert (measured.name, measured.values) == ("x", [1.0])


@pytest.mark.parametrize(
    "value",
    [torch.nn.Linear(1, 1), {"a": [object()]}, lambda: 0, {1, 2}, torch.ones(2, device="meta")],
    ids=["module", "object", "function", "set", "meta tensor"],  # the same in every process: pytest-xdist compares them
)
def test_anything_else_is_refused_with_its_place(value):
    with pytest.raises(UnsendableError, match="result"):
        encode(value)


def test_cut_or_forged_messages_are_refused():
    message = encode({"x": torch.arange(4)})
    for cut in range(len(message)):
        with pytest.raises(ValueError):
            decode(message[:cut])
    with pytest.raises(ValueError, match="follow the end"):
        decode(message + b"x")
    with pytest.raises(ValueError, match="no such tensor"):
        decode(message.replace(b"int64", b"nn   "))


# --- bad arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords", "says"),
    [
        ((print, 0), {}, "from 1 up, not 0"),
        ((print, -1), {}, "from 1 up, not -1"),
        ((print, 2.0), {}, "from 1 up, not 2.0"),
        (("print", 2), {}, "needs a function"),
        ((print, 2), {"per_rank": [1]}, "1 items for 2 ranks"),
        ((print, 2), {"timeout": 0}, "positive"),
        ((print, 2), {"backend": "mpi"}, "'gloo', 'nccl' or None"),
    ],
)
def test_bad_arguments_are_named(arguments, keywords, says):
    with pytest.raises(ValueError, match=says):
        run_ranks(*arguments, **keywords)


def test_a_function_that_cannot_be_sent_is_refused():
    import threading

    lock = threading.Lock()
    with pytest.raises(ValueError, match="cannot be sent to the ranks"):
        run_ranks(lambda: lock, 2)
