"""The four patches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.apiserver.client import (
    APPLY,
    CONFIG_MAPS,
    JSON_PATCH,
    PODS,
    POLICIES,
    STRATEGIC,
    Answer,
    Api,
    Object,
    config_map,
    pod,
    policy,
)


def test_merge_patch(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map(a="1", b="2"))
    answer = api.patch(f"{path}/settings", {"data": {"a": None, "c": "3"}})
    assert (answer.code, answer.body["data"]) == (200, {"b": "2", "c": "3"})


def test_merge_patch_replaces_lists(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy(ingress=[{"ports": [{"port": 1}]}, {"ports": [{"port": 2}]}]))
    answer = api.patch(f"{path}/policy", {"spec": {"ingress": [{}]}})
    assert answer.body["spec"]["ingress"] == [{}]


def test_patch_with_a_stale_version(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map(a="1"))
    answer = api.patch(
        f"{path}/settings", {"metadata": {"resourceVersion": "1"}, "data": {"a": "2"}}
    )
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")


def test_patch_of_nothing(api: Api, ns: str) -> None:
    assert api.patch(f"{CONFIG_MAPS.format(ns=ns)}/none", {"data": {}}).code == 404


@pytest.mark.parametrize(
    ("operations", "annotations"),
    [
        (
            [{"op": "add", "path": "/metadata/annotations/c", "value": "3"}],
            {"a": "1", "x.y/b": "2", "c": "3"},
        ),
        ([{"op": "remove", "path": "/metadata/annotations/x.y~1b"}], {"a": "1"}),
        (
            [{"op": "replace", "path": "/metadata/annotations", "value": {"x": "y"}}],
            {"x": "y"},
        ),
        (
            [
                {
                    "op": "move",
                    "from": "/metadata/annotations/a",
                    "path": "/metadata/annotations/z",
                }
            ],
            {"x.y/b": "2", "z": "1"},
        ),
        (
            [
                {
                    "op": "copy",
                    "from": "/metadata/annotations/a",
                    "path": "/metadata/annotations/z",
                }
            ],
            {"a": "1", "x.y/b": "2", "z": "1"},
        ),
        (
            [
                {"op": "test", "path": "/metadata/annotations/a", "value": "1"},
                {"op": "replace", "path": "/metadata/annotations/a", "value": "9"},
            ],
            {"a": "9", "x.y/b": "2"},
        ),
    ],
    ids=["add", "remove", "replace", "move", "copy", "test"],
)
def test_json_patch(api: Api, ns: str, operations: list[Object], annotations: Object) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    wanted = config_map()
    wanted["metadata"]["annotations"] = {"a": "1", "x.y/b": "2"}
    api.create(path, wanted)
    answer = api.patch(f"{path}/settings", operations, JSON_PATCH)
    assert (answer.code, answer.meta["annotations"]) == (200, annotations)


def test_json_patch_of_lists(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy(policyTypes=["Egress"], egress=[{"ports": [{"port": 1}]}]))
    operations = [
        {"op": "add", "path": "/spec/egress/0", "value": {"ports": [{"port": 0 + 5}]}},
        {"op": "add", "path": "/spec/egress/-", "value": {}},
        {"op": "remove", "path": "/spec/egress/1"},
    ]
    answer = api.patch(f"{path}/policy", operations, JSON_PATCH)
    assert answer.body["spec"]["egress"] == [{"ports": [{"port": 5, "protocol": "TCP"}]}, {}]


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/data/a", "value": "other"}], 422),
        ([{"op": "remove", "path": "/data/none"}], 422),
        ([{"op": "add", "path": "/none/deeper", "value": "x"}], 422),
        ({"op": "remove", "path": "/data"}, 400),
    ],
    ids=["failed test", "absent", "no parent", "no list"],
)
def test_refused_json_patches(api: Api, ns: str, operations: Any, code: int) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    made = api.create(path, config_map(a="1")).meta
    assert api.patch(f"{path}/settings", operations, JSON_PATCH).code == code
    assert api.get(f"{path}/settings").meta["resourceVersion"] == made["resourceVersion"]


def test_strategic_patch_merges_containers_by_name(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    two = pod()
    two["spec"]["containers"].append({"name": "side", "image": "registry.invalid/side:1"})
    api.create(path, two)
    change = {"spec": {"containers": [{"name": "side", "image": "registry.invalid/side:2"}]}}
    answer = api.patch(f"{path}/web", change, STRATEGIC)
    assert answer.code == 200
    images = {item["name"]: item["image"] for item in answer.body["spec"]["containers"]}
    assert images == {"main": "registry.invalid/app:1", "side": "registry.invalid/side:2"}


def test_strategic_patch_of_conditions(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    api.create(path, pod())

    def patch(*conditions: Object) -> Object:
        change = {"status": {"conditions": list(conditions)}}
        answer = api.patch(f"{path}/web/status", change, STRATEGIC)
        assert answer.code == 200
        found = answer.body["status"].get("conditions", [])
        return {item["type"]: item["status"] for item in found}

    assert patch({"type": "Ready", "status": "False"}) == {"Ready": "False"}
    both = {"Ready": "False", "Initialized": "True"}
    assert patch({"type": "Initialized", "status": "True"}) == both
    assert patch({"type": "Ready", "status": "True"}) == {**both, "Ready": "True"}
    assert patch({"type": "Ready", "$patch": "delete"}) == {"Initialized": "True"}


def test_strategic_patch_of_finalizers(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    wanted = config_map()
    wanted["metadata"]["finalizers"] = ["a.b/c", "a.b/d"]
    api.create(path, wanted)
    more = api.patch(f"{path}/settings", {"metadata": {"finalizers": ["a.b/e"]}}, STRATEGIC)
    assert set(more.meta["finalizers"]) == {"a.b/c", "a.b/d", "a.b/e"}
    less = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c", "a.b/e"]}}
    assert api.patch(f"{path}/settings", less, STRATEGIC).meta["finalizers"] == ["a.b/d"]


def test_strategic_patch_replaces_on_demand(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map(a="1", b="2"))
    change = {"data": {"$patch": "replace", "c": "3"}}
    assert api.patch(f"{path}/settings", change, STRATEGIC).body["data"] == {"c": "3"}


def test_unknown_patch_type(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map())
    answer = api.patch(f"{path}/settings", {}, "application/json")
    assert (answer.code, answer.body["reason"]) == (415, "UnsupportedMediaType")


# --- server-side apply


def apply(api: Api, path: str, obj: Object, manager: str, *, force: bool = False) -> Answer:
    return api.patch(path, obj, APPLY, fieldManager=manager, force=force or None)


def test_apply_creates_and_is_idempotent(api: Api, ns: str) -> None:
    path = f"{CONFIG_MAPS.format(ns=ns)}/settings"
    made = apply(api, path, config_map(a="1"), "one")
    assert (made.code, made.body["data"]) == (201, {"a": "1"})
    again = apply(api, path, config_map(a="1"), "one")
    assert (again.code, again.meta["resourceVersion"]) == (200, made.meta["resourceVersion"])


def test_apply_keeps_what_others_set(api: Api, ns: str) -> None:
    path = f"{CONFIG_MAPS.format(ns=ns)}/settings"
    apply(api, path, config_map(a="1"), "one")
    both = apply(api, path, config_map(b="2"), "two")
    assert both.body["data"] == {"a": "1", "b": "2"}
    assert {entry["manager"] for entry in both.meta["managedFields"]} == {"one", "two"}


def test_apply_removes_what_it_no_longer_mentions(api: Api, ns: str) -> None:
    path = f"{CONFIG_MAPS.format(ns=ns)}/settings"
    apply(api, path, config_map(a="1", b="2"), "one")
    apply(api, path, config_map(b="2", c="3"), "two")
    less = apply(api, path, config_map(), "one")
    assert less.body["data"] == {"b": "2", "c": "3"}


def test_apply_conflicts(api: Api, ns: str) -> None:
    path = f"{CONFIG_MAPS.format(ns=ns)}/settings"
    apply(api, path, config_map(a="1", b="2"), "one")
    refused = apply(api, path, config_map(a="9"), "two")
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"] == ('Apply failed with 1 conflict: conflict with "one": .data.a')
    assert refused.causes == {("FieldManagerConflict", ".data.a", 'conflict with "one"')}
    forced = apply(api, path, config_map(a="9"), "two", force=True)
    assert (forced.code, forced.body["data"]) == (200, {"a": "9", "b": "2"})
    # The forced field has changed hands.
    back = apply(api, path, config_map(a="1", b="2"), "one")
    assert back.causes == {("FieldManagerConflict", ".data.a", 'conflict with "two"')}


def test_apply_of_list_elements(api: Api, ns: str) -> None:
    path = f"{PODS.format(ns=ns)}/web/status"
    api.create(PODS.format(ns=ns), pod())

    def conditions(manager: str, *types: str) -> set[str]:
        config = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "status": {"conditions": [{"type": name, "status": "True"} for name in types]},
        }
        answer = apply(api, path, config, manager)
        assert answer.code == 200, answer.body
        return {item["type"] for item in answer.body["status"].get("conditions", [])}

    assert conditions("one", "A", "B") == {"A", "B"}
    assert conditions("two", "B", "C") == {"A", "B", "C"}
    assert conditions("one", "A") == {"A", "B", "C"}
    assert conditions("two") == {"A"}


def test_apply_needs_a_manager(api: Api, ns: str) -> None:
    path = f"{CONFIG_MAPS.format(ns=ns)}/settings"
    answer = api.patch(path, config_map(), APPLY)
    assert answer.code in (400, 422)
