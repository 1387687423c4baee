"""The training step of TRL's GRPOTrainer, run by a python that has TRL (and need not have agent_rl).

Same job on stdin and figures on stdout as train_worker.py. TRL's own defaults (float32 weights under bfloat16 autocast,
8 sequences in a micro-batch), without generation, KL and gradient checkpointing.
"""

import json
import os
import sys
import tempfile
import time

import torch


def work(job: dict) -> dict[str, float]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config, rows = job["config"], job["rows"]
    if config["backend"].get("threads"):
        torch.set_num_threads(config["backend"]["threads"])
    sequences = job["sequences"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=-(-len(sequences) // rows),
            num_generations=rows,
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
            beta=0.0,
            report_to=[],
            temperature=config["rollout"]["temperature"],
        )
        trainer = GRPOTrainer(
            model=job["model"],
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "x"}]),
        )
    model = trainer.model
    model.train()
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps
    trainer.create_optimizer()
    # Given batches in place of generated ones; all else is the trainer's own step.
    trainer._prepare_inputs = lambda batch: batch

    def step(chosen: list[dict]) -> float:
        total = 0.0
        items = torch.tensor(sum(sum(one["mask"]) for one in chosen))
        for start in range(0, len(chosen), rows):
            batch = pad(chosen[start : start + rows], model.device) | {"num_items_in_batch": items}
            total += float(trainer.training_step(model, batch, items))
        torch.nn.utils.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return total

    trainer.optimizer.param_groups[0]["lr"] = 0.0
    step(sequences[:4])
    wall, cpu = time.perf_counter(), time.process_time()
    loss = step(sequences)
    return {
        "loss": loss,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": peak_mb(),
    }


def pad(members: list[dict], device: torch.device) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, responses on the right, as TRL does; tool tokens by ``tool_mask``."""
    splits = [member["mask"].index(1) for member in members]
    before = max(splits)
    after = max(len(member["ids"]) - split for member, split in zip(members, splits, strict=True))
    columns: dict[str, list] = {
        "prompt_ids": [],
        "prompt_mask": [],
        "completion_ids": [],
        "completion_mask": [],
        "tool_mask": [],
    }
    for member, split in zip(members, splits, strict=True):
        ids = member["ids"]
        left, right = before - split, after - (len(ids) - split)
        columns["prompt_ids"].append([0] * left + ids[:split])
        columns["prompt_mask"].append([0] * left + [1] * split)
        columns["completion_ids"].append(ids[split:] + [0] * right)
        columns["completion_mask"].append([1] * (len(ids) - split) + [0] * right)
        columns["tool_mask"].append(member["mask"][split:] + [0] * right)
    tensors = {name: torch.tensor(rows, device=device) for name, rows in columns.items()}
    return tensors | {"advantages": torch.tensor([member["advantage"] for member in members], device=device)}


def peak_mb() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(work(json.load(sys.stdin))), file=answer, flush=True)
