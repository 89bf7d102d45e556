"""How many bytes one rank sends in a collective, by the standard algorithm for it.

The ledger does not depend on the backend: gloo's reduce-scatter, for one, is an all-reduce inside, and NCCL picks
rings or trees by size. Every collective is charged what the bandwidth-optimal ring sends (Patarasu & Yuan 2009,
"Bandwidth optimal all-reduce algorithms for clusters of workstations"; the same factors as in nccl-tests'
PERFORMANCE.md), with N ranks and S payload bytes:

    all_reduce       2 (N-1)/N S, rounded down to a whole byte
    all_gather       S less the block of the next rank on the ring, which already has it: (N-1)/N S for equal blocks
    reduce_scatter   S less the rank's own block: (N-1)/N S for equal blocks
    all_to_all       S less the rank's own block
    broadcast        S from every rank but the last of a chain that starts at the root
    reduce           S from every rank but the root, the end of the chain
    gather, scatter  what leaves the rank for the root, what leaves the root
    send             S;  recv and barrier 0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Payload:
    """The tensors of one call, and who they are for.

    Attributes:
        tensors: everything the collective delivers or takes in, over all ranks where the caller holds it.
        blocks: bytes belonging to each rank of the group, where the collective has blocks.
        root: group rank of the source or destination of a rooted collective.
        peer: group rank of the other side of a send or recv.
    """

    tensors: list[torch.Tensor]
    blocks: list[int] = field(default_factory=list)
    root: int | None = None
    peer: int | None = None

    @property
    def total_bytes(self) -> int:
        return sum(self.blocks) if self.blocks else sum(tensor.nbytes for tensor in self.tensors)


def all_reduce_bytes(payload_bytes: int, ranks: int) -> int:
    """Bytes each rank sends in a ring all-reduce of `payload_bytes`: 2 (N-1)/N S, rounded down."""
    return 2 * (ranks - 1) * payload_bytes // ranks


def sent_bytes(op: str, payload: Payload, rank: int, ranks: int) -> int:
    """Bytes group rank `rank` of `ranks` sends in `op`; see the table above."""
    total = payload.total_bytes
    match op:
        case "send":
            return total
        case "all_reduce":
            return all_reduce_bytes(total, ranks)
        case "all_gather":
            return total - payload.blocks[(rank + 1) % ranks]
        case "reduce_scatter" | "all_to_all":
            return total - payload.blocks[rank]
        case "broadcast":
            return total if (rank - payload.root) % ranks < ranks - 1 else 0
        case "reduce" | "gather":
            return total if rank != payload.root else 0
        case "scatter":
            return total - payload.blocks[rank] if rank == payload.root else 0
        case "recv" | "barrier":
            return 0
    raise ValueError(f"no accounting for the collective {op!r}")
