"""What one rollout leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_rl.rollout.ledger import Author, TokenLedger
from tasks.base import TURN_END, Score, TaskItem


class StopReason(StrEnum):
    """Why a trajectory ended; set exactly once."""

    ANSWER = "answer"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # a turn, or the whole response, hit its token limit
    NO_ACTION = "no_action"  # the policy ended its turn with neither a call nor an answer
    PROMPT_TOO_LONG = "prompt_too_long"
    ROLLOUT_TIMEOUT = "rollout_timeout"
    FAILED = "failed"  # infrastructure: see Trajectory.failure


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of infrastructure, attributed to the boundary it escaped from."""

    boundary: str  # "sampler" | "tool" | "task" | "engine"
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy turn and what came back. ``start``/``end`` index the ledger (policy tokens only).

    ``further_calls``: tool, arguments and status of the calls that were made beside the first.
    ``began`` (time.perf_counter): the turn was asked of the sampler. Seconds from then on: ``queued_s`` until it was
    admitted to the sampler's batch, ``generate_s`` until its last token, ``tool_s`` until the observation was there,
    ``tool_queued_s`` of which the call waited in the tool server's queue.
    """

    start: int
    end: int
    text: str
    finish: str
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    tool_status: str | None = None
    observation: str | None = None
    further_calls: tuple[tuple[str, dict[str, Any], str], ...] = ()
    began: float = 0.0
    queued_s: float = 0.0
    generate_s: float = 0.0
    tool_s: float = 0.0
    tool_queued_s: float = 0.0


@dataclass(slots=True)
class Trajectory:
    """One rollout: its tokens, turns, outcome and times.

    ``score`` is None exactly when the trajectory was not scored: an infrastructure failure, a timeout of the
    rollout or a prompt that does not fit. An unscored trajectory takes part in no statistic and no loss.
    """

    item: TaskItem
    session: str
    group: str
    sample: int
    ledger: TokenLedger
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason | None = None
    score: Score | None = None
    answer: str | None = None
    failure: Failure | None = None
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    attempts: int = 1

    @property
    def scored(self) -> bool:
        return self.score is not None

    @property
    def response_text(self) -> str:
        """What the model wrote in all its turns, joined by ``TURN_END``; no prompt, no tool output."""
        return TURN_END.join(turn.text.replace(TURN_END, " ") for turn in self.turns)

    @property
    def searches(self) -> int:
        return sum((turn.tool is not None) + len(turn.further_calls) for turn in self.turns)

    @property
    def policy_tokens(self) -> int:
        return self.ledger.count(Author.POLICY)

    def stop(self, reason: StopReason) -> None:
        if self.stop_reason is not None:
            raise RuntimeError(f"the trajectory already stopped ({self.stop_reason}), cannot stop again ({reason})")
        self.stop_reason = reason

    def check(self) -> None:
        """Assert the invariants that hold for every finished trajectory (DESIGN.md, 1 and 3).

        Raises AssertionError: a bug in the engine or a sampler, never the model's fault.
        """
        authors = self.ledger.authors
        sampled = [False] * len(authors)
        for turn in self.turns:
            sampled[turn.start : turn.end] = [True] * (turn.end - turn.start)
        assert self.stop_reason is not None, "a finished trajectory needs a stop reason"
        assert (self.stop_reason is StopReason.FAILED) == (self.failure is not None)
        for position, (author, was_sampled) in enumerate(zip(authors, sampled, strict=True)):
            assert (author == Author.POLICY) == was_sampled, f"token {position}: author {author}, {was_sampled=}"
        assert self.ledger.loss_mask == [int(flag) for flag in sampled]
