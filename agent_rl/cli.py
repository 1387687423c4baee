"""The command line: `agent-rl COMMAND key=value ...`.

Only argparse is imported before a command runs, so that `agent-rl --help` answers at once. This is also the
one place where an error becomes a message and an exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

from agent_rl import commands

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = commands.build_parser()
    args, rest = parser.parse_known_args(argv)
    # argparse takes positionals in one run only: overrides that stand after an option arrive here.
    late = [text for text in rest if not text.startswith("-")]
    if len(late) < len(rest) or (late and "overrides" not in args):
        wrong = [text for text in rest if text.startswith("-")] or late
        args.parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if late:
        args.overrides.extend(late)
    # Before torch is imported: by default OpenMP threads spin for long while they wait for each other, and as soon as
    # another process (the tool server) has one of the cores, every forward pass takes many times as long. A short
    # spin keeps most of the speed of an idle machine.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # oneDNN keeps compiled kernels by shape, 1,024 of them where nothing is said. Lengths of sequences are shapes, so
    # that a trainer would grow by hundreds of MB; this many are more than one micro-batch needs.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a model wrote is shown on terminals that cannot show all of it; hours of work must not end there.
            # And a log file shows each line of a long run as it is said.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    debug = args.debug or os.environ.get("AGENT_RL_DEBUG") == "1"
    try:
        from agent_rl.layout import assert_layout

        assert_layout()
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("agent-rl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; without this, Python complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = explain(error)
        print(f"agent-rl: {message}", file=sys.stderr)
        return code
    return 0


def explain(error: Exception) -> tuple[str, int]:
    """A message fit for a user, and the exit code, of whatever a command raised."""
    full = _disk_full(error)
    if full is not None:
        return full, 1
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return str(error), code
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", 1
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "This is a fault of agent_rl or of a library under it; the same command with --debug shows where.",
        1,
    )


def _disk_full(error: BaseException | None) -> str | None:
    """The message where the error, or what it came from (libraries wrap it in their own), is a full disk."""
    while error is not None:
        if type(error).__name__ == "DiskFull":
            return str(error)  # it knows where, and what to do
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            path = getattr(error, "filename", None)
            return f"disk full: cannot write {path or 'the output'}; free some space or choose another folder"
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    sys.exit(main())
