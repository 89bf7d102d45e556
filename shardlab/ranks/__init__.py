"""Run a function on N ranks and get N results.

`run_ranks(fn, 4)` forks four fresh processes from a warm parent that has imported torch (tens of milliseconds), joins
them in a process group and brings their results home as plain data. A hang or a crash becomes one `RankError` within
seconds, naming rank, collective, file and line. No process, port or file outlives its call.
`device()` and `torchrun_ranks()` make the same code run under torchrun, on CPU with gloo or on GPUs with NCCL.
"""

from shardlab.ranks.compat import all_gather_single, reduce_scatter_single
from shardlab.ranks.device import device
from shardlab.ranks.pool import RankPool, run_ranks
from shardlab.ranks.report import RankError, RankReport
from shardlab.ranks.torchrun import TorchrunRank, clean_end, torchrun_ranks
from shardlab.ranks.wire import Record

__all__ = [
    "RankError",
    "RankPool",
    "RankReport",
    "Record",
    "TorchrunRank",
    "all_gather_single",
    "clean_end",
    "device",
    "reduce_scatter_single",
    "run_ranks",
    "torchrun_ranks",
]
