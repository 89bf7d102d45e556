"""FAILS: replay, first_mismatch, slow_ranks

A call goes through as soon as one other rank of the group is there: pairs are right, and four ranks are not.
"""


def replay(calls_by_rank):
    done = [0] * len(calls_by_rank)

    def kind_at(rank):
        return calls_by_rank[rank][done[rank]].kind if done[rank] < len(calls_by_rank[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(calls_by_rank):
            kind = kind_at(rank)
            if kind is None:
                continue
            there = [member for member in calls[done[rank]].ranks if kind_at(member) == kind]
            if len(there) >= min(2, len(calls[done[rank]].ranks)):
                for member in there:
                    done[member] += 1
                moved = True
    return done
