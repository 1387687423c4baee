"""Knights and Knaves: who on the island tells the truth?"""

from tasks.kk.task import KKTask

__all__ = ["KKTask"]
