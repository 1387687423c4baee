"""verl on a machine without a GPU, for tests alone: a platform, an engine entry, a rollout replica, two patches.

Loaded in every process that imports verl by `VERL_USE_EXTERNAL_MODULES=verl_on_cpu`, with `VERL_PLATFORM=cpu`. Pinned:
what is patched here are internals of one version.
"""

from importlib import metadata

VERL_VERSION = "0.9.1"

found = metadata.version("verl")
if found != VERL_VERSION:
    raise ImportError(f"verl_on_cpu patches internals of verl {VERL_VERSION} and knows nothing of verl {found}")

# First: what the others import asks for the platform.
from verl_on_cpu import platform  # noqa: E402

# isort: split
from verl_on_cpu import patches, replica  # noqa: E402

__all__ = ["patches", "platform", "replica"]
