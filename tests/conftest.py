"""For all tests: `pytester`, which runs pytest inside pytest (the kit's tests of the grading plugin)."""

pytest_plugins = ["pytester"]
