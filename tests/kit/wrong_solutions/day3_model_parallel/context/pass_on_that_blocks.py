"""FAILS: pass_on

Waits for the message before it returns: the ranks compute, then send, then compute.
"""

right_pass_on = pass_on


def pass_on(tensor, group=None, tag=0):
    shift = right_pass_on(tensor, group, tag)
    for work in shift._works:
        work.wait()
    return shift
