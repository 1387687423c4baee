"""Question answering by search: the model asks a retriever, reads, and answers."""

from tasks.search.task import SearchTask

__all__ = ["SearchTask"]
