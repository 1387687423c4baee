"""The policy under training: compute copy, fp32 master weights, optimiser, and the frozen reference."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from agent_rl import attention
from agent_rl.config.schema import ModelConfig, OptimConfig
from agent_rl.errors import ArtifactError, ConfigError, TrainingError
from agent_rl.train.precision import choose_device, choose_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


PROMPT_FORMAT_FILE = "agent_rl.json"  # beside the weights of a checkpoint


def load_model(path: str, config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (compute dtype, eval mode) and tokenizer from a resolved path or hub id.

    Raises ArtifactError where they cannot be had or the model's logits are not a plain linear head.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    _check_prompt_format(path, config)
    device = choose_device(config.device)
    common: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **common)
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=choose_dtype(config.dtype, device),
            attn_implementation=attention.register(),
            **common,
        )
    except (OSError, ValueError) as error:
        # The first line says what is missing; transformers goes on with advice about its own hub.
        reason = str(error).strip().splitlines()[0]
        raise ArtifactError(f"the model at {path} cannot be loaded: {reason}") from error
    text = model.config.get_text_config()
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(text, name, None) not in (None, 1, 1.0):
            raise ArtifactError(
                f"model.path={config.path}: {text.model_type} changes its logits after the output layer "
                f"({name}={getattr(text, name)}), which chunked log-probabilities do not know"
            )
    return on_device(model, device), tokenizer


def _check_prompt_format(path: str, config: ModelConfig) -> None:
    """A model trained in one prompt format is another model in the other; nothing but its answers would show it."""
    file = Path(path) / PROMPT_FORMAT_FILE
    if not file.is_file():
        return
    trained_in = json.loads(file.read_text(encoding="utf-8"))["prompt_format"]
    if trained_in != config.prompt_format:
        raise ConfigError(
            f"model.prompt_format={config.prompt_format}, but the model at {path} was trained with {trained_in}; "
            f"add model.prompt_format={trained_in}"
        )


def on_device(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model on ``device``, in eval mode."""
    torch.nn.Module.to(model, device)
    return model.eval()


class Policy:
    """A causal language model with what training needs.

    The model computes in ``model.dtype``. Where that is bfloat16, AdamW runs on float32 master copies (also
    gradients are summed over micro-batches in float32) and each step writes them back: small updates, which
    bfloat16 would round away, add up. ``decoder`` is what updates run: with ``compiled``, through torch.compile.
    """

    def __init__(
        self, model: PreTrainedModel, config: ModelConfig, optim: OptimConfig, *, compiled: bool = False
    ) -> None:
        self.optim = optim
        self._prompt_format = config.prompt_format
        if config.lora is not None:
            from peft import LoraConfig, get_peft_model

            modules = config.lora.target_modules
            adapted = get_peft_model(
                model,
                LoraConfig(
                    r=config.lora.rank,
                    lora_alpha=config.lora.alpha,
                    target_modules=modules if isinstance(modules, str) else list(modules),
                    task_type="CAUSAL_LM",
                ),
            )
            self.adapter: Any = adapted
            self.model: PreTrainedModel = cast("PreTrainedModel", adapted.get_base_model())
        else:
            self.adapter = None
            self.model = model
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            if self.adapter is not None:
                self.model.enable_input_require_grads()
        decoder: torch.nn.Module = self.model.get_decoder()
        # A wrapper over the same weights: the sampler's passes, whose shapes are others, stay as they are.
        self.decoder = cast("torch.nn.Module", torch.compile(decoder, dynamic=True)) if compiled else decoder
        self.reference: PreTrainedModel | None = None
        self._named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self._masters = [parameter.detach().clone().float() for _, parameter in self._named]
        for (_, parameter), master in zip(self._named, self._masters, strict=True):
            master.grad = torch.zeros_like(master)
            parameter.register_post_accumulate_grad_hook(_into(master))
        self._adamw = torch.optim.AdamW(
            self._masters,
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=True,
        )

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def trained_parameters(self) -> int:
        return sum(master.numel() for master in self._masters)

    def freeze_reference(self) -> None:
        """Freeze today's weights as the reference of the KL. Under LoRA the bare base model is the reference."""
        if self.adapter is None:
            # Frozen, so the hooks that feed the masters never fire on the copy.
            self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()
        else:
            self.reference = self.model

    def reference_mode(self) -> Any:
        """Context in which ``reference`` computes as the reference (the adapter is off under LoRA)."""
        return self.adapter.disable_adapter() if self.adapter is not None else contextlib.nullcontext()

    def step(self, lr: float) -> float:
        """One optimiser step on the gradients summed since the last; returns their norm before clipping.

        A gradient that is not finite raises TrainingError and changes nothing. All-zero gradients (an empty
        batch) skip the step, so that momentum does not move weights on no evidence.
        """
        gradients = [master.grad for master in self._masters if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm is {norm}: the step was not taken")
        if norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._masters, self.optim.max_grad_norm, torch.tensor(norm))
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
            self._write_back()
        for gradient in gradients:
            gradient.zero_()
        return norm

    def gradients(self) -> dict[str, Tensor]:
        """What has been summed for the next optimiser step, float32, by parameter; not copied."""
        return {
            name: master.grad
            for (name, _), master in zip(self._named, self._masters, strict=True)
            if master.grad is not None
        }

    @torch.no_grad()
    def _write_back(self) -> None:
        for (_, parameter), master in zip(self._named, self._masters, strict=True):
            parameter.copy_(master)

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """Master weights and AdamW moments by name, for a checkpoint."""
        found: dict[str, Tensor] = {}
        for (name, _), master in zip(self._named, self._masters, strict=True):
            found[f"master.{name}"] = master.detach()
            for key, value in self._adamw.state.get(master, {}).items():
                found[f"adamw.{key}.{name}"] = value
        return found

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put a state back. Raises ArtifactError where names or shapes are another model's."""
        expected = {f"master.{name}": tuple(p.shape) for name, p in self._named}
        given = {name: tuple(value.shape) for name, value in state.items() if name.startswith("master.")}
        if expected != given:
            odd = sorted(set(expected.items()) ^ set(given.items()))[:3]
            raise ArtifactError(f"the checkpoint belongs to another model; first differences: {odd}")
        for (name, _), master in zip(self._named, self._masters, strict=True):
            master.copy_(state[f"master.{name}"])
            moments = {
                key: state[f"adamw.{key}.{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adamw.{key}.{name}" in state
            }
            if moments:
                self._adamw.state[master] = moments
        self._write_back()

    def save_pretrained(self, folder: str) -> None:
        """The weights as transformers (or, under LoRA, peft) loads them."""
        (self.adapter or self.model).save_pretrained(folder)
        (Path(folder) / PROMPT_FORMAT_FILE).write_text(json.dumps({"prompt_format": self._prompt_format}))


def _into(master: Tensor) -> Any:
    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        assert master.grad is not None
        master.grad.add_(parameter.grad)
        parameter.grad = None

    return move


def learning_rate(optim: OptimConfig, step: int, steps: int) -> float:
    """Rate of update ``step`` (from 0) of ``steps``: linear warm-up, then the schedule down to
    ``min_lr_fraction`` of the peak at the last update."""
    if step < optim.lr_warmup_steps:
        return optim.lr * (step + 1) / optim.lr_warmup_steps
    span = max(steps - optim.lr_warmup_steps, 1)
    progress = min((step - optim.lr_warmup_steps) / span, 1.0)
    if optim.schedule == "linear":
        factor = 1 - progress
    elif optim.schedule == "cosine":
        factor = (1 + math.cos(math.pi * progress)) / 2
    else:
        factor = 1.0
    return optim.lr * (optim.min_lr_fraction + (1 - optim.min_lr_fraction) * factor)
