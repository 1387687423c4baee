"""Mathematics: problems with one final answer, compared by its value."""

from tasks.math.task import MathTask

__all__ = ["MathTask"]
