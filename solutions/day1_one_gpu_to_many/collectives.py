"""Lesson 1.3: collectives, built from send and receive.

Training on many ranks is ordinary training plus a few collective operations, and every collective is a pattern of
messages between two ranks at a time. A message of n bytes costs about alpha + n beta seconds (Hockney 1994), so a
pattern is judged by two numbers: its rounds (paid in alpha) and the bytes a rank sends (paid in beta). Few rounds
suit small tensors, few bytes suit large ones. Here you write the patterns, then the arithmetic that chooses one.

Work from top to bottom. Only `isend`, `irecv` and `batch_isend_irecv` may communicate. Every function works for any
group of 1, 2, 3, ... ranks, on gloo/CPU and NCCL/CUDA, in place where torch's own is; `group=None` is the default
group. Tensors must be contiguous (a strided one would need a hidden copy) and equally long on every rank. Bad input
raises `ValueError` before anything is sent: a rank that fails halfway leaves its peers waiting, until the process
group's timeout. At the end of the file stands what is given: `check`, the first line of every collective, then
`flat`, `overlap`, `powers_of_two`, `Handle` and `next_tag`.

Sources:
    Hockney 1994, "The communication challenge for MPP": T = alpha + n beta.
    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH": the algorithms.
    Patarasu & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations": the ring is optimal.
    nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth and bus bandwidth.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

ALL_REDUCE_ALGORITHMS = ("ring_all_reduce", "recursive_doubling_all_reduce", "tree_all_reduce")

# A ring works through larger tensors in pieces, so that its scratch vector stays at 16 MiB. glibc takes blocks over
# 32 MiB fresh from the kernel on every call; faulting their pages in cost more here than the sums.
SCRATCH_BYTES = 16 * 2**20

Message = tuple[Tensor, int]  # a contiguous tensor, and the group rank it goes to or comes from


# --- One round --------------------------------------------------------------------------------------------------------


def exchange(
    group: ProcessGroup | None, sends: Sequence[Message] = (), receives: Sequence[Message] = (), tag: int = 0
) -> None:
    """One round: start all messages of this rank, then wait until every one of them has arrived.

    Args:
        group: peers are counted in this group's ranks, not in global ranks.
        sends: (tensor, group rank it goes to) pairs.
        receives: (tensor to fill, group rank it comes from) pairs.
        tag: a message is only received under the tag it was sent with.

    Example, 2 ranks swap: ``exchange(group, sends=[(mine, 1 - rank)], receives=[(theirs, 1 - rank)])``.

    Hints:
        1. If both ranks first finish sending, nobody is there to receive. What has to be started before any waiting?
        2. `dist.P2POp` takes ``group_peer``; `dist.batch_isend_irecv` returns one handle per message and refuses an
           empty list.
    """
    # BEGIN SOLUTION
    messages = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer, tag=tag) for tensor, peer in receives]
    messages += [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer, tag=tag) for tensor, peer in sends]
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()
    # END SOLUTION


# --- Trees: few rounds ------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, src: int, group: ProcessGroup | None = None) -> None:
    """Copy ``tensor`` of rank ``src`` into ``tensor`` of every rank, in place, along a binomial tree.

    In each round every rank that has the tensor sends it to one that has not: 1, 2, 4, 8, ... ranks have it. All of
    it is over after ceil(log2 N) rounds (Thakur et al. 2005).

    Args:
        tensor: any shape and dtype, contiguous, the same on every rank.
        src: the *global* rank it comes from, as in `torch.distributed.broadcast`.

    Raises:
        ValueError: ``src`` is not in the group, or see `check`.

    Example, 4 ranks, ``src=0``: round 1 sends 0→1, round 2 sends 0→2 and 1→3.

    Hints:
        1. Number the ranks by their distance from ``src``, so that the source is always number 0. In the round with
           ``distance`` 1, 2, 4, ..., which numbers have the tensor, and who gets it from whom?
        2. `dist.get_process_group_ranks` lists global ranks in group order; ``%`` leads from numbers to ranks and back.
    """
    # BEGIN SOLUTION
    rank, size = check(group, tensor)
    members = dist.get_process_group_ranks(group)
    if src not in members:
        raise ValueError(f"src {src} is not in the group of the global ranks {members}")
    number = (rank - members.index(src)) % size
    for distance in powers_of_two(size):
        if number < distance and number + distance < size:
            exchange(group, sends=[(tensor, (rank + distance) % size)])
        elif distance <= number < 2 * distance:
            exchange(group, receives=[(tensor, (rank - distance) % size)])
    # END SOLUTION


def tree_all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Replace ``tensor`` on every rank by the sum over all ranks: up a binomial tree to rank 0, then down again.

    2 ceil(log2 N) rounds, the whole tensor in each; all ranks together send 2 (N-1) tensors, the least possible.

    Args:
        tensor: any shape and numeric dtype, contiguous, the same on every rank.

    Raises:
        ValueError: see `check`.

    Example, 4 ranks of 1, 2, 3, 4: 2→0 and 3→1 give 4, 6; 1→0 gives 10; `broadcast` brings 10 to all.

    Hints:
        1. Going up is coming down with the film run backwards: the same pairs, the rounds in reverse order, the
           direction turned, and the receiver adds.
        2. ``reversed(powers_of_two(size))``; `dist.get_process_group_ranks` for the source of the way down.
    """
    # BEGIN SOLUTION
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty_like(total)
    for distance in reversed(powers_of_two(size)):
        if rank < distance and rank + distance < size:
            exchange(group, receives=[(incoming, rank + distance)])
            total += incoming
        elif distance <= rank < 2 * distance:
            exchange(group, sends=[(total, rank - distance)])
    broadcast(tensor, dist.get_process_group_ranks(group)[0], group)
    # END SOLUTION


def recursive_doubling_all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Replace ``tensor`` on every rank by the sum over all ranks, in log2 N rounds of pairwise swaps.

    In the round with ``distance`` 1, 2, 4, ... rank r swaps its sum with rank r XOR ``distance`` and adds. After k
    rounds a rank holds the sum of 2^k ranks. When N is not a power of two, the ranks from the largest power of two P
    upwards first hand their tensor to rank r - P and get the result from it in the end: log2 P + 2 rounds (Thakur et
    al. 2005). The whole tensor travels in each round: for small tensors.

    Args:
        tensor: any shape and numeric dtype, contiguous, the same on every rank.

    Raises:
        ValueError: see `check`.

    Example, 4 ranks of 1, 2, 3, 4: swaps 0↔1 and 2↔3 give 3, 3, 7, 7; swaps 0↔2 and 1↔3 give 10 everywhere.

    Hints:
        1. Write it for a power of two first. Then: what do the extra ranks do before, during and after?
        2. ``^`` is XOR; ``size.bit_length()`` leads to the largest power of two up to ``size``.
    """
    # BEGIN SOLUTION
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty_like(total)
    power = 1 << (size.bit_length() - 1)
    if rank >= power:
        exchange(group, sends=[(total, rank - power)])
        exchange(group, receives=[(total, rank - power)])
        return
    extra = [rank + power] if rank + power < size else []
    for peer in extra:
        exchange(group, receives=[(incoming, peer)])
        total += incoming
    for distance in powers_of_two(power):
        exchange(group, sends=[(total, rank ^ distance)], receives=[(incoming, rank ^ distance)])
        total += incoming
    exchange(group, sends=[(total, peer) for peer in extra])
    # END SOLUTION


# --- Rings: few bytes -------------------------------------------------------------------------------------------------


def reduce_scatter_chunks(
    chunks: Sequence[Tensor], sums: Sequence[Tensor], group: ProcessGroup | None, tag: int = 0
) -> None:
    """First half of the ring: ``sums[r]`` of rank r becomes the sum of all ranks' ``chunks[r]``. N-1 rounds.

    Every rank sends to its right neighbour, r + 1, and receives from its left one, r - 1. What travels is a partial
    sum: each rank adds its own piece and passes it on, until the sum of chunk r arrives complete at rank r.

    Args:
        chunks: one vector per rank; chunk i has the same length on every rank, and none is longer than the first.
        sums: where this rank keeps its partial sum of chunk i while it has one: ``chunks`` itself to work in place, or,
            for chunks of one length, N times the same vector, to leave ``chunks`` as it is.
        tag: for `exchange`.

    Example, 3 ranks, the way of chunk 0: rank 1 sends its own to 2, rank 2 adds its own and sends on to 0, rank 0 adds
    its own and keeps the sum.

    Hints:
        1. The sum of chunk r must *end* at rank r after N-1 hops. Where does it start, so which chunk does rank r
           send first, and which one comes in during round 1, 2, ...?
        2. One scratch vector receives; ``scratch[:n]``, as chunks differ in length; ``torch.add(..., out=...)``.
    """
    # BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    scratch = torch.empty_like(chunks[0])
    partial = sums[left].copy_(chunks[left])
    for step in range(1, size):
        index = (left - step) % size
        incoming = scratch[: chunks[index].numel()]
        exchange(group, sends=[(partial, right)], receives=[(incoming, left)], tag=tag)
        partial = torch.add(chunks[index], incoming, out=sums[index])
    # END SOLUTION


def all_gather_chunks(chunks: Sequence[Tensor], group: ProcessGroup | None, tag: int = 0) -> None:
    """Second half of the ring: ``chunks[r]`` of rank r is copied into ``chunks[r]`` of every rank. N-1 rounds.

    Every rank first sends its own chunk to its right neighbour, and from then on what it received the round before.

    Args:
        chunks: one vector per rank, chunk i as long on every rank; all but ``chunks[r]`` are overwritten.
        tag: for `exchange`.

    Hints:
        1. Which chunk does rank r send in round 0, 1, 2, ...? Its left neighbour does the same, so which one comes in?
        2. ``(rank - step) % size``; receive straight into its place, no buffer is needed.
    """
    # BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step) % size], chunks[(left - step) % size]
        exchange(group, sends=[(outgoing, right)], receives=[(incoming, left)], tag=tag)
    # END SOLUTION


def reduce_scatter(output: Tensor, input: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum ``input`` over all ranks and give rank r the r-th of N equal blocks in ``output``.

    Args:
        output: n elements, any shape, contiguous, no memory in common with ``input``.
        input: N n elements, same dtype and device, contiguous. Not changed.

    Raises:
        ValueError: ``input`` does not hold N times as many elements as ``output``; they share memory; see `check`.

    Example, 2 ranks, input [1, 2] and [3, 4]: output [4] on rank 0, [6] on rank 1. Each sent 1 element of 2.

    Hints:
        1. Which half of the ring is this? What are its chunks, and where may the partial sums live?
        2. `overlap`, `flat`, ``tensor_split``.
    """
    # BEGIN SOLUTION
    _, size = check(group, output, input)
    if input.numel() != size * output.numel():
        raise ValueError(f"input needs {size} x {output.numel()} elements, one block per rank: got {input.numel()}")
    if overlap(output, input):
        raise ValueError("output and input share memory: partial sums in output would overwrite input")
    reduce_scatter_chunks(flat(input).tensor_split(size), [flat(output)] * size, group)
    # END SOLUTION


def all_gather(output: Tensor, input: Tensor, group: ProcessGroup | None = None) -> None:
    """Put the ``input`` of all ranks, in rank order, into ``output`` of every rank.

    Args:
        output: N n elements, any shape, contiguous.
        input: n elements, same dtype and device, contiguous; may be block r of ``output``. Not changed.

    Raises:
        ValueError: ``output`` does not hold N times as many elements as ``input``; see `check`.

    Example, 2 ranks, input [1] and [2]: output [1, 2] on both.

    Hints:
        1. Which half of the ring is this? What must be in place before it starts?
        2. `flat`, ``tensor_split``, ``copy_``.
    """
    # BEGIN SOLUTION
    rank, size = check(group, output, input)
    if output.numel() != size * input.numel():
        raise ValueError(f"output needs {size} x {input.numel()} elements, one block per rank: got {output.numel()}")
    blocks = flat(output).tensor_split(size)
    blocks[rank].copy_(flat(input))
    all_gather_chunks(blocks, group)
    # END SOLUTION


def ring_all_reduce(tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False) -> Handle | None:
    """Replace ``tensor`` on every rank by the sum over all ranks: reduce-scatter, then all-gather, round a ring.

    2 (N-1) rounds, in each 1/N of the tensor: a rank sends 2 (N-1)/N of the tensor, nearly independent of N, and no
    algorithm can do with less (Patarasu & Yuan 2009). The element count need not be divisible by N: chunks differ by
    one element, or are empty. Tensors over N x `SCRATCH_BYTES` are worked through in pieces of that size.

    Args:
        tensor: any shape and numeric dtype, contiguous, the same on every rank.
        async_op: return at once and work in the background. Leave ``tensor`` alone until ``handle.wait()``.

    Returns:
        A `Handle` if ``async_op``, else None.

    Raises:
        ValueError: see `check`; at once, also with ``async_op``.

    Example, 4 ranks of [1, 1, 1, 1] to [4, 4, 4, 4]: [10, 10, 10, 10], after 6 messages of 1 element from each rank.
    10 elements on 4 ranks travel as chunks of 3, 3, 2, 2.

    Hints:
        1. Rank r ends the first half with the sum of chunk r. What does it need for the second half?
        2. ``tensor_split`` cuts any length, ``split`` makes pieces; `next_tag` keeps two calls in flight apart;
           `Handle` takes a function.
    """
    # BEGIN SOLUTION
    _, size = check(group, tensor)
    pieces = flat(tensor).split(size * SCRATCH_BYTES // tensor.itemsize)
    tag = next_tag(group)

    def both_halves() -> None:
        for piece in pieces:
            chunks = piece.tensor_split(size)
            reduce_scatter_chunks(chunks, chunks, group, tag)
            all_gather_chunks(chunks, group, tag)

    return Handle(both_halves, tensor.device) if async_op else both_halves()
    # END SOLUTION


# --- All-to-all -------------------------------------------------------------------------------------------------------


def all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: ProcessGroup | None = None) -> None:
    """Send ``inputs[j]`` to rank j and fill ``outputs[i]`` with what rank i sent here. Lengths may differ.

    Pairwise exchange: in round s = 1 ... N-1 rank r sends to r + s and receives from r - s, so that every rank is sent
    to by exactly one other in each round (Thakur et al. 2005).

    Args:
        outputs: one contiguous tensor per rank, to be filled; ``outputs[i]`` as long as rank i's ``inputs[r]``.
        inputs: one contiguous tensor per rank, same dtype and device. Not changed.

    Raises:
        ValueError: the lists are not one tensor per rank long; the block that stays on this rank has two lengths; see
            `check`.

    Example, 2 ranks: inputs [a0, a1] and [b0, b1] become outputs [a0, b0] and [a1, b1]: a transpose over ranks.

    Hints:
        1. Which block never leaves the rank?
        2. ``copy_`` for that one, `exchange` for the others.
    """
    # BEGIN SOLUTION
    rank, size = check(group, *outputs, *inputs)
    if not len(outputs) == len(inputs) == size:
        raise ValueError(f"need {size} outputs and inputs, one per rank: got {len(outputs)} and {len(inputs)}")
    if outputs[rank].numel() != inputs[rank].numel():
        lengths = f"outputs[{rank}] has {outputs[rank].numel()} elements, inputs[{rank}] {inputs[rank].numel()}"
        raise ValueError(f"the block that stays on rank {rank} needs one length: {lengths}")
    flat(outputs[rank]).copy_(flat(inputs[rank]))
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        exchange(group, sends=[(inputs[to], to)], receives=[(outputs[source], source)])
    # END SOLUTION


# --- The arithmetic ---------------------------------------------------------------------------------------------------


def predict_seconds(algorithm: str, num_bytes: int, ranks: int, alpha: float, beta: float) -> float:
    """Seconds an algorithm of this file takes by the alpha-beta model: rounds x alpha + bytes on the way x beta.

    Count what happens one after the other on the slowest rank; adding numbers up is taken as free.

    Args:
        algorithm: name of a function of this file, such as ``"ring_all_reduce"``.
        num_bytes: of the full tensor: input of reduce-scatter, output of all-gather, all of a rank's all-to-all inputs.
        ranks: N, at least 1. One rank takes no time.
        alpha: seconds per message.
        beta: seconds per byte, the inverse of the bandwidth in bytes/s.

    Raises:
        ValueError: unknown algorithm, ``ranks`` < 1 or ``num_bytes`` < 0.

    Example, 1 MB (10^6 bytes) on 4 ranks, alpha 10 us, 1 GB/s: ring 6 x 10 us + 1.5 ms = 1.56 ms, recursive doubling
    2 x 10 us + 2 ms = 2.02 ms.

    Hints:
        1. Fill in a table: algorithm, rounds, and how many full tensors one rank sends in them.
        2. ceil(log2 N) is ``(ranks - 1).bit_length()``: no floating point, no surprise at 8.
    """
    # BEGIN SOLUTION
    if ranks < 1 or num_bytes < 0:
        raise ValueError(f"need at least 1 rank and 0 bytes: got {ranks} ranks and {num_bytes} bytes")
    levels = (ranks - 1).bit_length()
    power_levels = ranks.bit_length() - 1
    swaps = power_levels if ranks == 1 << power_levels else power_levels + 2
    ring, share = ranks - 1, (ranks - 1) / ranks
    costs = {  # rounds, full tensors sent in them
        "broadcast": (levels, levels),
        "reduce_scatter": (ring, share),
        "all_gather": (ring, share),
        "ring_all_reduce": (2 * ring, 2 * share),
        "recursive_doubling_all_reduce": (swaps, swaps),
        "tree_all_reduce": (2 * levels, 2 * levels),
        "all_to_all": (ring, share),
    }
    if algorithm not in costs:
        raise ValueError(f"unknown algorithm {algorithm!r}: choose one of {', '.join(costs)}")
    rounds, tensors = costs[algorithm]
    return rounds * alpha + tensors * num_bytes * beta
    # END SOLUTION


def fit_alpha_beta(sizes: Sequence[int], seconds: Sequence[float], algorithm: str, ranks: int) -> tuple[float, float]:
    """The alpha (seconds per message) and beta (seconds per byte) that explain measured times best.

    Least squares on the *relative* error: sizes span five orders of magnitude, and with absolute errors the largest
    would decide alone. Noise can push an estimate below zero; it is returned as 0.

    Args:
        sizes: bytes of the full tensor, as in `predict_seconds`; at least two different ones.
        seconds: the time measured for each, > 0.
        algorithm, ranks: what was measured, on how many ranks; at least 2.

    Raises:
        ValueError: lengths differ, fewer than two different sizes, a time that is not positive, fewer than 2 ranks.

    Example: ring, 2 ranks, 1,000 and 1,001,000 bytes in 0.21 and 1.21 ms: alpha 104.5 us, beta 1 ns (1 GB/s).

    Hints:
        1. The model is linear in alpha and beta. What does `predict_seconds` return for alpha = 1 and beta = 0?
        2. Divide each equation by its measured time, then `torch.linalg.lstsq` in float64.
    """
    # BEGIN SOLUTION
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0 or ranks < 2:
        got = f"sizes {list(sizes)}, seconds {list(seconds)}, {ranks} ranks"
        raise ValueError(f"need a time > 0 for each of two or more different sizes, on 2 or more ranks: got {got}")
    units = ((1, 0), (0, 1))  # alpha alone, then beta alone: the two columns of the linear system
    columns = [[predict_seconds(algorithm, size, ranks, *unit) for unit in units] for size in sizes]
    terms = torch.tensor(columns, dtype=torch.float64) / torch.tensor(seconds, dtype=torch.float64)[:, None]
    alpha, beta = torch.linalg.lstsq(terms, torch.ones_like(terms[:, :1])).solution.flatten().tolist()
    return max(alpha, 0.0), max(beta, 0.0)
    # END SOLUTION


def bus_bandwidth(op: str, num_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes/s that each link of a ring carried: nccl-tests' *busbw*, to be held against the speed of the hardware.

    Algorithm bandwidth, size / time, falls with N even where every link is busy all the time. Multiplying by what a
    rank must send per byte of result takes N out again (nccl-tests, doc/PERFORMANCE.md).

    Args:
        op: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"all_to_all"``, ``"broadcast"`` or ``"reduce"``.
        num_bytes: of the full tensor, as in `predict_seconds`.
        seconds: measured, > 0.
        ranks: N, at least 1.

    Returns:
        Bytes per second: divide by 1e9 for the GB/s that nccl-tests prints.

    Raises:
        ValueError: unknown ``op``, ``seconds`` <= 0, ``ranks`` < 1, ``num_bytes`` < 0.

    Example: all-reduce of 1 GB on 4 ranks in 1 s: 1 GB/s algorithm bandwidth, 1.5 GB/s bus bandwidth.

    Hints:
        1. How much does one rank send for each byte of result in the best algorithm? A broadcast passes each byte on.
    """
    # BEGIN SOLUTION
    if seconds <= 0 or ranks < 1 or num_bytes < 0:
        raise ValueError(f"need time, ranks and bytes: got {seconds} s, {ranks} ranks and {num_bytes} bytes")
    share = (ranks - 1) / ranks
    factors = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all"), share)
    if op not in factors:
        raise ValueError(f"unknown op {op!r}: choose one of {', '.join(factors)}")
    return num_bytes / seconds * factors[op]
    # END SOLUTION


def fastest_algorithm(num_bytes: int, ranks: int, alpha: float, beta: float) -> str:
    """Name of the all-reduce of this file that the model expects to be fastest; the first of equals.

    Args: as in `predict_seconds`.

    Raises:
        ValueError: ``ranks`` < 1 or ``num_bytes`` < 0.

    Example, 8 ranks, alpha 10 us, 1 GB/s: ``"recursive_doubling_all_reduce"`` for 4 KB, ``"ring_all_reduce"`` for 1 MB.

    Hints:
        1. `ALL_REDUCE_ALGORITHMS` and ``min`` with a ``key``.
    """
    # BEGIN SOLUTION
    return min(ALL_REDUCE_ALGORITHMS, key=lambda name: predict_seconds(name, num_bytes, ranks, alpha, beta))
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


def check(group: ProcessGroup | None, *tensors: Tensor) -> tuple[int, int]:
    """Refuse bad input, else say where this rank stands: ``rank, size = check(group, tensor)``.

    Returns:
        This rank's number *in the group* and the number of ranks in the group.

    Raises:
        ValueError: this rank is not in the group; a tensor is not contiguous, or lies on a device the group cannot
            reach; two tensors differ in dtype or device.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may call a collective on it")
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"tensor of shape {tuple(tensor.shape)} is not contiguous: pass tensor.contiguous()")
        if f"{tensor.device.type}:" not in dist.get_backend_config(group):
            raise ValueError(f"tensor is on {tensor.device}, the group reaches {dist.get_backend_config(group)}")
        if (tensor.dtype, tensor.device) != (tensors[0].dtype, tensors[0].device):
            raise ValueError(
                "all tensors of a call need one dtype and one device: got "
                f"{tensors[0].dtype} on {tensors[0].device} and {tensor.dtype} on {tensor.device}"
            )
    return rank, size


def flat(tensor: Tensor) -> Tensor:
    """The same memory as a vector, outside autograd: what is written to it is written to ``tensor``."""
    return tensor.detach().view(-1)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors have a byte in common."""
    return one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes


def powers_of_two(below: int) -> list[int]:
    """1, 2, 4, ... as long as they are smaller than ``below``: ``powers_of_two(5) == [1, 2, 4]``."""
    return [1 << level for level in range((below - 1).bit_length())]


class Handle:
    """A call in the background, started on creation. ``wait()`` returns when it is done, and raises what it raised."""

    def __init__(self, call: Callable[[], None], device: torch.device) -> None:
        self._done: Future[None] = Future()
        if device.type == "cuda":  # NCCL makes streams wait, never the host: a second stream is all it takes
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(self._stream):
                self._run(call)
        else:  # gloo makes the host wait, so another thread does the waiting
            self._stream = None
            threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Callable[[], None]) -> None:
        try:
            self._done.set_result(call())
        except BaseException as error:  # not lost with the thread: wait() raises it
            self._done.set_exception(error)

    def wait(self) -> None:
        """Return once the call's result may be used."""
        self._done.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


_tags: WeakKeyDictionary[ProcessGroup, itertools.count] = WeakKeyDictionary()


def next_tag(group: ProcessGroup | None) -> int:
    """A tag no other call on this group has, and the same on every rank: ranks make their calls in the same order.

    gloo matches messages by sender, tag and order, so two calls in flight at once need two tags.
    """
    return next(_tags.setdefault(group or dist.group.WORLD, itertools.count(1)))
