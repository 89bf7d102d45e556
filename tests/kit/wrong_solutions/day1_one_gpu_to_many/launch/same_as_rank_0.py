"""FAILS: assert_same_on_all_ranks

Compared with rank 0, only the rank that differs raises, and the others wait for it in the next call. If rank 0 is the
odd one, everybody else is accused.
"""


def assert_same_on_all_ranks(tensor, name, group=None):
    first = digest(tensor)
    dist.broadcast(first, dist.get_process_group_ranks(group)[0], group=group)
    if not torch.equal(first, digest(tensor)):
        raise AssertionError(f"{name} differs: rank {dist.get_rank()} is not as rank 0")
