"""Faults: each does what it says, to the requests it is meant for, as often as it is meant to."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest

from reconciler.testing import (
    ApiServer,
    Cut,
    DuplicateInitial,
    EndWatch,
    HangUp,
    NoBookmarks,
    Refuse,
    ShuffleInitial,
    Slow,
    Stall,
)
from tests.conformance.apiserver.client import CONFIG_MAPS, Api, config_map

PATH = CONFIG_MAPS.format(ns="default")
WATCH_LIST = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


@pytest.fixture
def names(server: ApiServer) -> list[str]:
    """Objects to look at."""
    found = [f"m{at}" for at in range(8)]
    for name in found:
        server.create(config_map(name))
    return found


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
def test_refuse(server: ApiServer, api: Api, code: int, reason: str) -> None:
    fault = server.faults.add(Refuse(code), verb="list")
    answer = api.get(PATH)
    assert (answer.code, answer.body["reason"], answer.body["code"]) == (code, reason, code)
    assert "retry-after" not in answer.headers
    assert api.get(PATH).code == 200
    assert fault.hits == 1
    assert fault.spent


def test_retry_after(server: ApiServer, api: Api) -> None:
    server.faults.add(Refuse(429, retry_after=7))
    answer = api.get(PATH)
    assert answer.headers["retry-after"] == "7"
    assert answer.body["details"]["retryAfterSeconds"] == 7


def test_times_and_skip(server: ApiServer, api: Api) -> None:
    server.faults.add(Refuse(500), times=2, skip=1)
    assert [api.get(PATH).code for _ in range(5)] == [200, 500, 500, 200, 200]


def test_for_ever_until_removed(server: ApiServer, api: Api) -> None:
    fault = server.faults.add(Refuse(500), times=None)
    assert {api.get(PATH).code for _ in range(5)} == {500}
    server.faults.remove(fault)
    assert api.get(PATH).code == 200
    server.faults.add(Refuse(500), times=None)
    server.faults.clear()
    assert api.get(PATH).code == 200


@pytest.mark.parametrize(
    ("verb", "method", "path", "query"),
    [
        ("get", "GET", f"{PATH}/m0", {}),
        ("list", "GET", PATH, {}),
        ("watch", "GET", PATH, {"watch": "true"}),
        ("watch", "GET", PATH, {"watch": "true", **WATCH_LIST}),
        ("watchlist", "GET", PATH, {"watch": "true", **WATCH_LIST}),
        ("create", "POST", PATH, {}),
        ("update", "PUT", f"{PATH}/m0", {}),
        ("patch", "PATCH", f"{PATH}/m0", {}),
        ("delete", "DELETE", f"{PATH}/m0", {}),
        ("deletecollection", "DELETE", PATH, {}),
        ("discovery", "GET", "/version", {}),
    ],
)
def test_verbs(
    server: ApiServer,
    api: Api,
    names: list[str],
    verb: str,
    method: str,
    path: str,
    query: dict[str, str],
) -> None:
    kinds = {
        "get",
        "list",
        "watchlist",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "discovery",
        "continue",
    }
    others = [
        server.faults.add(Refuse(418), verb=other)
        for other in kinds - {verb}
        if not (verb == "watch" and other == "watchlist")
    ]
    fault = server.faults.add(Refuse(503), verb=verb)
    assert api.call(method, path, None, **query).code == 503
    assert fault.hits == 1
    assert all(other.hits == 0 for other in others)


def test_of_one_resource(server: ApiServer, api: Api) -> None:
    server.faults.add(Refuse(500), resource="pods", times=None)
    assert api.get(PATH).code == 200
    assert api.get("/api/v1/pods").code == 500


def test_an_expired_continue_token(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(Refuse(410), verb="continue")
    first = api.get(PATH, limit=3)
    assert first.code == 200
    assert api.get(PATH, limit=3, continue_=first.meta["continue"]).code == 410
    assert api.get(PATH, limit=3, continue_=first.meta["continue"]).code == 200


def test_hang_up(server: ApiServer, api: Api) -> None:
    server.faults.add(HangUp())
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        api.get(PATH)
    assert api.get(PATH).code == 200
    assert [record.code for record in server.requests()] == [0, 200]


def test_cut_a_list(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(Cut(100))
    with pytest.raises(http.client.IncompleteRead) as broken:
        api.get(PATH)
    assert len(broken.value.partial) == 100


def test_cut_a_watch_in_the_middle_of_a_line(server: ApiServer, api: Api, names: list[str]) -> None:
    with api.watch(PATH) as events:
        whole = [events.next() for _ in names]
    server.faults.add(Cut(1000), verb="watch")
    with api.watch(PATH) as events:
        text = events.text()
    assert len(text) == 1000
    *lines, half = text.split(b"\n")
    assert [json.loads(line) for line in lines] == whole[: len(lines)]
    assert len(lines) > 1
    assert half.startswith(b'{"type":"ADDED"')
    assert not half.endswith(b"}}")


def test_slow_bytes(server: ApiServer, api: Api) -> None:
    server.create(config_map(a="x" * 300))
    size = len(api.call("GET", f"{PATH}/settings").body["data"]["a"])
    assert size == 300
    server.faults.add(Slow(2000))
    began = time.monotonic()
    assert api.get(f"{PATH}/settings").code == 200
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize("query", [{}, {"watch": "true"}], ids=["list", "watch"])
def test_stall(server: ApiServer, api: Api, query: dict[str, str]) -> None:
    server.faults.add(Stall())
    impatient = Api(api.url, api.kubeconfig, timeout=0.2)
    if query:
        with impatient.watch(PATH, resourceVersion=1, timeoutSeconds=1) as events:
            server.create(config_map())
            with pytest.raises(TimeoutError):
                events.next()
    else:
        with pytest.raises(TimeoutError):
            impatient.get(PATH)
    assert api.get(PATH).code == 200


def test_end_of_a_watch_with_an_error(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(EndWatch(410, events=3), verb="watch")
    with api.watch(PATH, resourceVersion=1) as events:
        kinds = [event["type"] for event in events.rest()]
    assert kinds == ["ADDED", "ADDED", "ADDED", "ERROR"]


def test_end_of_a_watch_among_initial_events(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(EndWatch(500, events=2), verb="watchlist")
    with api.watch(PATH, **WATCH_LIST) as events:
        found = events.rest()
    assert [event["type"] for event in found] == ["ADDED", "ADDED", "ERROR"]
    assert found[-1]["object"]["code"] == 500


def test_a_clean_end_of_a_watch(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(EndWatch(0, events=1), verb="watch")
    with api.watch(PATH, resourceVersion=1) as events:
        assert [event["type"] for event in events.rest()] == ["ADDED"]


def test_no_bookmarks(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(NoBookmarks(), verb="watchlist")
    with api.watch(PATH, **WATCH_LIST) as events:
        assert [kind for kind, _ in events.take(len(names))] == ["ADDED"] * len(names)
        server.send_bookmarks()
        server.create(config_map("late"))
        assert events.take(1) == [("ADDED", "late")]


def initial(api: Api, count: int) -> list[str]:
    with api.watch(PATH, **WATCH_LIST) as events:
        found = events.take(count + 1)
    assert found[-1][0] == "BOOKMARK"
    return [name for _, name in found[:-1]]


def test_duplicate_initial_events(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(DuplicateInitial())
    assert initial(api, 2 * len(names)) == [name for name in names for _ in range(2)]


def test_shuffled_initial_events(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(ShuffleInitial(seed=1), times=2)
    first, second = initial(api, len(names)), initial(api, len(names))
    assert first == second
    assert first != names
    assert sorted(first) == names


def test_faults_add_up(server: ApiServer, api: Api, names: list[str]) -> None:
    server.faults.add(DuplicateInitial())
    server.faults.add(ShuffleInitial(seed=2))
    server.faults.add(EndWatch(410, events=5))
    with api.watch(PATH, **WATCH_LIST) as events:
        found: list[Any] = events.rest()
    assert len(found) == 6
    assert found[-1]["type"] == "ERROR"


def test_dropped_connections(server: ApiServer, api: Api) -> None:
    with api.watch(PATH, resourceVersion=1) as events:
        server.drop_connections()
        with pytest.raises((http.client.IncompleteRead, ConnectionError, ValueError)):
            events.next()
    assert api.get(PATH).code == 200
