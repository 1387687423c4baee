"""`agent-rl bench train`: our training step beside the padded full-logits step, each in a fresh process, in turns."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from agent_rl.config.commands import BenchTrainCommand, run_config
from agent_rl.errors import TrainingError
from tasks import miniwiki

TRL_SCRIPT = Path(__file__).with_name("trl_step.py")

Sequences = list[dict[str, Any]]


def bench_train(command: BenchTrainCommand, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure, report, and write ``command.out`` (JSON) where it is given.

    Raises TrainingError where a measured process fails.
    """
    text = encyclopedia(command.model.path)
    batch = uneven_sequences(command, command.sequences, text)
    longer = uneven_sequences(command, command.sequences * command.scale, text)
    tokens, trained = sum(len(one["ids"]) for one in batch), sum(sum(one["mask"]) for one in batch)
    shared = f", one prompt for each {command.rollout.group_size} of them" if command.shared_prompts else ""
    report(
        f"{len(batch)} sequences of {command.min_tokens} to {command.max_tokens} tokens, {trained} of {tokens} tokens "
        f"trained{shared}"
    )
    found: dict[str, Any] = {"tokens": tokens, "trained": trained}
    if command.check:
        found["check"] = check = compare_gradients(command, batch)
        report(
            f"gradients in float32, relative distance from the plain step in float64: "
            f"ours {check['ours']:.1e}, plain {check['plain']:.1e} (loss {check['loss']:.1e})"
        )
    jobs: dict[str, tuple[str, Sequences]] = {"ours": ("ours", batch), "plain": ("plain", batch)}
    if command.scale > 1:
        jobs[f"ours, {command.scale} x tokens"] = ("ours", longer)
    if command.trl is not None:
        jobs["TRL"] = ("trl", batch)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for index in range(command.rounds):
        for name in list(jobs)[:: -1 if index % 2 else 1]:
            rounds[name].append(_measure(command, *jobs[name]))
            one = rounds[name][-1]
            report(
                f"  round {index + 1}, {name}: {one['cpu_seconds']:.1f} s of processor time, {one['seconds']:.1f} s by "
                f"the clock, peak {one['peak_mb'] / 1000:.2f} GB"
            )
    found["rounds"] = rounds
    report("\n".join(_ratios(rounds)))
    if command.out is not None:
        Path(command.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _ratios(rounds: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Each way over another, round by round: median and range."""

    def ratio(one: str, other: str, key: str) -> str:
        values = [a[key] / b[key] for a, b in zip(rounds[one], rounds[other], strict=True)]
        return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    for name in rounds:
        if name == "ours":
            continue
        one, other = (name, "ours") if name.startswith("ours") else ("ours", name)
        yield f"{one} / {other}: time {ratio(one, other, 'cpu_seconds')}, peak memory {ratio(one, other, 'peak_mb')}"


def uneven_sequences(command: BenchTrainCommand, count: int, text: Sequence[int]) -> Sequences:
    """Two-turn search episodes: prompt, query (trained), observation, answer (trained); each a window of ``text``."""
    rng = random.Random(command.seed)
    size = command.rollout.group_size

    def window(length: int) -> list[int]:
        start = rng.randrange(len(text) - length)
        return list(text[start : start + length])

    made: Sequences = []
    prompt: list[int] = []
    for index in range(count):
        # Log-uniform: of rollouts, many are short and few long.
        length = round(command.min_tokens * (command.max_tokens / command.min_tokens) ** rng.random())
        trained = max(2, round(length * command.trained_fraction))
        query = max(1, trained * 3 // 5)
        if not command.shared_prompts:
            prompt = window((length - trained) // 2)
        elif index % size == 0:
            prompt = window(command.min_tokens // 2)
        mask = [0] * len(prompt) + [1] * query + [0] * max(0, length - trained - len(prompt)) + [1] * (trained - query)
        ids = prompt + window(len(mask) - len(prompt))
        made.append({"ids": ids, "mask": mask, "advantage": rng.choice([-1.0, 0.5, 1.5]), "group": index // size})
    return made


def encyclopedia(model: str) -> list[int]:
    """Token ids of the fictional encyclopedia: what models of language see is text, not random ids."""
    from transformers import AutoTokenizer

    from agent_rl.models import resolve_model_path

    text = "\n".join(passage.text for passage in miniwiki.generate(0, 300).passages)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(model))
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


def compare_gradients(command: BenchTrainCommand, batch: Sequences) -> dict[str, float]:
    """Relative distances of gradients (norm over all parameters): both ways in float32 from the plain way in
    float64, and from each other; and of the losses of the two ways."""
    from safetensors.torch import load_file

    single = command.model_copy(update={"model": command.model.model_copy(update={"dtype": "float32"})})
    with tempfile.TemporaryDirectory() as folder:
        loss, found = {}, {}
        for name, way, exact in (("ours", "ours", False), ("plain", "plain", False), ("exact", "plain", True)):
            file = str(Path(folder, f"{name}.safetensors"))
            loss[name] = _measure(single, way, batch, gradients=file, exact=exact)["loss"]
            found[name] = load_file(file)

    def distance(one: str, other: str) -> float:
        squares = [
            (float((found[one][name] - value).norm()), float(value.norm())) for name, value in found[other].items()
        ]
        return float((sum(d**2 for d, _ in squares) / sum(n**2 for _, n in squares)) ** 0.5)

    return {
        "loss": abs(loss["ours"] - loss["exact"]) / abs(loss["exact"]),
        "ours": distance("ours", "exact"),
        "plain": distance("plain", "exact"),
        "ours_plain": distance("ours", "plain"),
    }


def _measure(
    command: BenchTrainCommand,
    way: str,
    sequences: Sequences,
    *,
    gradients: str | None = None,
    exact: bool = False,
) -> dict[str, float]:
    job = {
        "way": way,
        "config": run_config(command).model_dump(mode="json"),
        "sequences": sequences,
        "rows": command.plain_rows,
        "gradients": gradients,
        "exact": exact,
    }
    program = [sys.executable, "-m", "agent_rl.bench.train_worker"]
    if way == "trl":
        from agent_rl.models import resolve_model_path

        job["model"] = resolve_model_path(command.model.path)
        program = [str(command.trl), str(TRL_SCRIPT)]
    done = subprocess.run(program, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise TrainingError(f"the measured process ({way}) ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
