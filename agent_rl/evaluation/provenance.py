"""Where numbers were made: machine and versions, stored with every evaluation."""

from __future__ import annotations

import os
import platform
from importlib import metadata

PACKAGES = ("agent-rl", "torch", "transformers", "vllm")


def machine_and_versions() -> dict[str, str]:
    """``{"python", "platform", "cpus", package: version}``; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpus": str(os.cpu_count())}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
