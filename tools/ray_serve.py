"""The tool server on Ray Serve: the same app in several replicas, on one machine or a cluster, behind one port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.batcher import HostedTool
from tools.host import ServerLimits, ToolHost
from tools.listen import ServeError, bind, token_for
from tools.load import SWITCH_S, load_tools, loaded_for_good
from tools.ray_startup import Startup
from tools.server import GRACE_S, KEEP_ALIVE_S, check_search, check_tools, description, url_of

if TYPE_CHECKING:
    from starlette.applications import Starlette

APP = "tools"
# Bodies travel through Ray's shared memory, and nothing else does; its own default is a third of the machine's
OBJECT_STORE_BYTES = 256 * 2**20
# Our own queues bound what waits, and answer 429; Ray's limit of requests in a replica is never to be met
MAX_ONGOING = 1_000_000
# Only without any replica (all of them died, and are being started again) does a request wait in Ray's proxy: so many,
# each so long, the others are answered 503 at once
MAX_WAITING = 1024
MAX_WAIT_S = 600.0


@dataclass(frozen=True)
class _Settings:
    """What a replica is given."""

    tools: tuple[str, ...]
    load: dict[str, Any]  # arguments of load_tools
    limits: ServerLimits
    token: str | None = field(repr=False)


def serve_on_ray(
    tools: Sequence[str],
    *,
    index: str,
    host: str,
    port: int,
    token_file: str | None,
    max_body_bytes: int,
    search: dict[str, Any],
    python: dict[str, Any],
    sql: dict[str, Any],
    replicas: int = 1,
    max_replicas: int | None = None,
    target_ongoing_requests: int = 64,
    replica_cpus: float = 1.0,
    replica_gpus: float = 0.0,
    ray_address: str | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve ``tools`` from ``replicas`` processes, each of which loads them itself, until SIGTERM or Ctrl-C.

    With ``max_replicas`` Ray keeps between ``replicas`` and that many: one more where replicas have more than
    ``target_ongoing_requests`` each in hand (for half a minute), one less where fewer would do (for ten minutes).

    ``search``, ``python`` and ``sql`` are the settings of the tools (max_batch, max_queue and cache_entries of search
    hold for each replica). Joins the cluster at ``ray_address``, else at $RAY_ADDRESS, else starts a Ray of its own,
    which ends with it. One line goes to ``say`` when all replicas are ready. Raises ServeError; its ``exit_code`` is
    that of what a replica could not load.
    """
    check_tools(tools)
    most = replicas if max_replicas is None else max_replicas
    if most > 1 and "python" in tools and python.get("engine") != "remote" and python.get("stateful", True):
        name = "replicas" if max_replicas is None else "max_replicas"
        raise ServeError(
            f"{name}={most}: python keeps the definitions of a session in one replica, and the next call may go "
            "to another; give python.stateful=false, python.engine=remote, or one replica"
        )
    token = token_for(host, token_file)
    if "search" in tools:
        check_search(index, search["max_top_k"])
    # a worker has another working directory than this process
    databases = {name: str(Path(file).resolve()) for name, file in sql.get("databases", {}).items()}
    how = dict(search)
    limits = ServerLimits(max_body_bytes, how.pop("max_batch"), how.pop("max_queue"), how.pop("cache_entries"))
    if how["rerank"] is not None and Path(how["rerank"]).exists():
        how["rerank"] = str(Path(how["rerank"]).resolve())
    load = {"index": str(Path(index).resolve()), "search": how, "python": python, "sql": sql | {"databases": databases}}
    settings = _Settings(tuple(tools), load, limits, token)
    url = url_of(host, port)

    address = ray_address or os.environ.get("RAY_ADDRESS") or "local"
    stdout = sys.stdout
    with (
        contextlib.redirect_stdout(sys.stderr),  # Ray prints there too, and those who wait for the ready line read it
        _joined(address, host, port, most, replica_cpus, replica_gpus),
        contextlib.suppress(_Told),
        _until_told(),
    ):
        import ray

        # held here: it ends with this process
        startup = ray.remote(Startup).options(num_cpus=0).remote(replicas)
        resources = {"num_cpus": replica_cpus, "num_gpus": replica_gpus}
        count: dict[str, Any] = {"num_replicas": replicas}
        if most > replicas:
            load_of_each = {"target_ongoing_requests": target_ongoing_requests}
            count = {"autoscaling_config": {"min_replicas": replicas, "max_replicas": most, **load_of_each}}
        _deploy(settings, startup, host, port, {"ray_actor_options": resources, **count})
        what = ray.get(startup.all_ready.remote())
        if what.failure is not None:
            failure = ServeError(f"a replica cannot load its tools: {what.failure}")
            failure.exit_code = what.exit_code
            raise failure
        line = f"ready: {url}  {what.description}  replicas: {replicas}{f' to {most}' if most > replicas else ''}"
        print(line, file=stdout, flush=True) if say is None else say(line)
        while True:
            time.sleep(3600)  # ended by _Told


@contextlib.contextmanager
def _joined(
    address: str, host: str, port: int, replicas: int, replica_cpus: float, replica_gpus: float
) -> Iterator[None]:
    """Ray while the block lasts, and no Serve after it. Raises ServeError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ServeError(f"engine=ray needs Ray Serve ({error}): pip install 'agent-rl[ray]'") from None
    local = address == "local"
    if local:
        bind(host, port).close()  # says at once that a port is taken
    try:
        own = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False} if local else {}
        ray.init(address=address, logging_level=logging.WARNING, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        hint = "is it up, and must RAY_AUTH_MODE=token be set for it?"
        raise ServeError(f"ray_address={address!r} cannot be joined ({_last_line(error)}); {hint}") from None
    try:
        if local:
            _check_room(ray.cluster_resources(), {"CPU": replica_cpus, "GPU": replica_gpus}, replicas)
        elif serve.status().proxies:
            raise ServeError(
                f"ray_address={address!r}: Ray Serve runs on this cluster already, and its port and host cannot be "
                "changed; end it (`serve shutdown`), or take another cluster"
            )
        try:
            yield
        finally:
            serve.shutdown()
    finally:
        ray.shutdown()


def _check_room(there: dict[str, float], each: dict[str, float], replicas: int) -> None:
    for name, amount in each.items():
        if amount * replicas > there.get(name, 0.0):
            raise ServeError(
                f"replicas={replicas} of replica_{name.lower()}s={amount:g} need {amount * replicas:g} {name}s, and "
                f"this machine has {there.get(name, 0.0):g}; give fewer, or join a cluster with ray_address=host:port"
            )


def _deploy(settings: _Settings, startup: Any, host: str, port: int, options: dict[str, Any]) -> None:
    """``options``: how many replicas, and what each needs, in Ray's own words."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    logs = {"log_level": "WARNING", "enable_access_log": False}
    http = {"host": host, "port": port, "keep_alive_timeout_s": KEEP_ALIVE_S, "request_timeout_s": MAX_WAIT_S}
    deployment = serve.deployment(
        serve.ingress()(_Replica),
        name=APP,
        max_ongoing_requests=MAX_ONGOING,
        max_queued_requests=MAX_WAITING,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=GRACE_S,
        **options,
    )
    try:
        serve.start(http_options=http, logging_config=logs)
    except RuntimeError as error:
        raise ServeError(f"Ray Serve cannot listen on {host}:{port}: {_last_line(error)}") from None
    try:
        serve.run(deployment.bind(settings, startup), name=APP, route_prefix="/", logging_config=logs)
    except RuntimeError as error:
        raise ServeError(
            f"Ray Serve cannot start a replica: {_last_line(error)}; is agent_rl installed on every node?"
        ) from None


def _last_line(error: Exception) -> str:
    """What went wrong, of a message that may hold the traceback of another process."""
    return str(error).strip().rpartition("\n")[2]


class _Replica:
    """One replica. Its app is up at once and says "loading" as long as the whole deployment starts; one that is started
    later, for another that died, is asked nothing before its tools are loaded.
    """

    def __init__(self, settings: _Settings, startup: Any) -> None:
        self._settings, self._startup = settings, startup

    async def __serve_build_asgi_app__(self) -> Starlette:
        import ray
        from ray import serve

        from tools.app import create_app

        name = serve.get_replica_context().replica_id.unique_id
        for handler in logging.getLogger("ray.serve").handlers:
            logging.getLogger("tools").addHandler(handler)  # what is logged elsewhere is lost in a replica
        sys.setswitchinterval(SWITCH_S)
        try:
            first = await self._startup.begin.remote()
        except ray.exceptions.RayActorError:
            first = False  # whoever deployed is gone, without having ended Serve
        load: Callable[[], Sequence[HostedTool]]
        if first:
            load = self._load_with_the_others
        else:
            tools = await asyncio.to_thread(self._load)
            load = lambda: tools  # noqa: E731

        def when_loaded(host: ToolHost) -> None:
            if host.state == "ready":
                loaded_for_good()
                self._startup.ready.remote(name, description(host, self._settings.load["index"]))

        return create_app(load, self._settings.limits, token=self._settings.token, when_loaded=when_loaded)

    def _load(self) -> list[HostedTool]:
        return load_tools(self._settings.tools, **self._settings.load)

    def _load_with_the_others(self) -> list[HostedTool]:
        """Returns when every replica has loaded: /health must not say "ready" for one and "loading" for the next."""
        import ray

        try:
            tools = self._load()
        except Exception as error:
            code = getattr(error, "exit_code", None)
            text = str(error) if code is not None else f"{type(error).__name__}: {error}"
            ray.get(self._startup.failed.remote(text, 1 if code is None else code))
            raise
        ray.get(self._startup.loaded.remote())
        return tools


class _Told(BaseException):
    """SIGTERM or Ctrl-C came."""


@contextlib.contextmanager
def _until_told() -> Iterator[None]:
    """The first of SIGTERM and Ctrl-C ends the block with _Told; more of them do not disturb the end of the process."""

    def told(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise _Told

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    yield
