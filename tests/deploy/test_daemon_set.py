"""What the DaemonSet promises, held against the program that it starts."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path
from typing import Any

import pytest

from npc import cli
from reconciler.health import HealthServer
from reconciler.stop import Stop
from tests.deploy.manifests import Manifest, kustomize, overlays, pick
from tests.deploy.pods import arguments, environment


@pytest.fixture(params=overlays(), ids=lambda path: path.name)
def daemon_set(request: pytest.FixtureRequest) -> Manifest:
    directory: Path = request.param
    return pick(kustomize(directory), "DaemonSet")


@pytest.fixture
def pod(daemon_set: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = daemon_set["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["containers"]
    return dict(found)


def test_the_program_understands_the_arguments(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = environment(container)
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    args = cli._parser().parse_args(arguments(container, known))
    assert args.command is cli._run
    assert args.node_name == "node-1"


def test_probes_ask_for_pages_that_are_there(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each probe's host, port and path, with the address that the arguments make it listen on."""
    known = environment(container)
    args = cli._parser().parse_args(arguments(container, known))
    host, port = args.health_address
    server = HealthServer(("127.0.0.1", 0))
    stop = Stop()
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    try:
        ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container[probe]["httpGet"]
            # Without a host the kubelet asks the pod's address, here the node's.
            assert get.get("host", known["HOST_IP"]) == host
            assert ports[get["port"]] == port
            connection = http.client.HTTPConnection(*server.address, timeout=10)
            connection.request("GET", get["path"])
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        stop.set()
        thread.join()


def test_liveness_does_not_depend_on_the_api_server(container: dict[str, Any]) -> None:
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_it_has_no_more_privileges_than_netfilter_takes(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    context = container["securityContext"]
    assert "privileged" not in context
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}
    assert (context["runAsUser"], context["runAsGroup"]) == (0, 0)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostPID" not in pod
    assert "hostIPC" not in pod


def test_of_the_nodes_files_it_writes_the_lock_alone(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    host_paths = {v["name"]: v["hostPath"] for v in pod["volumes"] if "hostPath" in v}
    writable = {
        host_paths[mount["name"]]["path"]: host_paths[mount["name"]].get("type")
        for mount in container["volumeMounts"]
        if mount["name"] in host_paths and not mount.get("readOnly")
    }
    assert writable == {"/run/xtables.lock": "FileOrCreate"}
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_it_runs_on_every_linux_node_and_stays(pod: dict[str, Any]) -> None:
    assert pod["hostNetwork"] is True
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert {(t.get("key"), t["operator"], t.get("effect")) for t in pod["tolerations"]} == {
        (None, "Exists", "NoSchedule"),
        (None, "Exists", "NoExecute"),
        ("CriticalAddonsOnly", "Exists", None),
    }


def test_an_update_leaves_most_nodes_alone(daemon_set: Manifest) -> None:
    strategy = daemon_set["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    selector = daemon_set["spec"]["selector"]["matchLabels"].items()
    assert selector <= daemon_set["spec"]["template"]["metadata"]["labels"].items()
