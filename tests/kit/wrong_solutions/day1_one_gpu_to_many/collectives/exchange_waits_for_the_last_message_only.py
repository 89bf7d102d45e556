"""FAILS: exchange

`batch_isend_irecv` returns one handle per message; waiting for the last one says nothing about the others.
"""


def exchange(group, sends=(), receives=(), tag=0):
    messages = [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer, tag=tag) for tensor, peer in sends]
    messages += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer, tag=tag) for tensor, peer in receives]
    if messages:
        dist.batch_isend_irecv(messages)[-1].wait()
