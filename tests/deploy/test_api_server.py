"""A real API server takes the manifests, and lets the agent do what it needs and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import Cluster
from tests.deploy.manifests import DEPLOY, KUSTOMIZE, kustomize, overlays, pick
from tests.deploy.tools import built

AGENT = "system:serviceaccount:kube-system:npc"
SOMEBODY_ELSE = "system:serviceaccount:kube-system:default"

MONITORING = "monitoring.coreos.com/v1"

LISTED = [
    "/api/v1/pods",
    "/api/v1/namespaces",
    "/apis/networking.k8s.io/v1/networkpolicies",
]
REFUSED = [
    ("GET", "/api/v1/nodes"),
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/namespaces/kube-system"),
    ("GET", "/api/v1/namespaces/kube-system/configmaps"),
    ("GET", "/api/v1/namespaces/kube-system/pods/npc"),
    ("GET", "/api/v1/namespaces/kube-system/serviceaccounts"),
    ("GET", "/apis/apps/v1/daemonsets"),
    ("GET", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/any"),
    ("DELETE", "/api/v1/namespaces/default"),
    ("DELETE", "/api/v1/namespaces/default/pods/any"),
    ("DELETE", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"),
    ("PATCH", "/api/v1/namespaces/default/pods/any/status"),
    ("PATCH", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/any"),
    ("POST", "/api/v1/namespaces/default/events"),
    ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/npc/token"),
]


@pytest.mark.parametrize("directory", overlays(), ids=lambda path: path.name)
def test_the_server_accepts_every_manifest(cluster: Cluster, directory: Path) -> None:
    manifests = kustomize(directory)
    if any(manifest["apiVersion"] == MONITORING for manifest in manifests):
        _define_monitoring(cluster)
    for manifest in manifests:
        cluster.apply(manifest, dry_run=True)


@pytest.mark.parametrize("name", ["install", "cleanup"])
def test_the_server_accepts_the_single_files(cluster: Cluster, name: str) -> None:
    for manifest in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text()):
        cluster.apply(manifest, dry_run=True)


@pytest.fixture(scope="module")
def granted(cluster: Cluster) -> Cluster:
    """The cluster with the account, its role and the binding in force."""
    for manifest in kustomize(KUSTOMIZE / "base"):
        if manifest["kind"] != "DaemonSet":
            cluster.apply(manifest, dry_run=False)
    return cluster


@pytest.mark.parametrize("path", LISTED)
def test_the_agent_may_list_and_watch(granted: Cluster, path: str) -> None:
    assert granted.request("GET", path, user=AGENT)[0] == 200
    assert granted.request("GET", f"{path}?watch=1&timeoutSeconds=1", user=AGENT)[0] == 200
    assert granted.request("GET", path, user=SOMEBODY_ELSE)[0] == 403


@pytest.mark.parametrize(("method", "path"), REFUSED)
def test_the_agent_may_do_nothing_else(granted: Cluster, method: str, path: str) -> None:
    status, answer = granted.request(method, path, {}, user=AGENT)
    assert (status, answer["reason"]) == (403, "Forbidden")


def test_the_server_counts_no_further_right(granted: Cluster) -> None:
    """Of all that the server knows the account may do, what any account may do is taken away."""
    assert _rules(granted, AGENT) - _rules(granted, SOMEBODY_ELSE) == {
        ("list", "", "pods"),
        ("watch", "", "pods"),
        ("list", "", "namespaces"),
        ("watch", "", "namespaces"),
        ("list", "networking.k8s.io", "networkpolicies"),
        ("watch", "networking.k8s.io", "networkpolicies"),
    }


def test_to_hold_addresses_it_may_list_nodes_and_nothing_more(granted: Cluster) -> None:
    before = _rules(granted, AGENT)
    role = pick(kustomize(KUSTOMIZE / "overlays/strict-startup"), "ClusterRole")
    granted.apply(role, dry_run=False)
    try:
        _wait_for(lambda: granted.request("GET", "/api/v1/nodes", user=AGENT)[0] == 200)
        assert _rules(granted, AGENT) - before == {("list", "", "nodes")}
        assert granted.request("GET", "/api/v1/nodes/n", user=AGENT)[0] == 403
        assert granted.request("GET", "/api/v1/nodes?watch=1", user=AGENT)[0] == 403
    finally:
        granted.apply(pick(kustomize(KUSTOMIZE / "base"), "ClusterRole"), dry_run=False)
        _wait_for(lambda: granted.request("GET", "/api/v1/nodes", user=AGENT)[0] == 403)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _define_monitoring(cluster: Cluster) -> None:
    """Teach the server the kinds of Prometheus' operator, as that itself defines them."""
    for plural in ("podmonitors", "prometheusrules"):
        definition = built("crds") / f"monitoring.coreos.com_{plural}.yaml"
        cluster.apply(yaml.safe_load(definition.read_text()), dry_run=False)
    _wait_for(lambda: cluster.request("GET", f"/apis/{MONITORING}/podmonitors")[0] == 200)


def _rules(cluster: Cluster, user: str) -> set[tuple[str, ...]]:
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    status, answer = cluster.request(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, user=user
    )
    assert status == 201, answer
    assert not answer["status"]["incomplete"]
    resources = {
        (verb, group, resource)
        for rule in answer["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    urls = {
        (verb, url)
        for rule in answer["status"]["nonResourceRules"]
        for verb in rule["verbs"]
        for url in rule["nonResourceURLs"]
    }
    return resources | urls
