"""The only rollout loop of the project: a policy's turns interleaved with tool calls."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from agent_rl.errors import InfrastructureError, SamplerError, TaskError, ToolOverloaded
from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.ledger import Author, TokenLedger
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.observation import fit_observation
from agent_rl.rollout.protocol import AnswerAction, CallAction, Grammar, NoAction, ParsedTurn
from agent_rl.rollout.trajectory import Failure, StopReason, Trajectory, Turn
from agent_rl.samplers.base import SampledTurn, Sampler, SamplingParams
from tasks.base import Score, Task, TaskItem
from tasks.thoughts import opens_think
from tools.protocol import ToolResult


class ToolCaller(Protocol):
    """What the engine needs of a tool client. Raises InfrastructureError for failures that are not the model's."""

    async def call(
        self, tool: str, arguments: dict[str, Any], *, session: str, deadline_s: float | None = None
    ) -> ToolResult: ...

    async def end_session(self, session: str) -> None:
        """The trajectory is over. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """What a rollout runs with, the same for every trajectory of a batch."""

    task: Task
    sampler: Sampler
    tools: ToolCaller
    grammar: Grammar
    codec: TokenCodec
    limits: RolloutLimits
    temperature: float = 1.0
    correct_invalid_action: bool = False


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same on every machine and Python."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


async def run_rollout(
    item: TaskItem, spec: RolloutSpec, *, seed: int, session: str, group: str = "", sample: int = 0
) -> Trajectory:
    """Run one trajectory to its end and score it.

    Never raises for a failure of the model or of infrastructure: the former is an observation, the latter is
    recorded as ``Trajectory.failure`` and leaves the trajectory unscored. Cancellation passes through.
    """
    trajectory = Trajectory(item, session, group or item.id, sample, TokenLedger())
    began = time.perf_counter()
    try:
        async with asyncio.timeout(spec.limits.rollout_timeout_s):
            await _run_turns(trajectory, spec, seed)
    except InfrastructureError as error:  # before TimeoutError: a tool's missed deadline is one of these too
        _fail(trajectory, "sampler" if isinstance(error, SamplerError) else "tool", error)
    except TimeoutError:
        trajectory.stop(StopReason.ROLLOUT_TIMEOUT)
    except TaskError as error:
        _fail(trajectory, "task", error)
    finally:
        _close_turn(trajectory, spec)
        await spec.sampler.end_session(session)
        await spec.tools.end_session(session)
        trajectory.seconds = time.perf_counter() - began
    if trajectory.stop_reason not in _UNSCORED:
        try:
            trajectory.score = await _score(trajectory, spec)
        except Exception as error:  # a scorer's bug must not end the step; it is counted as infrastructure
            trajectory.stop_reason = None
            _fail(trajectory, "task", error)
    trajectory.check()
    return trajectory


async def _score(trajectory: Trajectory, spec: RolloutSpec) -> Score:
    # In a thread: a scorer may wait for other processes, and the other rollouts go on meanwhile.
    score = await asyncio.to_thread(spec.task.score, trajectory.item, trajectory.response_text)
    if not isinstance(score.value, int | float) or not math.isfinite(score.value):
        raise TaskError(f"the score of {trajectory.item.id} is {score.value!r}, not a finite number")
    if score.answer is not None:
        trajectory.answer = score.answer
    return score


def _close_turn(trajectory: Trajectory, spec: RolloutSpec) -> None:
    """Record the turn that a failure or the time limit ended after part of it was sampled."""
    ledger = trajectory.ledger
    end = trajectory.turns[-1].end if trajectory.turns else 0
    start = next((place for place in range(end, len(ledger)) if ledger.authors[place] == Author.POLICY), None)
    if start is not None:
        text = spec.codec.decode(ledger.input_ids[start:])
        trajectory.turns.append(Turn(start, len(ledger), text, "abort"))


_UNSCORED = (StopReason.FAILED, StopReason.ROLLOUT_TIMEOUT, StopReason.PROMPT_TOO_LONG)


def _fail(trajectory: Trajectory, boundary: str, error: Exception) -> None:
    trajectory.failure = Failure(boundary, type(error).__name__, str(error))
    trajectory.stop(StopReason.FAILED)


async def _run_turns(trajectory: Trajectory, spec: RolloutSpec, seed: int) -> None:
    ledger, limits = trajectory.ledger, spec.limits
    try:
        messages = spec.task.messages(trajectory.item)
        prompt = spec.codec.render(messages)
    except Exception as error:
        raise TaskError(f"rendering the prompt of {trajectory.item.id}: {error}") from error
    ledger.prompt(prompt)
    if len(prompt) > limits.max_prompt_tokens:
        trajectory.stop(StopReason.PROMPT_TOO_LONG)
        return
    opening = "<think>" if opens_think(messages) else ""
    for turn_index in range(limits.max_turns):
        if ledger.response_length() >= limits.max_response_tokens:
            trajectory.stop(StopReason.MAX_TOKENS)
            return
        turn, parsed = await _sample_turn(trajectory, spec, derive_seed(seed, turn_index), opening)
        opening = ""
        trajectory.turns.append(turn)
        _count(trajectory, "calls_in_think", parsed.calls_in_think)
        _count(trajectory, "dropped_calls", parsed.dropped_calls)
        if turn.finish == "length":
            # Cut in mid-turn: whatever stands there is not a finished call (vllm-project/vllm#58228).
            _count(trajectory, "truncated_turn", 1)
            trajectory.stop(StopReason.MAX_TOKENS)
            return
        if isinstance(parsed.action, AnswerAction):
            trajectory.answer = parsed.action.text
            trajectory.stop(StopReason.ANSWER)
            return
        if isinstance(parsed.action, NoAction):
            _count(trajectory, "invalid_action", 1)
            if not spec.correct_invalid_action:
                trajectory.stop(StopReason.NO_ACTION)
                return
        if turn_index + 1 == limits.max_turns:
            # No turn is left to read an observation in: do not spend a tool call on it.
            break
        if isinstance(parsed.action, NoAction):
            _correct(trajectory, spec)
        else:
            await _observe(trajectory, spec, (parsed.action, *parsed.further))
    trajectory.stop(StopReason.MAX_TURNS)


async def _sample_turn(trajectory: Trajectory, spec: RolloutSpec, seed: int, opening: str) -> tuple[Turn, ParsedTurn]:
    """One policy turn. A stop string inside an open think block does not end it: sampling goes on.

    ``opening``: what the prompt has begun for the policy; it is read before the turn, but is not part of it.
    """
    ledger, limits = trajectory.ledger, spec.limits
    start = len(ledger)
    began = time.perf_counter()
    budget = min(limits.max_turn_tokens, limits.max_response_tokens - ledger.response_length())
    text, part, queued_s = "", 0, 0.0
    while True:
        ids = ledger.input_ids
        params = SamplingParams(
            temperature=spec.temperature,
            max_tokens=budget - (len(ledger) - start),
            stop_strings=spec.grammar.stop_strings(spec.task.tools),
            seed=derive_seed(seed, part),
        )
        try:
            sampled = await spec.sampler.sample(ids, params, session=trajectory.session)
        except InfrastructureError:
            raise
        except Exception as error:
            raise SamplerError(f"{type(error).__name__}: {error}") from error
        if sampled.finish == "abort":
            raise SamplerError("the sampler aborted the turn")
        assert ids == ledger.input_ids, "the ledger changed while the sampler ran"  # invariant 2
        ledger.policy(sampled.ids, sampled.logprobs, sampled.version)
        queued_s += sampled.queued_s
        text += _kept_text(sampled, spec.codec)
        parsed = spec.grammar.parse(opening + text, spec.task.tools)
        used = len(ledger) - start
        if not (sampled.stop_string and parsed.open_think and used < budget):
            break
        part += 1
    finish = sampled.finish
    if sampled.stop_string and parsed.open_think:
        finish = "length"  # the budget ran out inside the think block
    generate_s = time.perf_counter() - began - queued_s
    return Turn(start, len(ledger), text, finish, began=began, queued_s=queued_s, generate_s=generate_s), parsed


def _kept_text(sampled: SampledTurn, codec: TokenCodec) -> str:
    """Text of a sampled turn up to the end of its stop string (a token may reach beyond it; ids stay whole)."""
    text = codec.decode(sampled.ids)
    if sampled.stop_string is None:
        return text
    end = text.rfind(sampled.stop_string)
    assert end >= 0, f"the sampler reported the stop string {sampled.stop_string!r}, but the text lacks it"
    return text[: end + len(sampled.stop_string)]


def _correct(trajectory: Trajectory, spec: RolloutSpec) -> None:
    """Append the hint for a turn with neither call nor answer."""
    text = spec.grammar.correction(spec.task.tools)
    trajectory.ledger.observation(spec.codec.encode(text)[: max(_room(trajectory, spec.limits), 0)])
    trajectory.turns[-1] = replace(trajectory.turns[-1], observation=text)


async def _observe(trajectory: Trajectory, spec: RolloutSpec, calls: tuple[CallAction, ...]) -> None:
    """Make the calls of a turn, all at once, and append what the policy will see of them."""
    began = time.perf_counter()
    # A group, so that one call's failure of infrastructure ends the others too.
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_call(call, trajectory, spec)) for call in calls]
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    made = [task.result() for task in running]
    frames = spec.grammar.observation_frames(tuple(call.tool for call in calls))
    texts, room = [], _room(trajectory, spec.limits)
    for place, (_, result) in enumerate(made):
        _count(trajectory, f"tool_{result.status}", 1)
        last = place + 1 == len(made)
        frame = (frames[place], frames[-1] if last else "")
        share = room // (len(made) - place)  # what one result leaves over is the next one's
        ids, text, cut = fit_observation(spec.grammar.observation_text(result), frame, share, spec.codec)
        _count(trajectory, "truncated_observation", int(cut))
        trajectory.ledger.observation(ids)
        room -= len(ids)
        texts.append(text)
    (arguments, first), further = made[0], made[1:]
    trajectory.turns[-1] = replace(
        trajectory.turns[-1],
        tool=calls[0].tool,
        arguments=arguments,
        tool_status=first.status,
        observation="".join(texts),
        further_calls=tuple(
            (call.tool, given, result.status) for call, (given, result) in zip(calls[1:], further, strict=True)
        ),
        tool_s=time.perf_counter() - began,
        tool_queued_s=max(result.queued_s for _, result in made),
    )


async def _call(call: CallAction, trajectory: Trajectory, spec: RolloutSpec) -> tuple[dict[str, Any], ToolResult]:
    """The arguments as they were sent, and the result."""
    if call.fault is not None:
        return call.arguments, ToolResult("", "invalid", call.fault)
    # The policy's own arguments come last: it may ask for what the tool's schema lets it ask for.
    arguments = {**spec.task.tool_arguments.get(call.tool, {}), **call.arguments}
    deadline_s = spec.limits.tool_timeout_s
    result = await spec.tools.call(call.tool, arguments, session=trajectory.session, deadline_s=deadline_s)
    if result.status == "overloaded":
        raise ToolOverloaded(f"the tool server did not start the call: {result.text}")
    return arguments, result


def _room(trajectory: Trajectory, limits: RolloutLimits) -> int:
    return min(limits.max_observation_tokens, limits.max_response_tokens - trajectory.ledger.response_length())


def _count(trajectory: Trajectory, name: str, amount: int) -> None:
    if amount:
        trajectory.counters[name] = trajectory.counters.get(name, 0) + amount
