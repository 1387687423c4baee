"""From YAML presets and overrides to a checked, frozen record, by Hydra's compose API.

Hydra reads the defaults lists and merges the presets. The user's dotted overrides are applied here and not by
Hydra, whose first unknown key ends the composition: every fault is to be reported at once.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

import configs
from agent_rl.config import overrides as override_syntax
from agent_rl.config.commands import COMMANDS
from agent_rl.config.faults import Fault, check
from agent_rl.config.schema import Record
from agent_rl.config.sections import branches
from agent_rl.errors import ConfigError, UsageError

CONFIG_DIR = Path(configs.__file__).resolve().parent


def compose(command: str, overrides: list[str], config_dir: Path | None = None) -> Record:
    """The record of ``command`` (a key of ``COMMANDS``) under ``overrides``.

    ``config_dir``: a folder of further presets, ``<group>/<name>.yaml``. ``run=DIR`` (eval, rollout) takes
    the configuration saved in DIR as the base. Raises ConfigError with all faults, each with its dotted path.
    """
    primary, record_type = COMMANDS[command]
    presets_of = _presets(primary, config_dir)
    typed = override_syntax.parse(overrides, presets_of)
    faults = list(typed.faults)
    if isinstance(typed.values.get("tools"), list) and branches(record_type.model_fields["tools"]):
        typed.values["tools.names"] = typed.values.pop("tools")  # tools=[python] of a run, as of serve-tools

    values, files = _compose_yaml(primary, typed.presets, config_dir)
    run = typed.values.get("run") if "run" in record_type.model_fields else None
    if run is not None:
        if "experiment" in typed.presets:
            raise ConfigError(
                f"experiment={typed.presets['experiment']}: not together with run={run}; drop one of the two"
            )
        saved = _saved_config(Path(str(run)))
        values = saved | {group: values[group] for group in typed.presets} | {"run_dir": str(run)}
        files = [file for file in files if file.parent.name in typed.presets] + [Path(str(run)) / "config.yaml"]
    override_syntax.apply(values, typed.values)
    values = _resolve(values, faults)

    record, found = check(record_type, copy.deepcopy(values))
    faults += found
    if record is None or faults:
        raise ConfigError(_report(command, faults, typed, files))
    return record


def resolved_yaml(record: Record) -> str:
    """The whole record as YAML, defaults included; reading it back gives the same record."""
    return yaml.safe_dump(record.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _presets(primary: str, config_dir: Path | None) -> dict[str, list[str]]:
    """The preset names of each group that ``primary`` has in its defaults list."""
    defaults = yaml.safe_load((CONFIG_DIR / f"{primary}.yaml").read_text(encoding="utf-8")).get("defaults", [])
    groups = [key.removeprefix("optional ") for entry in defaults if isinstance(entry, dict) for key in entry]
    if config_dir is not None:
        _check_config_dir(config_dir, groups)
    folders = [CONFIG_DIR] + ([config_dir] if config_dir else [])
    return {
        group: sorted(file.stem for folder in folders for file in (folder / group).glob("*.yaml")) for group in groups
    }


def _check_config_dir(config_dir: Path, groups: list[str]) -> None:
    """Raise UsageError where the folder is absent, holds no preset, or holds one that ours would hide."""
    if not config_dir.is_dir():
        raise UsageError(f"--config-dir {config_dir}: no such folder")
    files = [file for group in groups for file in sorted((config_dir / group).glob("*.yaml"))]
    if not files:
        raise UsageError(f"--config-dir {config_dir}: no <group>/<name>.yaml in it; the groups are {', '.join(groups)}")
    for file in files:
        if (CONFIG_DIR / file.relative_to(config_dir)).exists():
            raise UsageError(f"{file}: has the name of a preset that comes with agent_rl; rename it")


def _compose_yaml(primary: str, presets: dict[str, str], config_dir: Path | None) -> tuple[dict[str, Any], list[Path]]:
    """Hydra's merge of the primary file and the chosen presets, and the files that took part."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    asked = [f"{group}={name}" for group, name in presets.items()]
    if config_dir is not None:
        # The address is quoted, so that Hydra's grammar does not read a comma or a bracket in it.
        address = "file://" + str(config_dir.resolve())
        asked.append("hydra.searchpath=['" + address.replace("'", "\\'") + "']")
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
            composed = hydra_compose(primary, overrides=asked, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).split("\n\n")[0]  # Hydra goes on with its whole search path
        chosen = " ".join(f"{group}={name}" for group, name in presets.items())
        where = f" of --config-dir {config_dir}" if config_dir is not None else ""
        raise ConfigError(f"the presets {chosen or primary}{where} cannot be composed: {reason}") from error
    choices = OmegaConf.to_container(composed.hydra.runtime.choices)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    values: Any = OmegaConf.to_container(composed, resolve=False)
    folders = [CONFIG_DIR] + ([config_dir] if config_dir else [])
    files = [
        folder / str(group) / f"{name}.yaml"
        for group, name in (choices.items() if isinstance(choices, dict) else ())
        for folder in folders
        if (folder / str(group) / f"{name}.yaml").is_file()
    ]
    return values, [*files, CONFIG_DIR / f"{primary}.yaml"]


def _resolve(values: dict[str, Any], faults: list[Fault]) -> dict[str, Any]:
    """Values with ``${...}`` interpolations filled in; a fault where one cannot be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        faults.append(Fault("", None, f"an interpolation cannot be filled in: {str(error).splitlines()[0]}"))
        return values
    return resolved


def _saved_config(run: Path) -> dict[str, Any]:
    file = run / "config.yaml"
    if not file.is_file():
        raise UsageError(f"run={run}: {file} does not exist; give the directory of a run that `agent-rl train` wrote")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: is not a saved configuration (not YAML: {reason})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: is not a saved configuration (a mapping is expected)")
    return values


def _report(command: str, faults: list[Fault], typed: override_syntax.Overrides, files: list[Path]) -> str:
    """The message: one line a fault, each with where its key was written."""
    trees = [(file, yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files]

    def origin(path: str) -> str:
        if any(fault.path == path for fault in typed.faults) or any(
            path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in typed.values
        ):
            return ""
        for file, tree in trees:
            # A preset of a group is merged below the group's name, an experiment at the top.
            if _holds(tree, path) or _holds({file.parent.name: tree}, path):
                inside = file.is_relative_to(CONFIG_DIR)
                return f"in {file.relative_to(CONFIG_DIR.parent) if inside else file}"
        return ""

    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "\n".join(f"  {fault.line(origin)}" for fault in faults)
    return f"{count} in the configuration of {command}:\n{lines}"


def _holds(tree: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True
