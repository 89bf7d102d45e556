"""FAILS: exchange

Sends first and receives afterwards: two ranks that swap both wait for the other to receive.
"""


def exchange(group, sends=(), receives=(), tag=0):
    for tensor, peer in sends:
        dist.send(tensor, group=group, group_dst=peer, tag=tag)
    for tensor, peer in receives:
        dist.recv(tensor, group=group, group_src=peer, tag=tag)
