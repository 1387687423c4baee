"""A folder that is written beside its place and renamed at the end: what stands there is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_rl.commands.parsing import check_out


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """The folder to write into. Raises UsageError where ``out`` holds anything already, or cannot be written."""
    from agent_rl.errors import UsageError

    if (out / "manifest.json").exists():
        raise UsageError(f"{out} holds a data set already; delete it or give another folder: out=...")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} holds other files; give an empty folder or a new one: out=...")
    check_out(out)
    partial = out.absolute().with_name(f".{out.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
