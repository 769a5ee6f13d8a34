"""Watches: where they begin, what they show, how they end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.apiserver.client import (
    CONFIG_MAPS,
    PODS,
    POLICIES,
    Api,
    config_map,
    pod,
    policy,
)

BOOKMARK = "k8s.io/initial-events-end"


def version(api: Api, path: str) -> str:
    """The version of a list."""
    found: str = api.get(path).meta["resourceVersion"]
    return found


def test_a_watch_goes_on_where_a_list_ended(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map("old"))
    since = version(api, path)
    api.create(path, config_map("early"))
    with api.watch(path, resourceVersion=since) as events:
        api.patch(f"{path}/old", {"data": {"a": "1"}})
        api.call("DELETE", f"{path}/early")
        api.create(path, config_map("late"))
        assert events.take(4) == [
            ("ADDED", "early"),
            ("MODIFIED", "old"),
            ("DELETED", "early"),
            ("ADDED", "late"),
        ]


def test_versions_of_events_increase(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    for name in ("a", "b"):
        api.create(path, config_map(name))
    api.call("DELETE", f"{path}/a")
    with api.watch(path, resourceVersion=since) as events:
        seen = [int(events.next()["object"]["metadata"]["resourceVersion"]) for _ in range(3)]
    assert seen == sorted(set(seen))
    assert seen[0] > int(since)


@pytest.mark.parametrize("begin", [None, "0"], ids=["absent", "zero"])
def test_a_watch_without_version_begins_with_what_is_there(
    api: Api, ns: str, begin: str | None
) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    for name in ("a", "b"):
        api.create(path, config_map(name))
    with api.watch(path, resourceVersion=begin) as events:
        assert sorted(events.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
        api.create(path, config_map("c"))
        assert events.take(1) == [("ADDED", "c")]


def test_a_watch_of_one_namespace(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    api.create(CONFIG_MAPS.format(ns="default"), config_map(f"elsewhere-{ns}"))
    api.create(path, config_map("here"))
    with api.watch(path, resourceVersion=since) as events:
        assert events.take(1) == [("ADDED", "here")]


def test_a_watch_of_one_object(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    for name in ("other", "mine"):
        api.create(path, config_map(name))
    with api.watch(path, resourceVersion=since, fieldSelector="metadata.name=mine") as events:
        assert events.take(1) == [("ADDED", "mine")]


def test_an_object_that_leaves_the_selection_is_deleted(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    api.create(path, config_map("other", {"app": "b"}))
    api.create(path, config_map("mine", {"app": "a"}, x="1"))
    with api.watch(path, resourceVersion=since, labelSelector="app=a") as events:
        assert events.take(1) == [("ADDED", "mine")]
        left = api.patch(f"{path}/mine", {"metadata": {"labels": {"app": "b"}}, "data": {"x": "2"}})
        gone = events.next()
        assert (gone["type"], gone["object"]["metadata"]["name"]) == ("DELETED", "mine")
        # The state before it left, at the version at which it left.
        assert gone["object"]["data"] == {"x": "1"}
        assert gone["object"]["metadata"]["resourceVersion"] == left.meta["resourceVersion"]
        api.patch(f"{path}/mine", {"data": {"x": "3"}})
        api.patch(f"{path}/mine", {"metadata": {"labels": {"app": "a"}}})
        api.patch(f"{path}/mine", {"data": {"x": "4"}})
        assert events.take(2) == [("ADDED", "mine"), ("MODIFIED", "mine")]
        api.call("DELETE", f"{path}/mine")
        assert events.take(1) == [("DELETED", "mine")]


def test_a_field_selector_follows_the_status(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    since = version(api, path)
    api.create(path, pod(nodeName="node1"))
    query = {"fieldSelector": "spec.nodeName=node1,status.phase!=Succeeded"}
    with api.watch(path, resourceVersion=since, **query) as events:
        assert events.take(1) == [("ADDED", "web")]
        api.patch(f"{path}/web/status", {"status": {"phase": "Running"}})
        api.patch(f"{path}/web/status", {"status": {"phase": "Succeeded"}})
        assert events.take(2) == [("MODIFIED", "web"), ("DELETED", "web")]


def test_a_watch_ends_in_time(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    began = time.monotonic()
    with api.watch(path, resourceVersion=since, timeoutSeconds=1) as events:
        assert events.rest() == []
    assert 0.5 < time.monotonic() - began < 10


def initial(**query: Any) -> dict[str, Any]:
    return {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        **query,
    }


def test_initial_events_end_with_a_bookmark(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    for name in ("a", "b"):
        last = api.create(path, policy(name))
    with api.watch(path, **initial()) as events:
        assert sorted(events.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
        end = events.next()
        assert end["type"] == "BOOKMARK"
        assert end["object"]["kind"] == "NetworkPolicy"
        assert end["object"]["metadata"]["annotations"] == {BOOKMARK: "true"}
        reached = int(end["object"]["metadata"]["resourceVersion"])
        assert reached >= int(last.meta["resourceVersion"])
        api.create(path, policy("c"))
        assert events.take(1) == [("ADDED", "c")]


def test_initial_events_of_nothing(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    with api.watch(path, **initial()) as events:
        assert events.next()["object"]["metadata"]["annotations"] == {BOOKMARK: "true"}


def test_initial_events_at_a_version(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy("a"))
    query = initial(resourceVersion=made.meta["resourceVersion"])
    with api.watch(path, **query) as events:
        assert events.take(1) == [("ADDED", "a")]
        assert events.next()["type"] == "BOOKMARK"


@pytest.mark.parametrize(
    "query",
    [
        {"sendInitialEvents": "true"},
        {"resourceVersionMatch": "NotOlderThan"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": "1"},
    ],
    ids=["no match", "match alone", "exact"],
)
def test_refused_watches(api: Api, ns: str, query: dict[str, str]) -> None:
    answer = api.get(POLICIES.format(ns=ns), watch="true", **query)
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")


def test_a_list_takes_no_initial_events(api: Api, ns: str) -> None:
    answer = api.get(POLICIES.format(ns=ns), sendInitialEvents="true")
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")


def test_bad_version(api: Api, ns: str) -> None:
    answer = api.get(POLICIES.format(ns=ns), watch="true", resourceVersion="latest")
    assert answer.code >= 400


def test_metadata_of_a_watch(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    since = version(api, path)
    api.create(path, config_map(a="1"))
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    with api.watch(path, accept=accept, resourceVersion=since) as events:
        event = events.next()
    assert event["type"] == "ADDED"
    assert event["object"]["kind"] == "PartialObjectMetadata"
    assert event["object"]["metadata"]["name"] == "settings"
    assert "data" not in event["object"]
