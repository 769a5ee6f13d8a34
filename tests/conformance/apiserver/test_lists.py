"""Lists: selectors, pages, versions, forms; and discovery."""

from __future__ import annotations

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


def names(api: Api, path: str, **query: object) -> list[str]:
    answer = api.get(path, **query)
    assert answer.code == 200, answer.body
    return [item["metadata"]["name"] for item in answer.body["items"]]


def test_a_list_has_a_version_and_an_order(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    for name in ("b", "a", "c"):
        last = api.create(path, config_map(name))
    answer = api.get(path)
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("ConfigMapList", "v1")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "b", "c"]
    assert int(answer.meta["resourceVersion"]) >= int(last.meta["resourceVersion"])


def test_an_empty_list(api: Api, ns: str) -> None:
    assert api.get(PODS.format(ns=ns)).body["items"] == []


def test_all_namespaces(api: Api, ns: str) -> None:
    api.create(POLICIES.format(ns=ns), policy(f"everywhere-{ns}"))
    found = api.get("/apis/networking.k8s.io/v1/networkpolicies").body["items"]
    assert (ns, f"everywhere-{ns}") in [
        (item["metadata"]["namespace"], item["metadata"]["name"]) for item in found
    ]


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("app=web", ["web1", "web2"]),
        ("app==web", ["web1", "web2"]),
        ("app!=web", ["bare", "db"]),
        ("app in (web,db)", ["db", "web1", "web2"]),
        ("app notin (web)", ["bare", "db"]),
        ("tier", ["web1"]),
        ("!tier", ["bare", "db", "web2"]),
        ("app=web,!tier", ["web2"]),
        ("app in (web),tier in (front,back)", ["web1"]),
        ("rank>1", ["web2"]),
        ("rank<2", ["web1"]),
        ("", ["bare", "db", "web1", "web2"]),
    ],
)
def test_label_selectors(api: Api, ns: str, selector: str, wanted: list[str]) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    for name, labels in {
        "web1": {"app": "web", "tier": "front", "rank": "1"},
        "web2": {"app": "web", "rank": "2"},
        "db": {"app": "db"},
        "bare": {},
    }.items():
        api.create(path, config_map(name, labels))
    assert names(api, path, labelSelector=selector) == wanted


@pytest.mark.parametrize("selector", ["a b", "a in b", "a=(", "a>b"])
def test_bad_label_selectors(api: Api, ns: str, selector: str) -> None:
    answer = api.get(CONFIG_MAPS.format(ns=ns), labelSelector=selector)
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


def test_field_selectors(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    for name, node in {"a": "node1", "b": "node2", "c": "node1"}.items():
        api.create(path, pod(name, nodeName=node))
    api.patch(f"{path}/a/status", {"status": {"phase": "Running"}})
    assert names(api, path, fieldSelector="metadata.name=b") == ["b"]
    assert names(api, path, fieldSelector="spec.nodeName=node1") == ["a", "c"]
    assert names(api, path, fieldSelector="spec.nodeName!=node1") == ["b"]
    assert names(api, path, fieldSelector="status.phase=Running") == ["a"]
    both = "spec.nodeName=node1,status.phase!=Running"
    assert names(api, path, fieldSelector=both) == ["c"]
    assert names(api, path, fieldSelector=f"metadata.namespace={ns}") == ["a", "b", "c"]


def test_unknown_field_selector(api: Api, ns: str) -> None:
    answer = api.get(PODS.format(ns=ns), fieldSelector="spec.color=red")
    assert answer.code == 400
    assert "field label not supported" in answer.body["message"]


def test_pages_show_one_state(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    for at in range(5):
        api.create(path, config_map(f"m{at}"))
    first = api.get(path, limit=2)
    assert [item["metadata"]["name"] for item in first.body["items"]] == ["m0", "m1"]
    assert first.meta["remainingItemCount"] == 3
    # What happens between the pages does not show in them.
    api.call("DELETE", f"{path}/m2")
    api.create(path, config_map("m3b"))
    second = api.get(path, limit=2, continue_=first.meta["continue"])
    assert [item["metadata"]["name"] for item in second.body["items"]] == ["m2", "m3"]
    assert second.meta["resourceVersion"] == first.meta["resourceVersion"]
    third = api.get(path, limit=2, continue_=second.meta["continue"])
    assert [item["metadata"]["name"] for item in third.body["items"]] == ["m4"]
    assert "continue" not in third.meta


def test_bad_continue_token(api: Api, ns: str) -> None:
    answer = api.get(CONFIG_MAPS.format(ns=ns), limit=2, continue_="nonsense")
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


def test_the_past(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map("kept", a="1"))
    then = api.create(path, config_map("lost")).meta["resourceVersion"]
    api.call("DELETE", f"{path}/lost")
    api.patch(f"{path}/kept", {"data": {"a": "2"}})
    api.create(path, config_map("new"))
    exact = api.get(path, resourceVersion=then, resourceVersionMatch="Exact")
    assert exact.meta["resourceVersion"] == then
    assert [item["metadata"]["name"] for item in exact.body["items"]] == ["kept", "lost"]
    assert exact.body["items"][0]["data"] == {"a": "1"}
    atleast = names(api, path, resourceVersion=then, resourceVersionMatch="NotOlderThan")
    assert atleast == ["kept", "new"]


def test_the_future(api: Api, ns: str) -> None:
    answer = api.get(CONFIG_MAPS.format(ns=ns), resourceVersion="99999999")
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")
    assert "Too large resource version: 99999999, current: " in answer.body["message"]
    assert "ResourceVersionTooLarge" in {
        cause["reason"] for cause in answer.body["details"]["causes"]
    }


def test_match_without_version(api: Api, ns: str) -> None:
    answer = api.get(CONFIG_MAPS.format(ns=ns), resourceVersionMatch="Exact")
    assert answer.code in (400, 422)


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_tables(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    selector = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "b", "operator": "Exists"}],
    }
    api.create(path, policy(podSelector=selector))
    table = api.get(path, accept=TABLE).body
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "Pod-Selector",
        "Age",
    ]
    (row,) = table["rows"]
    assert row["cells"][:2] == ["policy", "app=web,b"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "policy"
    one = api.get(f"{path}/policy", accept=TABLE).body
    assert one["rows"][0]["cells"][0] == "policy"


def test_table_of_pods(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    api.create(path, pod(nodeName="node1"))
    status = {"phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}]}
    api.patch(f"{path}/web/status", {"status": status})
    table = api.get(path, accept=TABLE).body
    heads = [column["name"] for column in table["columnDefinitions"]]
    cells = dict(zip(heads, table["rows"][0]["cells"], strict=True))
    wanted = {"Name": "web", "Ready": "0/1", "Status": "Running", "IP": "10.1.1.1", "Node": "node1"}
    assert {head: cells[head] for head in wanted} == wanted


def test_metadata_only(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map(a="1"))
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    found = api.get(path, accept=accept).body
    assert found["kind"] == "PartialObjectMetadataList"
    assert found["items"][0]["metadata"]["name"] == "settings"
    assert "data" not in found["items"][0]
    one = api.get(
        f"{path}/settings", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    ).body
    assert one["kind"] == "PartialObjectMetadata"
    assert "data" not in one


BUILTIN = {
    ("v1", "configmaps"): ("ConfigMap", True, ["cm"]),
    ("v1", "namespaces"): ("Namespace", False, ["ns"]),
    ("v1", "nodes"): ("Node", False, ["no"]),
    ("v1", "pods"): ("Pod", True, ["po"]),
    ("networking.k8s.io/v1", "networkpolicies"): ("NetworkPolicy", True, ["netpol"]),
    ("coordination.k8s.io/v1", "leases"): ("Lease", True, []),
}


@pytest.mark.parametrize(("group_version", "plural"), BUILTIN)
def test_discovery(api: Api, group_version: str, plural: str) -> None:
    kind, namespaced, short = BUILTIN[group_version, plural]
    prefix = "/apis/" if "/" in group_version else "/api/"
    listed = api.get(f"{prefix}{group_version}").body
    assert (listed["kind"], listed["groupVersion"]) == ("APIResourceList", group_version)
    (found,) = [item for item in listed["resources"] if item["name"] == plural]
    assert (found["kind"], found["namespaced"]) == (kind, namespaced)
    assert found["singularName"] == kind.lower()
    assert found.get("shortNames", []) == short
    verbs = {"create", "delete", "get", "list", "patch", "update", "watch"}
    assert verbs <= set(found["verbs"])


def test_aggregated_discovery(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    for root in ("/api", "/apis"):
        answer = api.get(root, accept=f"{accept},application/json")
        assert answer.headers["content-type"].replace(" ", "") == accept
        assert answer.body["kind"] == "APIGroupDiscoveryList"
        for group in answer.body["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:
                prefix = f"{name}/{version['version']}" if name else version["version"]
                for resource in version["resources"]:
                    wanted = BUILTIN.get((prefix, resource["resource"]))
                    if wanted:
                        assert resource["responseKind"]["kind"] == wanted[0]
                        scope = "Namespaced" if wanted[1] else "Cluster"
                        assert resource["scope"] == scope
                        assert resource["singularResource"] == wanted[0].lower()


def test_groups(api: Api) -> None:
    groups = {group["name"]: group for group in api.get("/apis").body["groups"]}
    assert groups["networking.k8s.io"]["preferredVersion"]["version"] == "v1"
    assert api.get("/apis/networking.k8s.io").body["kind"] == "APIGroup"
    assert api.get("/api").body["versions"] == ["v1"]
    assert api.get("/apis/nothing.example.com").code == 404


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(api: Api, path: str) -> None:
    assert (api.get(path).code, api.get(path).body) == (200, "ok")


def test_version(api: Api) -> None:
    version = api.get("/version").body
    assert version["major"] == "1"
    assert version["gitVersion"].startswith("v1.")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/pods"),
        ("PUT", "/api/v1/namespaces/default/pods"),
        ("TRACE", "/api/v1/pods"),
    ],
)
def test_methods_that_are_not_allowed(api: Api, method: str, path: str) -> None:
    answer = api.call(method, path, pod())
    assert (answer.code, answer.body["reason"]) == (405, "MethodNotAllowed")
