"""FAILS: replay, first_mismatch, slow_ranks

Takes the n-th call of each rank for the same call. Ranks in different groups make different numbers of calls.
"""


def replay(calls_by_rank):
    done = 0
    while all(done < len(calls) for calls in calls_by_rank) and calls_by_rank:
        if len({calls[done].kind for calls in calls_by_rank}) > 1:
            break
        done += 1
    return [done] * len(calls_by_rank)
