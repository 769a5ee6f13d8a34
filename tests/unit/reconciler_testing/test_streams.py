"""What only a server under the test's control can show of watches: compaction, slow readers..."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from reconciler.testing import ApiServer
from tests.conformance.apiserver.client import CONFIG_MAPS, Api, config_map

PATH = CONFIG_MAPS.format(ns="default")


def test_a_watch_from_before_the_compaction_is_expired(server: ApiServer, api: Api) -> None:
    since = server.resource_version
    server.create(config_map("a"))
    server.compact()
    with api.watch(PATH, resourceVersion=since) as events:
        error = events.next()
        assert events.rest() == []
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert error["object"]["message"].startswith(f"too old resource version: {since} (")


def test_the_version_of_the_compaction_is_still_good(server: ApiServer, api: Api) -> None:
    server.create(config_map("a"))
    server.compact()
    with api.watch(PATH, resourceVersion=server.resource_version) as events:
        server.create(config_map("b"))
        assert events.take(1) == [("ADDED", "b")]


def test_running_watches_outlive_a_compaction(server: ApiServer, api: Api) -> None:
    with api.watch(PATH, resourceVersion=server.resource_version) as events:
        server.create(config_map("a"))
        server.compact()
        server.create(config_map("b"))
        assert events.take(2) == [("ADDED", "a"), ("ADDED", "b")]


def test_pages_expire(server: ApiServer, api: Api) -> None:
    for name in ("a", "b", "c"):
        server.create(config_map(name))
    token = api.get(PATH, limit=1).meta["continue"]
    version = server.resource_version
    server.create(config_map("d"))
    server.compact()
    page = api.get(PATH, limit=1, continue_=token)
    assert (page.code, page.body["reason"]) == (410, "Expired")
    assert page.body["message"].startswith("The provided continue parameter is too old")
    exact = api.get(PATH, resourceVersion=version, resourceVersionMatch="Exact")
    assert (exact.code, exact.body["reason"]) == (410, "Expired")


def test_history_is_bounded(tmp_path: Path) -> None:
    with ApiServer(history=10) as server:
        since = server.resource_version
        server.create(config_map())
        for number in range(30):
            server.patch("cm", "settings", {"data": {"n": str(number)}})
        api = Api(server.url, tmp_path)
        with api.watch(PATH, resourceVersion=since) as events:
            assert events.next()["object"]["code"] == 410
        with api.watch(PATH, resourceVersion=server.resource_version - 10) as events:
            seen = [events.next()["object"]["data"]["n"] for _ in range(10)]
        assert seen == [str(number) for number in range(20, 30)]


def test_history_must_hold_something() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ApiServer(history=0)


def test_bookmarks_on_demand(server: ApiServer, api: Api) -> None:
    with (
        api.watch(PATH, resourceVersion=1, allowWatchBookmarks="true") as events,
        api.watch(PATH, resourceVersion=1) as plain,
    ):
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        server.send_bookmarks()
        bookmark = events.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"] == {
            "resourceVersion": str(server.resource_version),
            "creationTimestamp": None,
        }
        server.create(config_map("a"))
        assert events.take(1) == [("ADDED", "a")]
        assert plain.take(1) == [("ADDED", "a")], "no bookmark for who did not ask"


def test_bookmarks_by_themselves(tmp_path: Path) -> None:
    with ApiServer(bookmark_interval=0.05) as server:
        api = Api(server.url, tmp_path)
        with api.watch(PATH, resourceVersion=1, allowWatchBookmarks="true") as events:
            assert [kind for kind, _ in events.take(3)] == ["BOOKMARK"] * 3


def test_a_watch_ends_with_a_bookmark(server: ApiServer, api: Api) -> None:
    with api.watch(PATH, resourceVersion=1, allowWatchBookmarks="true", timeoutSeconds=1) as events:
        assert [event["type"] for event in events.rest()] == ["BOOKMARK"]


def test_initial_events_from_the_future(server: ApiServer, api: Api) -> None:
    answer = api.get(
        PATH,
        watch="true",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        resourceVersion=server.resource_version + 1,
    )
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")


def test_many_watchers_of_many_changes(server: ApiServer, api: Api) -> None:
    """Every watcher sees every change, in order, while several threads write."""
    watchers, writers, changes = 8, 4, 50
    begin = server.resource_version
    seen: list[list[int]] = [[] for _ in range(watchers)]

    def watch(mine: list[int]) -> None:
        with api.watch(PATH, resourceVersion=begin) as events:
            mine.extend(
                int(events.next()["object"]["metadata"]["resourceVersion"])
                for _ in range(writers * (changes + 1))
            )

    def write(name: str) -> None:
        server.create(config_map(name))
        for number in range(changes):
            server.patch("cm", name, {"data": {"n": str(number)}})

    threads = [threading.Thread(target=watch, args=(mine,)) for mine in seen]
    threads += [threading.Thread(target=write, args=(f"w{at}",)) for at in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    wanted = list(range(begin + 1, begin + 1 + writers * (changes + 1)))
    assert seen == [wanted] * watchers


def test_a_reader_that_is_too_slow_is_cut_off(tmp_path: Path) -> None:
    with ApiServer(history=50) as server:
        api = Api(server.url, tmp_path)
        big = {"data": {"x": "x" * 200_000}}
        server.create(config_map())
        with api.watch(PATH, resourceVersion=server.resource_version) as events:
            for number in range(200):
                big["data"]["n"] = str(number)
                server.patch("cm", "settings", big)
            seen = [int(event["object"]["data"]["n"]) for event in events.rest()]
        assert seen == list(range(len(seen)))
        assert len(seen) < 200
