"""Grading: exercises and points, submissions and their workspaces, labs made from solutions.

    from shardlab.grade import exercise

marks a graded test; the pytest plugin of this room (`shardlab.grade.plugin`) runs the learner's code on ranks, never
in pytest's own process, and closes the run with a table of points.
"""

from shardlab.grade.exercise import exercise

__all__ = ["exercise"]
