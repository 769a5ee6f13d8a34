"""`ApiServer`: a Kubernetes API in memory, spoken over real HTTP, for tests and for clusters on one
machine.

It has two doors. Clients use HTTP: `kubectl`, the official client, this library. The test itself
uses the methods below, which see and change the same objects; they are trusted, so `status` is
stored as given, and `validate=False` lets in objects that a real server would refuse.

The server is one thread with one event loop. It sleeps while nothing happens, however many watches
are open.

    with ApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        Path("config").write_text(server.kubeconfig())
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import yaml

from reconciler.testing import managed, wire
from reconciler.testing import patch as patches
from reconciler.testing.errors import ApiError
from reconciler.testing.faults import Faults
from reconciler.testing.objects import Object, clone, timestamp
from reconciler.testing.registry import Registry
from reconciler.testing.router import Record, Router
from reconciler.testing.selectors import Selector, parse_labels
from reconciler.testing.storage import Storage
from reconciler.testing.watch import Hub
from reconciler.testing.writes import SYSTEM_NAMESPACES, Options, Writes

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Coroutine
    from typing import Literal

    from reconciler.testing.registry import Resource

_CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a server is doing."""

    requests: int
    """Answered since it was made."""
    connections: int
    """Open now."""
    watches: int
    """Running now."""
    objects: int
    resource_version: int


class ApiServer:
    """An in-memory API server on `host`:`port` (0: any free port).

    `history` is the number of events that each resource remembers, and with it how far back a watch
    may begin. `bookmark_interval` (seconds) is how often a watch that allows bookmarks gets one.
    `clock` (seconds since the epoch) stamps objects.

    A stopped server can be started again: on the same port, with the same objects.
    What the API refuses raises `ApiError`; a kind that nobody registered, `LookupError`.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        history: int = 20_000,
        bookmark_interval: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.faults = Faults()
        self._address = (host, port)
        self._clock = clock
        self._hub = Hub()
        self._registry = Registry()
        self._storage = Storage(history=history, changed=self._hub.changed)
        self._writes = Writes(self._storage, self._registry, clock)
        self._router = Router(
            self._storage,
            self._registry,
            self._writes,
            self._hub,
            self.faults,
            bookmark_interval=bookmark_interval,
            clock=clock,
        )
        self._connections = wire.Connections(self._router.answer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[asyncio.Server] = []
        for name in SYSTEM_NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # --- running

    def start(self) -> Self:
        """Listen and serve in a thread of its own. Raises `OSError` if the port is taken,
        `RuntimeError` if running.
        """
        if self._loop is not None:
            raise RuntimeError("the server is running already")
        listener = socket.create_server(self._address, backlog=128)
        self._address = listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._hub.attach(self._loop)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"apiserver-{self._address[1]}", daemon=True
        )
        self._thread.start()
        self.serve(listener)
        return self

    def serve(self, sock: socket.socket) -> None:
        """Accept on `sock` too: bound and listening, perhaps in another network namespace. `stop`
        closes it.

        Raises `RuntimeError` if the server is not running.
        """
        self._call(self._listen(sock))

    async def _listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        listener = await asyncio.start_server(
            self._connections.accept, sock=sock, limit=wire.HEAD_LIMIT
        )
        self._listeners.append(listener)

    def stop(self) -> None:
        """Close every socket, end every stream, join the thread. Nothing happens if it is not
        running.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._call(self._close())
        self._hub.attach(None)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._loop = self._thread = None

    async def _close(self) -> None:
        # A listener that is closed while the loop makes a connection of what it accepted leaks that
        # socket, and its client waits for ever. So first accept no more, and let these three turns
        # of the loop pass in which the connections appear.
        for listener in self._listeners:
            for sock in listener.sockets:
                asyncio.get_running_loop().remove_reader(sock)
        for _ in range(3):
            await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        await self._connections.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            work.close()
            raise RuntimeError("the server is not running")
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`http://host:port` of the first socket. Raises `RuntimeError` before the first start."""
        host, port = self._address
        if not port:
            raise RuntimeError("the server has not been started")
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def kubeconfig(self, url: str = "") -> str:
        """A kubeconfig (YAML) for `url`, by default the server's own."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testing", "cluster": {"server": url or self.url}}],
            "users": [{"name": "testing", "user": {"token": "testing"}}],
            "contexts": [{"name": "testing", "context": {"cluster": "testing", "user": "testing"}}],
            "current-context": "testing",
        }
        return yaml.safe_dump(config, sort_keys=False)

    # --- objects
    # `resource`: a plural (`pods`), plural and group (`pods.example.com`), kind or short name.

    def add_resource(self, resource: Resource) -> None:
        """Register a custom resource. Raises `ValueError` if the name is taken."""
        self._registry.add(resource)

    def create(self, obj: Object, *, validate: bool = True) -> Object:
        """Store a new object; returns it as stored. A missing namespace means `default`."""
        resource = self._registry.of(obj)
        namespace = (obj.get("metadata") or {}).get("namespace", "")
        options = Options(trusted=True, validate=validate, strict=validate)
        return _copy(self._writes.create(resource, namespace, obj, options).raw)

    def apply(self, obj: Object, *, validate: bool = True) -> Object:
        """Create the object, or replace the one of this name whatever its version. No change writes
        nothing.

        A replacement without `status` keeps the old one.
        """
        resource = self._registry.of(obj)
        meta = obj["metadata"]
        namespace = meta.get("namespace") or ("default" if resource.namespaced else "")
        with self._storage.lock:
            try:
                self._writes.get(resource, namespace, meta["name"])
            except ApiError:
                return self.create(obj, validate=validate)
            wanted = clone(obj)
            wanted["metadata"].pop("resourceVersion", None)
            wanted["metadata"].pop("uid", None)
            options = Options(trusted=True, validate=validate, strict=validate)
            stored = self._writes.update(
                resource, namespace, meta["name"], lambda _: wanted, options=options
            )
            return _copy(stored.raw)

    def patch(
        self,
        resource: str,
        name: str,
        change: Any,
        namespace: str = "",
        *,
        kind: Literal["merge", "json", "strategic", "apply"] = "merge",
        validate: bool = True,
    ) -> Object:
        """Patch an object, `status` included. `apply` is a forced server-side apply by the manager
        `testing`.
        """
        found = self._registry.named(resource)
        namespace = namespace or ("default" if found.namespaced else "")

        def patched(old: Object) -> Any:
            match kind:
                case "merge":
                    return patches.merge(old, change)
                case "json":
                    return patches.json_patch(old, change)
                case "strategic":
                    return patches.strategic(old, change, found.schema)
                case "apply":
                    now = timestamp(self._clock())
                    return managed.apply(old, change, "testing", found.schema, force=True, now=now)

        options = Options(trusted=True, validate=validate, strict=validate, applied=kind == "apply")
        return _copy(self._writes.update(found, namespace, name, patched, options=options).raw)

    def delete(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object; one with finalizers is only marked. A namespace goes with everything in
        it.
        """
        found = self._registry.named(resource)
        self._writes.delete(found, namespace or ("default" if found.namespaced else ""), name)

    def get(self, resource: str, name: str, namespace: str = "") -> Object:
        """A copy of an object. Raises `ApiError` 404."""
        found = self._registry.named(resource)
        namespace = namespace or ("default" if found.namespaced else "")
        return _copy(self._writes.get(found, namespace, name).raw)

    def list(
        self, resource: str, namespace: str = "", label_selector: str = ""
    ) -> builtins.list[Object]:
        """Copies of all objects, ordered by namespace and name; without `namespace`, of all
        namespaces.
        """
        found = self._registry.named(resource)
        selector = Selector(parse_labels(label_selector))
        prefix = f"{namespace}/" if namespace else ""
        return [
            _copy(stored.raw)
            for stored in self._storage.snapshot(found.key)[1]
            if stored.path.startswith(prefix) and selector.matches(stored.obj)
        ]

    # --- time and connections

    @property
    def resource_version(self) -> int:
        """The version of the latest write of any resource."""
        return self._storage.version

    def compact(self) -> None:
        """Forget the history: a watch or a page from before this moment gets 410 Expired. Running
        watches go on.
        """
        self._storage.compact()

    def send_bookmarks(self) -> None:
        """Send a bookmark on every running watch that allows them, now. Raises `RuntimeError` if
        not running.
        """

        async def ask() -> None:
            self._hub.ask_for_bookmarks()

        self._call(ask())

    def drop_connections(self) -> None:
        """Reset every open connection, streams included; new ones are welcome. Raises
        `RuntimeError` if not running.
        """

        async def drop() -> None:
            self._connections.reset()

        self._call(drop())

    def requests(self, verb: str = "", resource: str = "") -> builtins.list[Record]:
        """The latest 10,000 requests, oldest first, filtered by verb and plural. Watches count when
        they begin.
        """
        records = tuple(self._router.records)
        return [
            record
            for record in records
            if (not verb or record.verb == verb) and (not resource or record.resource == resource)
        ]

    def statistics(self) -> Statistics:
        """A snapshot of counters."""
        return Statistics(
            self._router.answered,
            len(self._connections),
            len(self._hub),
            self._storage.count(),
            self._storage.version,
        )


def _copy(raw: bytes) -> Object:
    copy: Object = json.loads(raw)
    return copy
