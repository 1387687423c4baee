"""Where language models come from: a fetched name, a local folder, or a hub id.

The quick start's model, SmolLM2-135M-Instruct (Apache-2.0), is carried as a 4-bit GGUF file inside a wheel on the
package index, so it can be had wherever pip works. It is dequantised once into an ordinary safetensors folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from agent_rl.errors import ArtifactError

SMOLLM2_EOS = "<|im_end|>"
SMOLLM2_BOS = "<|im_start|>"


def prepare_smollm2(gguf_path: Path, out_dir: Path) -> None:
    """Turn the GGUF file into a folder that ``from_pretrained`` reads: bf16 weights, tokenizer, chat template.

    ``out_dir`` is created and must be empty. Raises ArtifactError where the file does not hold what is expected.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder, name = str(gguf_path.parent), gguf_path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # The GGUF reader leaves eos at <|im_start|>: with it, generation would not stop at the end of a turn.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = SMOLLM2_BOS, SMOLLM2_EOS, SMOLLM2_EOS
    # Byte-level BPE decodes exactly only without the WordPiece clean-up of spaces before punctuation.
    tokenizer.clean_up_tokenization_spaces = False

    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    tokenizer.model_max_length = config.max_position_embeddings  # GGUF leaves 10^30
    # A model read from GGUF refuses save_pretrained, so its weights move to a fresh model without that history.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if hasattr(config, "_model_name_or_path"):  # GGUF's training-run title, which is no path
        del config._model_name_or_path
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    fresh.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    fresh.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    _check_saved(out_dir)


def _check_saved(folder: Path) -> None:
    """Read the folder back as a user would; raise ArtifactError unless ids and chat template survived."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    eos = tokenizer.convert_tokens_to_ids(SMOLLM2_EOS)
    ids = {
        "tokenizer": tokenizer.eos_token_id,
        "config.json": config["eos_token_id"],
        "generation_config.json": generation["eos_token_id"],
    }
    faults = [f"eos id of {where} is {got}, not {eos} ({SMOLLM2_EOS})" for where, got in ids.items() if got != eos]
    if not tokenizer.chat_template:
        faults.append("the chat template is missing")
    if "quantization_config" in config:
        faults.append("config.json still has quantization_config")
    if faults:
        raise ArtifactError(f"{folder}: the model was not prepared rightly: {'; '.join(faults)}")
