"""Errors of corpora, encoders, indexes and fetched artefacts. Each is also a standard-library type.

``exit_code`` is what a command line ends with: 1 failed, 2 bad usage.
"""

from __future__ import annotations


class RetrievalError(Exception):
    """Base of every error this package raises on purpose; its text is fit to be shown to a user."""

    exit_code = 1


class CorpusError(RetrievalError, ValueError):
    """A line of a corpus cannot be used; the message names file, line and key."""


class IndexIncomplete(RetrievalError, RuntimeError):
    """An index folder lacks a part, or its parts do not belong together."""


class IndexMismatch(RetrievalError, ValueError):
    """The encoder asked for is not the one that the index was built with."""

    exit_code = 2


class IndexExists(RetrievalError, FileExistsError):
    """Something already stands where an index should be written."""

    exit_code = 2


class IndexNotWritable(RetrievalError, OSError):
    """An index cannot be written where it was asked for."""

    exit_code = 2


class IndexNotFound(RetrievalError, FileNotFoundError):
    """No index at the path given."""

    exit_code = 2


class EncoderError(RetrievalError, RuntimeError):
    """An encoder cannot be loaded as specified, or returned something that is not a vector."""


class UnknownEncoder(RetrievalError, ValueError):
    """The name is neither a fetched model, nor a local folder, nor a hub id."""

    exit_code = 2


class FetchError(RetrievalError, OSError):
    """An artefact could not be fetched (no network, no space, not on the index)."""


class DiskFull(RetrievalError, OSError):
    """No space left where something was to be written; the message says what to do about it."""


class ChecksumError(FetchError):
    """What was downloaded is not the pinned file."""


class IndexKindError(RetrievalError, ValueError):
    """A kind of index that cannot be built for this corpus, or does not fit."""

    exit_code = 2


class BM25Unavailable(RetrievalError, RuntimeError):
    """Lucene cannot be used here: no pyserini, or no Java that is new enough."""

    exit_code = 2
