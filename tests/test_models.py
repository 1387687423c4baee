"""Names of models, and the preparation of the fetched one."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.errors import ArtifactError, UsageError
from agent_rl.models import MODELS, SMOLLM2, prepare_smollm2, resolve_model_path
from retrieval_index.fetch import is_fetched


def test_folders_and_hub_ids_are_themselves(tmp_path: Path) -> None:
    assert resolve_model_path(str(tmp_path)) == str(tmp_path)
    assert resolve_model_path("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "/nowhere/at/all"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="known names: smollm2-135m") as caught:
        resolve_model_path(name)
    assert repr(name) in str(caught.value)


def test_a_wheel_without_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no \.gguf"):
        prepare_smollm2(tmp_path, tmp_path / "out")


@pytest.mark.slow
def test_the_fetched_model_ends_its_turns_and_knows_its_template() -> None:
    """The GGUF reader sets eos to <|im_start|>, and a quantised model refuses save_pretrained."""
    if not is_fetched(SMOLLM2):
        pytest.skip("smollm2-135m is not in the cache: run `agent-rl fetch smollm2-135m` first")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model_path(SMOLLM2.name)
    assert MODELS[SMOLLM2.name] is SMOLLM2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert [tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id] == [eos] * 3
    assert tokenizer.decode(tokenizer("a , b  c .")["input_ids"]) == "a , b  c ."

    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(prompt["input_ids"][0]).endswith("<|im_start|>assistant\n")
    out = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    answer = tokenizer.decode(out[0][prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
