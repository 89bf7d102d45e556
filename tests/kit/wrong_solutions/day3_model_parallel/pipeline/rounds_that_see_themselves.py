"""FAILS: run_order

What one rank does in a round counts for the next rank in the same round: the order depends on how ranks are numbered.
"""


def run_order(schedule):
    order, position = [], [0] * schedule.ranks
    while True:
        before = len(order)
        for rank, actions in enumerate(schedule.actions):
            if position[rank] < len(actions) and set(order).issuperset(schedule.needs(actions[position[rank]])):
                order.append(actions[position[rank]])
                position[rank] += 1
        if len(order) == before:
            return order
