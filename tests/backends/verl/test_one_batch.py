"""One batch, both backends, float32: the same loss, gradients and parameters after one step.

verl's own FSDP2 engine runs in this process, on gloo, with our loss and optimiser in it; no Ray.
"""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.algo.weights import draw_weights
from agent_rl.config.compose import compose
from agent_rl.config.schema import ModelConfig, OptimConfig, RunConfig
from agent_rl.train.batch import TrainSequence, make_micro_batches
from agent_rl.train.logprobs import token_logprobs
from agent_rl.train.policy import Policy, load_model
from agent_rl.train.update import UpdateSettings, update

LIMIT = 48  # rollout.max_response_tokens
TEMPERATURE = 0.8
# AdamW's first step divides a gradient by itself: eps keeps one that is rounding noise from becoming a whole step.
OPTIM = OptimConfig(lr=1e-4, eps=1e-5, max_grad_norm=1e9)
SETTINGS = UpdateSettings(TEMPERATURE, max_batch_tokens=200, logprob_chunk_tokens=64, drop_uniform_groups=False)
ALGOS = {
    "grpo": [],
    "tr_grpo": [],
    "tr_grpo_plain_kl": ["algo=tr_grpo", "algo.kl.weighting=none"],
    "tr_grpo_kl_inside": ["algo=tr_grpo", "algo.kl.weighting=inside"],
    "tr_grpo_eq9": [],
    "tr_grpo_eq9_kl_outside": ["algo=tr_grpo_eq9", "algo.kl.weighting=outside"],
    "tr_grpo_eq9_plain_kl": ["algo=tr_grpo_eq9", "algo.kl.weighting=none"],
    "tr_grpo_reverse": [],
    "tr_grpo_random": [],
    "dapo": [],
    "gspo": [],
    "cispo": [],
    "dr_grpo": [],
    "rloo": [],
    "reinforce_pp": [],
    "ar": [],
    "high_entropy": [],
    "grpo_token_tis": ["algo=grpo", "algo.mismatch.kind=token_tis"],
    "grpo_sequence_mis": ["algo=grpo", "algo.mismatch.kind=sequence_mis"],
}
KL = {"algo.kl.beta=0.1"}  # large, so that the term is seen


def algo_of(name: str) -> Any:
    texts = ALGOS[name] or [f"algo={name}"]
    with_kl = name.startswith(("grpo", "tr_grpo"))
    return compose("train", [*texts, *(KL if with_kl else ())]).algo


@pytest.fixture(scope="module")
def sharp_model(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """The tiny model far from uniform, so that probabilities spread over the whole range of the weight."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "sharp"
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    return folder


@torch.no_grad()
def made_sequences(policy: Policy, objective: Objective) -> list[TrainSequence]:
    """Three groups of four, one sequence without an advantage; prompt, policy and tool tokens; old and sampler's
    log-probabilities a step away from the policy's, so that clips and corrections fire."""
    rng = random.Random(0)
    torch.manual_seed(2)
    model = policy.model
    rewards: list[float | None] = []
    made: list[TrainSequence] = []
    for group in range(3):
        prompt = [rng.randrange(1, 300) for _ in range(7 + group)]
        for _ in range(4):
            ids, mask = list(prompt), [0] * len(prompt)
            for turn in range(rng.randrange(1, 4)):
                if turn:
                    observation = [rng.randrange(1, 300) for _ in range(rng.randrange(2, 6))]
                    ids, mask = ids + observation, mask + [0] * len(observation)
                for _ in range(rng.randrange(3, 9)):
                    # sampled, so that likely tokens are among them
                    logits = model(torch.tensor([ids])).logits[0, -1]
                    ids.append(int(torch.multinomial(torch.softmax(logits / TEMPERATURE, -1), 1)))
                    mask.append(1)
            made.append(TrainSequence(ids, mask, [0.0] * len(ids), 0.0, group))
            rewards.append(rng.choice([1.0, -1.0, 0.3]))
    advantages = objective.advantages(rewards, [sequence.group for sequence in made]).tolist()
    for batch in make_micro_batches(made, 200, torch.device("cpu")):
        found = token_logprobs(model, batch, temperature=TEMPERATURE, chunk_tokens=64)
        for row, index in enumerate(batch.sequences):
            sequence, mine = made[index], batch.rows == row
            noise = torch.Generator().manual_seed(index)  # whatever row the sequence is packed in
            away = 0.3 * torch.randn(2, sequence.trained, generator=noise)
            sequence.old_logprobs = (found.logp[mine] + away[0]).clamp(max=0)
            sequence.old_entropy = found.entropy[mine]
            sampler = iter((sequence.old_logprobs + away[1]).clamp(max=0).tolist())
            sequence.sampler_logprobs = [next(sampler) if flag else 0.0 for flag in sequence.mask]
            sequence.advantage = advantages[index]
            if objective.needs_drawn_weights:
                sequence.drawn_weights = torch.tensor(draw_weights(sequence.trained, index))
    return made


def perturbed(model: Any) -> Any:
    import copy

    other = copy.deepcopy(model).requires_grad_(False)
    torch.manual_seed(3)
    for parameter in other.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    return other


def embedded_step(path: Path, objective: Objective) -> tuple[list[TrainSequence], dict[str, float], dict, dict, Any]:
    config = ModelConfig(path=str(path), dtype="float32", device="cpu", prompt_format="plain")
    policy = Policy(load_model(str(path), config)[0], config, OPTIM)
    policy.reference = perturbed(policy.model)
    sequences = made_sequences(policy, objective)
    if objective.needs_old_pass:
        from agent_rl.train.step import _select

        _select(objective, "all", sequences)
    gradients: dict[str, torch.Tensor] = {}
    step = policy.step

    def watched(lr: float) -> float:
        for (name, _), master in zip(policy._named, policy._masters, strict=True):
            gradients[name] = master.grad.clone()
        return step(lr)

    policy.step = watched  # type: ignore[method-assign]
    metrics = update(policy, objective, sequences, SETTINGS, lr=OPTIM.lr)
    return sequences, metrics, gradients, dict(policy.model.state_dict()), policy.reference


@pytest.fixture(scope="module")
def process_group() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def verl_worker(path: Path, config: RunConfig, tmp_path: Path) -> Any:
    """verl's training worker as its own code builds it from our translated configuration."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    from agent_rl.backends.verl.translate import verl_config

    made = verl_config(
        config,
        config.backend,
        model_path=str(path),
        dataset=tmp_path / "train.parquet",
        agent_file=tmp_path / "agent.yaml",
        resume=None,
    )
    model: HFModelConfig = omega_conf_to_dataclass(made.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(made.actor_rollout_ref.actor)
    actor.engine.use_dynamic_bsz = True
    actor.engine.max_token_len_per_gpu = config.train.max_batch_tokens
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    return worker


def verl_batch(sequences: list[TrainSequence], objective: Objective, reference: Any) -> Any:
    """The rows as they lie in verl's store when the update begins."""
    from verl.utils import tensordict_utils as tu

    from agent_rl.backends.verl.columns import COUNTS, Row, row_columns

    refs = [torch.zeros(len(sequence.ids)) for sequence in sequences]
    if objective.needs_reference:
        for batch in make_micro_batches(sequences, 200, torch.device("cpu")):
            with torch.no_grad():
                logp = token_logprobs(reference, batch, temperature=TEMPERATURE, chunk_tokens=64).logp
            for value, row, place in zip(logp.tolist(), batch.rows.tolist(), batch.places.tolist(), strict=True):
                refs[batch.sequences[row]][place] = value
    starts = [sequence.mask.index(1) for sequence in sequences]

    def spread(sequence: TrainSequence, values: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(len(sequence.ids))
        made[torch.tensor(sequence.mask).bool()] = values
        return made

    rows, columns = [], {name: [] for name in ("prompts", "responses", "input_ids", "position_ids", "old_log_probs")}
    columns |= {"rollout_log_probs": [], "entropy": [], "ref_log_prob": []}
    for sequence, start, ref in zip(sequences, starts, refs, strict=True):
        ids = torch.tensor(sequence.ids)
        old, entropy = spread(sequence, sequence.old_logprobs)[start:], spread(sequence, sequence.old_entropy)[start:]
        rows.append(Row(torch.tensor(sequence.mask[start:]), old, entropy, sequence))
        for name, value in {
            "prompts": ids[:start],
            "responses": ids[start:],
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "old_log_probs": old,
            "entropy": entropy,
            "rollout_log_probs": torch.tensor(sequence.sampler_logprobs[start:]),
            "ref_log_prob": ref[start:],
        }.items():
            columns[name].append(value)
    columns |= row_columns(rows, objective, [OPTIM.lr])
    tensors = {
        name: torch.stack(values) if name == COUNTS else torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in columns.items()
    }
    return tu.get_tensordict(
        tensors, {"temperature": TEMPERATURE, "mini_batch_size": len(sequences), "epochs": 1, "global_batch_size": 12}
    )


@pytest.fixture
def config_of(verl_settings, tmp_path: Path):
    def make(algo: Any) -> RunConfig:
        values = verl_settings(
            tmp_path / "run",
            "http://127.0.0.1:1",
            rollout={"temperature": TEMPERATURE, "max_response_tokens": LIMIT, "group_size": 4},
            train={"max_batch_tokens": 200, "optim": OPTIM.model_dump()},
        )
        return RunConfig.model_validate(values | {"algo": algo.model_dump()})

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGOS)
def test_both_backends_take_the_same_step(name, sharp_model, process_group, config_of, tmp_path) -> None:
    from functools import partial

    from agent_rl.backends.verl.loss import objective_loss, read_sums

    config = config_of(algo_of(name))
    objective = Objective(config.algo, LIMIT)
    sequences, seen, gradients, after, reference = embedded_step(sharp_model, objective)
    # What the numbers below are worth: the mechanism is active in this batch.
    if config.algo.token_weight.kind != "none":
        assert seen["weight/max"] - seen["weight/min"] > 0.1
    if config.algo.surrogate in ("clip", "gspo"):
        assert seen["objective/clip_fraction_pos"] > 0
        assert seen["objective/clip_fraction_neg"] > 0
    if objective.needs_reference:
        assert seen["objective/kl"] > 1e-3

    before = load_model(str(sharp_model), config.model)[0].state_dict()
    worker = verl_worker(sharp_model, config, tmp_path)
    worker.set_loss_fn(partial(objective_loss, algo=config.algo.model_dump_json(), max_response_tokens=LIMIT))
    found: dict[str, torch.Tensor] = {}
    optimizer_step = worker.engine.optimizer_step

    def watched() -> float:
        for place, parameter in worker.engine.module.named_parameters():
            assert parameter.grad is not None
            found[place] = parameter.grad.full_tensor().clone()
        return optimizer_step()

    worker.engine.optimizer_step = watched
    output = worker.train_mini_batch(verl_batch(sequences, objective, reference))
    from verl.utils.metric import reduce_metrics

    metrics = reduce_metrics({f"actor/{key}": value for key, value in output["metrics"].items()})
    sums = read_sums(metrics)
    assert sums.sums["loss"] == pytest.approx(seen["objective/loss"], abs=1e-6)
    assert metrics["actor/loss"] == pytest.approx(seen["objective/loss"], abs=1e-6)
    assert metrics["actor/grad_norm"] == pytest.approx(seen["objective/grad_norm"], rel=1e-4)
    assert found.keys() == gradients.keys()
    assert max(float(g.abs().max()) for g in gradients.values()) > 1e-3
    for place, gradient in gradients.items():
        torch.testing.assert_close(found[place], gradient, rtol=1e-4, atol=1e-5)
    moved = 0.0
    for place, parameter in worker.engine.module.named_parameters():
        torch.testing.assert_close(parameter.full_tensor().detach(), after[place], rtol=0, atol=1e-5)
        moved = max(moved, float((after[place] - before[place]).abs().max()))
    assert moved > 0.9 * OPTIM.lr
    from agent_rl.algo.diagnostics import metrics_of_sums

    for metric, value in metrics_of_sums(config.algo, sums).items():
        assert value == pytest.approx(seen[metric], rel=1e-4, abs=1e-5), metric


@pytest.mark.parametrize("name", ["tr_grpo", "tr_grpo_eq9", "gspo", "dr_grpo"])
def test_the_loss_does_not_depend_on_how_rows_are_spread(name, sharp_model, model_folder) -> None:
    """FSDP takes the mean over ranks: each rank's loss is scaled so that two ranks, or none, give the same sum."""
    from verl.utils import tensordict_utils as tu

    from agent_rl.backends.verl.loss import objective_loss

    algo = algo_of(name)
    config = ModelConfig(path=str(sharp_model), dtype="float32", device="cpu", prompt_format="plain")
    policy = Policy(load_model(str(sharp_model), config)[0], config, OPTIM)
    objective = Objective(algo, LIMIT)
    sequences = made_sequences(policy, objective)
    batch = verl_batch(sequences, objective, perturbed(policy.model))
    torch.manual_seed(5)
    leaves = [(-2 * torch.rand(len(sequence.ids))).requires_grad_() for sequence in sequences]

    def loss_of(rows: list[int], ranks: int) -> torch.Tensor:
        part = tu.index_select_tensor_dict(batch, rows)
        tu.assign_non_tensor_data(part, "dp_size", ranks)
        output = {"log_probs": torch.nested.as_nested_tensor([leaves[row] for row in rows], layout=torch.jagged)}
        return objective_loss(output, part, algo=algo.model_dump_json(), max_response_tokens=LIMIT)[0]

    everything = list(range(len(sequences)))
    whole = loss_of(everything, 1)
    expected = torch.autograd.grad(whole, leaves)
    parts = [loss_of(rows, 2) for rows in (everything[::3], [row for row in everything if row % 3])]
    spread = (parts[0] + parts[1]) / 2
    assert float(spread) == pytest.approx(float(whole), rel=1e-6)
    for one, other in zip(torch.autograd.grad(spread, leaves), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-3
