"""`agent-rl eval` and `agent-rl eval compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agent_rl.config.commands import EvalCommand, run_config
from agent_rl.config.schema import RemoteSamplerConfig, RunConfig
from agent_rl.errors import UsageError
from agent_rl.evaluation.compare import compare, compare_sets, describe_difference
from agent_rl.evaluation.coverage import read_answerable
from agent_rl.evaluation.result import EvalResult, read_result, save
from agent_rl.evaluation.rows import write_whole
from agent_rl.evaluation.run import choose_items, describe, evaluate
from agent_rl.evaluation.sets import items_of_sets
from agent_rl.evaluation.table import markdown
from agent_rl.models import resolve_model_path
from agent_rl.rollout.assemble import make_task
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.serving import with_model
from agent_rl.train.checkpoint import find_model


def evaluate_command(command: EvalCommand, out: Path) -> None:
    """Answer, store ``out/<label>.json``, ``.jsonl`` and ``.md``, print the table."""
    config, checkpoint = run_config(command), command.chosen_checkpoint()
    task = make_task(config)
    if command.sets:
        items = items_of_sets(config, command.sets, command.max_per_set)
    else:
        if command.max_per_set is not None:
            raise UsageError("max_per_set is for sets=[...]; without them use eval.questions")
        items = choose_items(task, config.eval.split, config.eval.questions, config.eval.seed)
    answerable = read_answerable(command.coverage) if command.coverage else None
    path, name, step = _model(config, checkpoint)
    model = path
    if isinstance(config.sampler, RemoteSamplerConfig):
        model = f"{name} at {config.sampler.url} ({config.sampler.api})"
    label = command.label or f"{name.replace('/', '_')}_{'sets' if command.sets else config.eval.split}"
    partial = out / f".{label}.partial.jsonl"

    async def answer(spec: RolloutSpec) -> EvalResult:
        return await evaluate(
            config,
            spec,
            items,
            label=label,
            step=step,
            log=print,
            model=model,
            partial=partial,
            answerable=answerable,
        )

    result = with_model(config, task, path, answer)
    save(result, out)
    partial.unlink()
    write_whole(out / f"{label}.md", markdown([result]))
    print(describe(result))
    print("\n" + markdown([result]))
    print(f"rows: {out / (label + '.jsonl')}   summary: {out / (label + '.json')}   table: {out / (label + '.md')}")


def _model(config: RunConfig, checkpoint: str | None) -> tuple[str, str, int]:
    """Path to load, name and step of what is evaluated."""
    if isinstance(config.sampler, RemoteSamplerConfig):
        if checkpoint is not None:
            raise UsageError(
                f"checkpoint={checkpoint} with sampler=remote: its server has the model; use checkpoint=base "
                "(model.path is then the tokenizer alone)"
            )
        return resolve_model_path(config.model.path), config.sampler.model or "remote", 0
    if checkpoint is None:
        return resolve_model_path(config.model.path), "base", 0
    return find_model(Path(config.run_dir), checkpoint)


def compare_command(addresses: Sequence[str], metric: str, out: Path | None) -> None:
    """Print a table of all evaluations and the paired difference of each to the first."""
    if len(addresses) < 2:
        raise UsageError("eval compare needs two evaluations or more: agent-rl eval compare A.json B.json")
    results = [read_result(address) for address in addresses]
    first = results[0]
    print(markdown(results, metric))
    found = {}
    for address, other in zip(addresses[1:], results[1:], strict=True):
        title = f"{address} - {addresses[0]}"
        whole, sets = compare(first, other, metric), compare_sets(first, other, metric)
        found[title] = {"all": whole, **sets}
        print(title)
        for mode, difference in whole.items():
            print(f"  {describe_difference(mode, difference)}")
            for name, part in sets.items():
                if mode in part:
                    print(f"    {describe_difference(name, part[mode])}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, json.dumps(found, indent=1))
        print(f"written: {out}")
