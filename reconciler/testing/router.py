"""Requests to answers: what each URL and method means.

`Router.answer` names the request (verb and resource), lets the armed faults have their say, and
calls the function for the verb. Refusals come back as `Status` objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing import discovery, errors, faults, managed, patch, wire
from reconciler.testing.objects import Object, encode, timestamp
from reconciler.testing.requests import (
    Target,
    body_of,
    options_of,
    read_token,
    selector_of,
    target_of,
    verbs_of,
    version_of,
    view_of,
    whole_number,
    write_token,
)
from reconciler.testing.storage import HistoryCut, Storage, Stored
from reconciler.testing.watch import Hub, Stream, Wish, deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.testing.registry import Registry
    from reconciler.testing.writes import Writes

logger = logging.getLogger(__name__)

_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """One answered request."""

    verb: str
    """As in `reconciler.testing.faults`; the most specific one: `watchlist` rather than `watch`."""
    resource: str
    """The plural; empty for discovery."""
    path: str
    query: dict[str, str]
    code: int
    """The HTTP code; 0 if the connection was closed without an answer."""
    user_agent: str


class Router:
    """The API of one server, called in its event loop."""

    def __init__(
        self,
        storage: Storage,
        registry: Registry,
        writes: Writes,
        hub: Hub,
        armed: faults.Faults,
        *,
        bookmark_interval: float,
        clock: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._writes = writes
        self._hub = hub
        self._armed = armed
        self._interval = bookmark_interval
        self._clock = clock
        self.records: deque[Record] = deque(maxlen=_REMEMBERED)
        self.answered = 0

    async def answer(self, request: wire.Request) -> wire.Response:
        """Answer one request. Raises `wire.HangUp` when a fault wants the connection closed."""
        verbs: tuple[str, ...] = ("discovery",)
        plural = ""
        code = 0
        try:
            target = target_of(request, self._registry)
            if target is not None:
                verbs, plural = verbs_of(request, target), target.resource.plural
            effects = self._armed.take(verbs, plural)
            response = await self._faulty(request, target, verbs, effects)
            code = response.code
            return response
        except wire.HangUp:
            raise
        except errors.ApiError as error:
            code = error.code
            return _failure(error)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            code = 500
            return _failure(errors.ApiError(500, f"Internal error occurred: {error!r}"))
        finally:
            self.answered += 1
            agent = request.headers.get("user-agent", "")
            self.records.append(Record(verbs[-1], plural, request.path, request.query, code, agent))

    async def _faulty(
        self,
        request: wire.Request,
        target: Target | None,
        verbs: tuple[str, ...],
        effects: list[faults.Effect],
    ) -> wire.Response:
        cut: int | None = None
        rate: float | None = None
        for effect in effects:
            match effect:
                case faults.Refuse():
                    raise effect.error()
                case faults.HangUp():
                    raise wire.HangUp
                case faults.Stall() if "watch" not in verbs:
                    await asyncio.Event().wait()
                case faults.Cut(after):
                    cut = after
                case faults.Slow(bytes_per_second):
                    rate = bytes_per_second
        response = (
            self._discover(request)
            if target is None
            else self._serve(request, target, verbs, effects)
        )
        if cut is None and rate is None:
            return response
        line = wire.Line(cut, rate)
        return wire.Response(
            response.code, response.body, response.content_type, response.headers, line
        )

    def _discover(self, request: wire.Request) -> wire.Response:
        path = request.path.rstrip("/")
        accept = request.headers.get("accept", "")
        if request.method != "GET":
            raise errors.not_allowed()
        if path in _HEALTH:
            return wire.Response(200, b"ok", "text/plain")
        if path in ("/api", "/apis") and discovery.wants_aggregated(accept):
            body = discovery.aggregated(self._registry, core=path == "/api")
            return wire.Response(200, encode(body), discovery.AGGREGATED)
        parts = path.strip("/").split("/")
        found: Object | None = None
        match parts:
            case ["version"]:
                found = discovery.VERSION
            case ["api"]:
                found = discovery.api_versions()
            case ["apis"]:
                found = discovery.group_list(self._registry)
            case ["api", version]:
                found = discovery.resource_list(self._registry, "", version)
            case ["apis", group]:
                found = discovery.one_group(self._registry, group)
            case ["apis", group, version]:
                found = discovery.resource_list(self._registry, group, version)
            case ["openapi", "v3"]:
                found = discovery.openapi_index(self._registry)
            case ["openapi", "v3", *rest]:
                found = discovery.openapi(self._registry, "/".join(rest))
        if found is None:
            raise errors.no_such_path()
        return _json(200, found)

    # --- verbs

    def _serve(
        self,
        request: wire.Request,
        target: Target,
        verbs: tuple[str, ...],
        effects: list[faults.Effect],
    ) -> wire.Response:
        match verbs[0]:
            case "get":
                stored = self._writes.get(target.resource, target.namespace, target.name)
                return _object(200, request, target, stored)
            case "list":
                return self._list(request, target)
            case "watch":
                return self._watch(request, target, effects)
            case "create":
                stored = self._writes.create(
                    target.resource, target.namespace, body_of(request), options_of(request)
                )
                return _object(201, request, target, stored)
            case "update":
                wanted = body_of(request)
                return self._change(request, target, lambda _: wanted)
            case "patch":
                return self._patch(request, target)
            case "delete":
                return self._delete(request, target)
            case "deletecollection":
                return self._delete_collection(request, target)
            case _:
                raise errors.not_allowed()

    def _list(self, request: wire.Request, target: Target) -> wire.Response:
        resource = target.resource
        if "sendInitialEvents" in request.query:
            complaint = errors.forbidden_field("sendInitialEvents", "is forbidden for list")
            raise errors.invalid("ListOptions", "meta.k8s.io", "", [complaint])
        selector = selector_of(request, target)
        limit = whole_number(request, "limit")
        token = request.query.get("continue", "")
        version, start = self._list_version(request, token)
        try:
            at, objects = self._storage.snapshot(resource.key, version)
        except HistoryCut:
            raise (errors.expired_continue() if token else errors.expired_list()) from None
        prefix = f"{target.namespace}/" if target.namespace else ""
        chosen = [
            stored
            for stored in objects
            if stored.path.startswith(prefix)
            and stored.path > start
            and (not selector or selector.matches(stored.obj))
        ]
        meta: Object = {"resourceVersion": str(at)}
        # The real server serves version 0 from its cache, which does not page.
        if 0 < limit < len(chosen) and request.query.get("resourceVersion") != "0":
            meta["continue"] = write_token(at, chosen[limit - 1].path)
            if not selector:
                meta["remainingItemCount"] = len(chosen) - limit
            chosen = chosen[:limit]
        form = view_of(request)
        if not form.plain:
            return _json(200, form.many(resource, [stored.obj for stored in chosen], meta))
        head = b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[' % (
            resource.kind.encode(),
            resource.api_version.encode(),
            encode(meta),
        )
        return wire.Response(200, head + b",".join(stored.raw for stored in chosen) + b"]}\n")

    def _list_version(self, request: wire.Request, token: str) -> tuple[int | None, str]:
        """The state to list (None: the present), and the path after which to begin."""
        asked = version_of(request)
        match = request.query.get("resourceVersionMatch", "")
        number = int(asked or 0)
        if token:
            if asked not in ("", "0"):
                raise errors.bad_request(
                    "specifying resource version is not allowed when using continue"
                )
            return read_token(token)
        if match and not asked:
            raise errors.bad_request(
                "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if match not in ("", "Exact", "NotOlderThan"):
            raise errors.bad_request(f'resourceVersionMatch: Unsupported value: "{match}"')
        if match == "Exact" and not number:
            raise errors.bad_request(
                'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            )
        if number > self._storage.version:
            raise errors.too_large(number, self._storage.version)
        return (number if match == "Exact" else None), ""

    def _watch(
        self, request: wire.Request, target: Target, effects: list[faults.Effect]
    ) -> wire.Response:
        initial = (
            request.flag("sendInitialEvents") if "sendInitialEvents" in request.query else None
        )
        match = request.query.get("resourceVersionMatch", "")
        if (initial is not None) != (match == "NotOlderThan"):
            field = "resourceVersionMatch" if initial is None else "sendInitialEvents"
            if initial is not None or match:
                why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                if initial is None:
                    why = (
                        "resourceVersionMatch is forbidden for watch unless sendInitialEvents "
                        "is provided"
                    )
                raise errors.invalid(
                    "ListOptions", "meta.k8s.io", "", [errors.forbidden_field(field, why)]
                )
        wish = Wish(
            target.resource,
            target.namespace,
            selector_of(request, target),
            version_of(request),
            initial,
            request.flag("allowWatchBookmarks"),
            deadline(request.query.get("timeoutSeconds", "")),
            view_of(request),
        )
        stream = Stream(self._storage, self._hub, wish, effects, self._interval)
        kind = "application/json;stream=watch" if not wish.view.plain else "application/json"
        return wire.Response(200, stream.lines(), kind)

    def _change(
        self,
        request: wire.Request,
        target: Target,
        change: Callable[[Object], Any],
        *,
        applied: bool = False,
    ) -> wire.Response:
        stored = self._writes.update(
            target.resource,
            target.namespace,
            target.name,
            change,
            subresource=target.subresource,
            options=options_of(request, applied=applied),
        )
        return _object(200, request, target, stored)

    def _patch(self, request: wire.Request, target: Target) -> wire.Response:
        resource = target.resource
        body = body_of(request, anything=True)
        match request.headers.get("content-type", "").split(";")[0].strip():
            case "application/json-patch+json":
                return self._change(request, target, lambda old: patch.json_patch(old, body))
            case "application/merge-patch+json":
                return self._change(request, target, lambda old: patch.merge(old, body))
            case "application/strategic-merge-patch+json" if resource.builtin:
                return self._change(
                    request, target, lambda old: patch.strategic(old, body, resource.schema)
                )
            case "application/apply-patch+yaml":
                return self._apply(request, target, body)
            case other:
                raise errors.unknown_format(
                    (
                        "application/json-patch+json",
                        "application/merge-patch+json",
                        "application/apply-patch+yaml",
                    ),
                    other,
                )

    def _apply(self, request: wire.Request, target: Target, config: Any) -> wire.Response:
        manager = request.query.get("fieldManager", "")
        if not manager:
            raise errors.bad_request("fieldManager is required for apply patch")

        def applied(live: Object | None) -> Object:
            return managed.apply(
                live,
                config,
                manager,
                target.resource.schema,
                force=request.flag("force"),
                now=timestamp(self._clock()),
                subresource=target.subresource,
            )

        with self._storage.lock:
            try:
                self._writes.get(target.resource, target.namespace, target.name)
            except errors.ApiError:
                if target.subresource:
                    raise
                obj = applied(None)
                obj["metadata"].setdefault("name", target.name)
                options = options_of(request, applied=True)
                stored = self._writes.create(target.resource, target.namespace, obj, options)
                return _object(201, request, target, stored)
            return self._change(request, target, applied, applied=True)

    def _delete(self, request: wire.Request, target: Target) -> wire.Response:
        options = body_of(request) if request.body else {}
        conditions = options.get("preconditions") or {}
        stored, gone = self._writes.delete(
            target.resource,
            target.namespace,
            target.name,
            uid=conditions.get("uid") or "",
            version=conditions.get("resourceVersion") or "",
            options=options_of(request, dry_run=bool(options.get("dryRun"))),
        )
        if not gone:
            return _object(200, request, target, stored)
        details = {
            "name": target.name,
            "kind": target.resource.plural,
            "uid": stored.obj["metadata"]["uid"],
        }
        if target.resource.group:
            details["group"] = target.resource.group
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
        return _json(200, body)

    def _delete_collection(self, request: wire.Request, target: Target) -> wire.Response:
        selector = selector_of(request, target)
        resource, options = target.resource, options_of(request)
        prefix = f"{target.namespace}/" if target.namespace else ""
        with self._storage.lock:
            chosen = [
                stored
                for stored in self._storage.snapshot(resource.key)[1]
                if stored.path.startswith(prefix) and selector.matches(stored.obj)
            ]
            for stored in chosen:
                meta = stored.obj["metadata"]
                self._writes.delete(
                    resource, meta.get("namespace", ""), meta["name"], options=options
                )
        meta = {"resourceVersion": str(self._storage.version)}
        items = [stored.obj for stored in chosen]
        kind = f"{resource.kind}List"
        return _json(
            200,
            {"kind": kind, "apiVersion": resource.api_version, "metadata": meta, "items": items},
        )


# --- writing answers


def _json(code: int, value: Any) -> wire.Response:
    return wire.Response(code, encode(value) + b"\n")


def _object(code: int, request: wire.Request, target: Target, stored: Stored) -> wire.Response:
    form = view_of(request)
    if form.plain and stored.raw:
        return wire.Response(code, stored.raw + b"\n")
    return _json(code, form.one(target.resource, stored.obj))


def _failure(error: errors.ApiError) -> wire.Response:
    headers = () if error.retry_after is None else (("Retry-After", str(error.retry_after)),)
    return wire.Response(error.code, encode(error.status()) + b"\n", headers=headers)
