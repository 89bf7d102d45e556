"""FAILS: exchange

`peer` is a global rank, `group_peer` one of the group: the same in the default group, and in no other.
"""


def exchange(group, sends=(), receives=(), tag=0):
    messages = [dist.P2POp(dist.irecv, tensor, peer, group, tag) for tensor, peer in receives]
    messages += [dist.P2POp(dist.isend, tensor, peer, group, tag) for tensor, peer in sends]
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()
