"""The mark of a graded test."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def exercise(lesson: str, name: str, *, points: int) -> "pytest.MarkDecorator":
    """Mark a test as grading an exercise.

        @exercise("1.3", "ring_all_reduce", points=4)
        @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
        def test_every_rank_gets_the_sum(lab, ranks): ...

    Args:
        lesson: id of the lesson whose tests this file holds. Write it and `points` as literals: totals are read from
            the source, so that they are the same whatever part of the tests runs.
        name: the function, class or ``Class.method`` of the lab that the learner writes.
        points: what the test is worth, split evenly over its cases. Several tests may carry the same exercise: its
            total is their sum.

    Raises:
        ValueError: `points` is not a whole number of at least 1.
    """
    if type(points) is not int or points < 1:
        raise ValueError(f"exercise {lesson} {name}: points must be a whole number of at least 1, not {points!r}")
    import pytest  # here, because every rank imports this room for `rank_side`, and would pay 0.1 s for pytest

    return pytest.mark.exercise(lesson=lesson, name=name, points=points)
