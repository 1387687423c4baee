"""One small tree of errors. Each is also a standard-library type and survives pickling.

``exit_code`` is what the command line ends with when the error reaches it: 1 failed, 2 bad usage or config.
"""

from __future__ import annotations


class AgentRLError(Exception):
    """Base of every error this toolkit raises on purpose; its text is fit to be shown to a user."""

    exit_code = 1


class ConfigError(AgentRLError, ValueError):
    """A setting is unknown, has the wrong type, or contradicts another. All faults are in one message."""

    exit_code = 2


class UsageError(AgentRLError, ValueError):
    """The command cannot be carried out as typed (missing file, port in use, no tool server)."""

    exit_code = 2


class ArtifactError(AgentRLError, RuntimeError):
    """A stored thing (model, checkpoint, run directory) is absent, incomplete, or does not fit."""


class TrainingError(AgentRLError, RuntimeError):
    """Training cannot go on: too many rollouts failed, a loss is not finite."""


class InfrastructureError(AgentRLError, RuntimeError):
    """Something outside the model failed. Never a reward: the trajectory is marked and retried or dropped."""


class SamplerError(InfrastructureError):
    """The sampler aborted or died in the middle of a turn."""


class ToolServerUnavailable(InfrastructureError, ConnectionError):
    """No tool server answered before the deadline."""


class ToolOverloaded(InfrastructureError):
    """The tool server kept refusing (429 / ``overloaded``) until the call's deadline."""


class ToolDeadlineExceeded(InfrastructureError, TimeoutError):
    """The call was accepted, but no answer came before its deadline."""


class TaskError(AgentRLError, RuntimeError):
    """A task's own code (messages, score) raised: a bug, not the model's fault."""
