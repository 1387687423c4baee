"""What looks wrong in a run, in plain words with the evidence. A healthy run gives no finding.

The last steps are judged (``RECENT``), since a beginning may be rough; the alarm's rules are replayed over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import ValidationError

from agent_rl.config.schema.alarm import AlarmConfig
from agent_rl.report.run_data import Row, RunData
from agent_rl.report.trajectories import AUTHORS, POLICY, read_step
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.train.alarm import CollapseAlarm

RECENT = 10  # steps
_FILES = 3  # of trajectories, the last ones
_MISMATCH_NATS = 0.05
_MANY = 0.5  # a share above this is not noise
_SOME = 0.2


@dataclass(frozen=True, slots=True)
class Finding:
    """``name``: a short word for it; ``evidence``: what was seen; ``meaning``: what that does, and what to do."""

    name: str
    evidence: str
    meaning: str


def diagnose(run: RunData) -> list[Finding]:
    """Findings, the gravest kind first. Raises ArtifactError where a stored trajectory is broken."""
    train = run.metrics.get("train", [])
    rows = [row for path in run.trajectory_files[-_FILES:] for row in read_step(path, run.notes)]
    found = [*_masks(rows), *_stops(rows, run)]
    if train:
        recent = train[-RECENT:]
        for check in _CHECKS:
            found += check(recent, run)
        found += _alarms(train, run)
    return found


def _mean(rows: Sequence[Row], key: str) -> float:
    """Mean over the steps that have it; 0 where none has."""
    return fmean(values) if (values := [row[key] for row in rows if key in row]) else 0.0


def _when(rows: Sequence[Row]) -> str:
    return f"in steps {rows[0]['step']} to {rows[-1]['step']}" if len(rows) > 1 else f"in step {rows[0]['step']}"


def _masks(rows: Sequence[Row]) -> Iterator[Finding]:
    for row in rows:
        for place, (author, flag) in enumerate(zip(row["authors"], row["loss_mask"], strict=True)):
            if bool(flag) != (author == POLICY):
                yield Finding(
                    "mask",
                    f"step {row.get('step')}, {row.get('item_id')}, sample {row.get('sample')}, token {place} "
                    f"({row['pieces'][place]!r}): written by {AUTHORS[author]}, loss mask {int(flag)}",
                    "the mask must be 1 on the policy's tokens and nowhere else: gradients of this run are wrong",
                )
                return


def _stops(rows: Sequence[Row], run: RunData) -> Iterator[Finding]:
    """Text after a closing tag within one policy turn: whatever should have ended the turn did not."""
    if _config(run, "rollout", "grammar") not in (None, "search_r1"):
        return
    names = _config(run, "tools", "names")
    tags = SearchR1Grammar().stop_strings(tuple(names) if isinstance(names, list) else ("search", "python", "sql"))
    beyond, example = 0, ""
    for row in rows:
        for text in _policy_turns(row):
            # What is only thought about does not end a turn.
            spoken = text.rsplit("</think>", 1)[-1] if "</think>" in text else ("" if "<think>" in text else text)
            end = min((at + len(tag) for tag in tags if (at := spoken.find(tag)) >= 0), default=len(spoken))
            # A token may hold the tag's last character and a little more, and an end token may follow.
            after = spoken[end:].strip()
            if len(after) > 12:
                beyond += 1
                example = example or f"{spoken[max(0, end - 20) : end + 40]!r}"
                break
    if rows and beyond > _SOME * len(rows):
        yield Finding(
            "stop_string",
            f"{beyond} of the last {len(rows)} trajectories go on in the same turn after a closing tag: {example}",
            "the sampler does not stop at the tags, so calls are lost or their results invented: check the stop "
            "strings (rollout.grammar, tools.names) against what the model writes",
        )


def _policy_turns(row: Row) -> Iterator[str]:
    turn: list[str] = []
    for piece, author in zip([*row["pieces"], ""], [*row["authors"], -1], strict=True):
        if author == POLICY:
            turn.append(piece)
        elif turn:
            yield "".join(turn)
            turn = []


def _truncated(recent: Sequence[Row], run: RunData) -> Iterator[Finding]:
    share = _mean(recent, "rollout/stop/max_tokens")
    if share > _MANY:
        limits = {key: _config(run, "rollout", key) for key in ("max_turn_tokens", "max_response_tokens")}
        yield Finding(
            "truncated",
            f"{share:.0%} of the trajectories {_when(recent)} hit a token limit ({limits})",
            "a response that is cut off cannot answer: raise the limits, or find out why the model does not stop",
        )
    turns = _mean(recent, "rollout/stop/max_turns")
    if turns > _MANY:
        yield Finding(
            "out_of_turns",
            f"{turns:.0%} of the trajectories {_when(recent)} used all of their turns "
            f"(rollout.max_turns={_config(run, 'rollout', 'max_turns')})",
            "they call tools until the end and never answer: raise rollout.max_turns, or reward answering",
        )
    long = _mean(recent, "rollout/stop/prompt_too_long")
    if long > _SOME:
        yield Finding(
            "prompt_too_long",
            f"{long:.0%} of the trajectories {_when(recent)} had no room for the prompt",
            "raise rollout.max_prompt_tokens",
        )


def _tools(recent: Sequence[Row], run: RunData) -> Iterator[Finding]:
    total = sum(row.get("rollout/trajectories", 0.0) for row in recent)
    broken = sum(row.get("tool/failures", 0.0) for row in recent)
    if total and broken > 0.05 * total:
        yield Finding(
            "tool_server",
            f"the tool server's failures broke {broken:.0f} of {total:.0f} trajectories {_when(recent)} "
            f"(tools.url={_config(run, 'tools', 'url')})",
            "they are left out, not punished, but what is left is a biased choice: see tool_server.log, and "
            "`agent-rl doctor tools.url=...`",
        )
    lost = sum(row.get("rollout/failed", 0.0) for row in recent) - broken
    if total and lost > 0.05 * total:
        yield Finding(
            "lost_rollouts",
            f"{lost:.0f} of {total:.0f} trajectories {_when(recent)} were broken by something else than a tool",
            "the field `error` of the stored trajectories says by what",
        )
    calls = {
        kind: sum(row.get(f"rollout/count/tool_{kind}", 0.0) for row in recent)
        for kind in ("ok", "invalid", "error", "timeout", "overloaded")
    }
    bad = sum(calls.values()) - calls["ok"]
    if bad > _MANY * sum(calls.values()):
        yield Finding(
            "failing_calls",
            f"of {sum(calls.values()):.0f} calls {_when(recent)}: "
            + ", ".join(f"{count:.0f} {kind}" for kind, count in calls.items() if count),
            "most calls bring nothing back: look at them in the report, then at the tool's log",
        )
    if total and not sum(calls.values()) and any(row.get("rollout/count/tool_ok") for row in run.metrics["train"]):
        yield Finding(
            "no_calls",
            f"no trajectory called a tool {_when(recent)}, though some did before",
            "the policy has unlearned its tool: go back to an earlier checkpoint with a lower learning rate",
        )


def _weights(recent: Sequence[Row], run: RunData) -> Iterator[Finding]:
    seen = [(row["weight/min"], row["weight/max"]) for row in recent if "weight/min" in row and "weight/max" in row]
    kind = _config(run, "algo", "token_weight", "kind")
    if kind not in (None, "none") and seen and all(high - low < 1e-6 for low, high in seen):
        yield Finding(
            "constant_weight",
            f"every trained token {_when(recent)} has the weight {seen[-1][0]:.4g} "
            f"(algo.token_weight.kind={kind}, form={_config(run, 'algo', 'token_weight', 'form')})",
            "the weight has no effect but on the scale: this is plain GRPO (docs/objectives.md, the three readings)",
        )
    dead = _mean(recent, "objective/dead_positive_fraction")
    if dead > _MANY:
        yield Finding(
            "dead_positives",
            f"{dead:.0%} of the tokens of good responses {_when(recent)} have no policy gradient",
            "only bad responses are pushed down: see algo.clip_on",
        )
    for sign in ("pos", "neg"):
        clipped = _mean(recent, f"objective/clip_fraction_{sign}")
        if clipped > _MANY and not dead > _MANY:
            yield Finding(
                "clipped",
                f"{clipped:.0%} of the tokens with {'positive' if sign == 'pos' else 'negative'} advantage are clipped "
                f"{_when(recent)}",
                "updates are larger than the clip allows: lower the learning rate or train.updates_per_rollout",
            )


def _signal(recent: Sequence[Row], run: RunData) -> Iterator[Finding]:
    uniform, reward = _mean(recent, "rollout/uniform_groups"), _mean(recent, "reward/mean")
    if uniform > 0.8:
        yield Finding(
            "uniform_groups",
            f"{uniform:.0%} of the groups {_when(recent)} have one and the same reward (mean {reward:.3g})",
            "there is nothing to compare within them: questions are too hard or too easy for this policy, or it has "
            "collapsed; algo.group_filter.kind=drop_uniform asks others",
        )
    mismatch = _mean(recent, "mismatch/mean_abs_logp")
    if mismatch > _MISMATCH_NATS:
        yield Finding(
            "mismatch",
            f"sampler and trainer differ by {mismatch:.3f} nats a token {_when(recent)} "
            f"(model.dtype={_config(run, 'model', 'dtype')})",
            "the policy that is trained is not the one that sampled: algo.mismatch.kind=token_tis, or float32",
        )


def _evaluation(recent: Sequence[Row], run: RunData) -> Iterator[Finding]:
    for name, change in run.comparison.items():
        if isinstance(change, dict) and change.get("high", 0) < 0:
            yield Finding(
                "worse",
                f"{name}: after - before is {change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]",
                "training made the policy worse on the questions of the evaluation",
            )


_CHECKS: tuple[Callable[[Sequence[Row], RunData], Iterator[Finding]], ...] = (
    _truncated,
    _tools,
    _weights,
    _signal,
    _evaluation,
)


def _alarms(train: Sequence[Row], run: RunData) -> Iterator[Finding]:
    """The collapse alarm over the whole run, with the run's own thresholds; each rule at its last firing."""
    try:
        config = AlarmConfig.model_validate(run.config.get("alarm") or {})
    except ValidationError:  # of another version: its defaults are the best that is known
        config = AlarmConfig()
    alarm, last = CollapseAlarm(config), {}
    for row in train:
        for warning in alarm.observe(row):
            name, _, evidence = warning.partition(": ")
            last[name] = Finding(name, f"from step {row['step'] - config.patience_steps + 1} on: {evidence}", "")
    for finding in last.values():
        evidence, _, meaning = finding.evidence.rpartition("; ")
        yield Finding(finding.name, evidence, meaning)


def _config(run: RunData, *keys: str) -> object:
    value: object = run.config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
