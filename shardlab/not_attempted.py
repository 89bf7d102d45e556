"""The exception a lab raises until the learner writes the exercise."""


class NotAttempted(NotImplementedError):
    """An exercise nobody has written yet. Raised by the body that `shardlab release` puts into a lab.

    Args:
        exercise: lesson id and exercise name, such as ``"1.3 ring_all_reduce"``.
    """

    def __init__(self, exercise: str) -> None:
        super().__init__(exercise)
        self.exercise = exercise

    def __str__(self) -> str:
        lesson, _, name = self.exercise.partition(" ")
        return f"{name} (lesson {lesson}) is not attempted yet: write it where this was raised"
