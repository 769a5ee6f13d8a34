"""What people type: the real kubectl against both servers."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.apiserver.client import CONFIG_MAPS, Api, config_map, pod, policy

KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kubectl(api: Api, ns: str, tmp_path: Path) -> Kubectl:
    """Runs kubectl in the test's namespace; `code` is the exit code to expect."""

    def run(*arguments: str, code: int = 0, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [
                KUBECTL,
                f"--kubeconfig={api.kubeconfig}",
                f"--cache-dir={tmp_path / 'cache'}",
                f"--namespace={ns}",
                *arguments,
            ],
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_a_pod_from_apply_to_delete(kubectl: Kubectl, ns: str) -> None:
    apply = ("apply", "-f", "-")
    assert kubectl(*apply, stdin=pod()).stdout == "pod/web created\n"
    assert kubectl(*apply, stdin=pod()).stdout == "pod/web unchanged\n"
    more = pod(labels={"app": "web", "tier": "front"})
    assert kubectl(*apply, stdin=more).stdout == "pod/web configured\n"
    assert kubectl("label", "pod", "web", "a=b").stdout == "pod/web labeled\n"
    assert kubectl("annotate", "pod", "web", "c=d").stdout == "pod/web annotated\n"
    image = {"spec": {"containers": [{"name": "main", "image": "registry.invalid/app:2"}]}}
    kubectl("patch", "pod", "web", "-p", json.dumps(image))
    kubectl("patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"tier":null}}}')
    add = [{"op": "add", "path": "/metadata/labels/j", "value": "k"}]
    kubectl("patch", "pod", "web", "--type=json", "-p", json.dumps(add))
    running = {"status": {"phase": "Running", "podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}
    kubectl(
        "patch", "pod", "web", "--subresource=status", "--type=merge", "-p", json.dumps(running)
    )
    found = json.loads(kubectl("get", "pod", "web", "-o", "json").stdout)
    assert found["metadata"]["labels"] == {"app": "web", "a": "b", "j": "k"}
    assert found["metadata"]["annotations"]["c"] == "d"
    assert found["spec"]["containers"][0]["image"] == "registry.invalid/app:2"
    line = kubectl("get", "pods", "-o", "wide", "--no-headers").stdout.split()
    assert line[:4] == ["web", "0/1", "Running", "0"]
    assert line[5] == "10.0.0.9"
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/web", "--timeout=10s")
    chosen = ("-l", "a in (b)", "--field-selector", "status.phase=Running", "-o", "name")
    assert kubectl("get", "pods", *chosen).stdout == "pod/web\n"
    assert "10.0.0.9" in kubectl("describe", "pod", "web").stdout
    gone = kubectl("delete", "pod", "web", "--now")
    assert gone.stdout.startswith('pod "web" deleted')


def test_policies(kubectl: Kubectl) -> None:
    apply = ("apply", "-f", "-")
    wanted = policy(ingress=[{"ports": [{"port": 80}]}])
    kubectl(*apply, stdin=wanted)
    wanted["spec"]["ingress"][0]["ports"][0]["port"] = 81
    assert "configured" in kubectl(*apply, stdin=wanted).stdout
    path = "jsonpath={.spec.ingress[0].ports[0]}"
    port = json.loads(kubectl("get", "netpol", "policy", "-o", path).stdout)
    assert port == {"port": 81, "protocol": "TCP"}
    text = kubectl("describe", "netpol", "policy").stdout
    assert "To Port: 81/TCP" in text
    wanted["spec"]["ingress"][0]["ports"][0] |= {"protocol": "ICMP", "endPort": 1}
    refused = kubectl(*apply, stdin=wanted, code=1).stderr
    assert 'The NetworkPolicy "policy" is invalid' in refused
    assert 'spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP"' in refused
    assert "must be greater than or equal to `port`" in refused
    typo = policy("typo", ingress=[{"port": []}])
    assert 'unknown field "spec.ingress[0].port"' in kubectl(*apply, stdin=typo, code=1).stderr


def test_server_side_apply(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*apply, stdin=config_map(a="1")).stdout
    kubectl(*apply, "--field-manager=other", stdin=config_map(b="2"))
    refused = kubectl(*apply, "--field-manager=other", stdin=config_map(a="9"), code=1).stderr
    assert 'conflict with "kubectl": .data.a' in refused
    kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=config_map(a="9"))
    found = json.loads(kubectl("get", "cm", "settings", "-o", "json").stdout)
    assert found["data"] == {"a": "9"}


def test_server_side_apply_takes_over_from_the_client_side(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=config_map(a="1", b="2"))
    kubectl("apply", "--server-side", "-f", "-", stdin=config_map(a="1", b="2"))
    kubectl("apply", "--server-side", "-f", "-", stdin=config_map(a="1"))
    found = json.loads(kubectl("get", "cm", "settings", "-o", "json").stdout)
    assert found["data"] == {"a": "1"}


def test_create_and_replace(kubectl: Kubectl, ns: str) -> None:
    other = f"{ns}-2"
    assert kubectl("create", "ns", other).stdout == f"namespace/{other} created\n"
    assert kubectl("get", "ns", other, "--no-headers").stdout.split()[:2] == [other, "Active"]
    kubectl("create", "configmap", "settings", "--from-literal=a=1")
    kubectl("replace", "-f", "-", stdin=config_map(a="2"))
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.data}").stdout == '{"a":"2"}'
    assert "AlreadyExists" in kubectl("create", "-f", "-", stdin=config_map(), code=1).stderr
    kubectl("delete", "cm", "--all")
    assert "NotFound" in kubectl("get", "cm", "settings", code=1).stderr


def test_diff(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=config_map(a="1"))
    kubectl("diff", "-f", "-", stdin=config_map(a="1"))
    assert "+  a: " in kubectl("diff", "-f", "-", stdin=config_map(a="2"), code=1).stdout


def test_api_resources(kubectl: Kubectl) -> None:
    lines = kubectl("api-resources", "--no-headers").stdout.splitlines()
    found = {tuple(line.split()) for line in lines}
    assert ("networkpolicies", "netpol", "networking.k8s.io/v1", "true", "NetworkPolicy") in found
    assert ("leases", "coordination.k8s.io/v1", "true", "Lease") in found


def test_watch(api: Api, ns: str, kubectl: Kubectl, tmp_path: Path) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, config_map("first"))
    command: list[str | Path] = [
        KUBECTL,
        f"--kubeconfig={api.kubeconfig}",
        f"--cache-dir={tmp_path / 'cache'}",
        f"--namespace={ns}",
        "get",
        "cm",
        "--watch",
        "--output-watch-events",
        "--field-selector=metadata.name!=kube-root-ca.crt",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().split() == ["EVENT", "NAME", "DATA", "AGE"]
            assert process.stdout.readline().split()[:3] == ["ADDED", "first", "0"]
            api.patch(f"{path}/first", {"data": {"a": "1"}})
            assert process.stdout.readline().split()[:3] == ["MODIFIED", "first", "1"]
            api.call("DELETE", f"{path}/first")
            assert process.stdout.readline().split()[:3] == ["DELETED", "first", "1"]
        finally:
            process.terminate()
