"""A seeded generator of a fictional encyclopedia, and of questions that only its text can answer."""

from tasks.miniwiki.questions import QUESTION_TYPES
from tasks.miniwiki.world import Passage, World, generate, write_corpus

__all__ = ["QUESTION_TYPES", "Passage", "World", "generate", "write_corpus"]
