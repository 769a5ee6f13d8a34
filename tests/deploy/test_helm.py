"""The Helm chart, by the real helm: what it makes is what kustomize makes."""

from __future__ import annotations

import json
import subprocess
import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from npc import cli
from tests.deploy.manifests import DEPLOY, KUSTOMIZE, ROOT, Manifest, kustomize, pick
from tests.deploy.pods import arguments, environment
from tests.deploy.tools import built

CHART = DEPLOY / "helm" / "npc"
NETWORKS = [ip_network("192.0.2.0/24"), ip_network("2001:db8::/32")]


@pytest.fixture(scope="module")
def helm() -> Path:
    return built("helm")


def _template(helm: Path, values: dict[str, Any]) -> tuple[Manifest, ...]:
    done = _run(helm, "template", values)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def _run(helm: Path, command: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    name = ["npc"] if command == "template" else []
    options = ["--namespace", "kube-system", "--kube-version", "1.36.0", "--values", "-"]
    return subprocess.run(
        [helm, command, *name, CHART, *options],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def test_lint_finds_nothing_wrong(helm: Path) -> None:
    done = _run(helm, "lint", {})
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize(
    ("values", "directory"),
    [
        ({}, "base"),
        ({"backend": "nftables"}, "overlays/nftables"),
        ({"iptablesMode": "legacy"}, "overlays/legacy"),
        ({"strictStartup": True}, "overlays/strict-startup"),
        ({"otlp": {"enabled": True}}, "overlays/otel"),
        ({"monitoring": {"enabled": True}}, "overlays/prometheus-operator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_make_what_the_overlay_makes(
    helm: Path, values: dict[str, Any], directory: str
) -> None:
    made = sorted(_template(helm, values), key=_key)
    assert made == sorted(kustomize(KUSTOMIZE / directory), key=_key)


@pytest.mark.parametrize(
    ("values", "argument", "understood"),
    [
        ({"backend": "restore"}, "backend", "restore"),
        ({"backend": "libiptc"}, "backend", "libiptc"),
        ({"backend": "nftables"}, "backend", "nftables"),
        ({"iptablesMode": "nft"}, "iptables_mode", "nft"),
        ({"families": "dual"}, "families", "dual"),
        ({"denyAction": "drop"}, "deny_action", "drop"),
        ({"logDenied": True}, "log_denied", True),
        ({"exemptCidrs": ["192.0.2.0/24", "2001:db8::/32"]}, "exempt_cidr", NETWORKS),
        ({"strictStartup": True}, "strict_startup", True),
        ({"terminateEstablished": True}, "terminate_established", True),
        ({"syncPeriod": "1h30m"}, "sync_period", 5400.0),
        ({"healthPort": 1234}, "health_address", ("127.0.0.1", 1234)),
        (
            {"healthPort": 1234, "monitoring": {"enabled": True}},
            "health_address",
            ("192.0.2.1", 1234),
        ),
        ({"logLevel": "debug"}, "log_level", "debug"),
        ({"logFormat": "json"}, "log_format", "json"),
        ({"extraArgs": ["--sync-period=7s"]}, "sync_period", 7.0),
        ({"extraEnv": [{"name": "NODE_NAME", "value": "other"}]}, "node_name", "other"),
    ],
    ids=lambda value: "",
)
def test_the_program_understands_what_values_say(
    helm: Path,
    values: dict[str, Any],
    argument: str,
    understood: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon_set = pick(_template(helm, values), "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    known = environment(container)
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    args = cli._parser().parse_args(arguments(container, known))
    assert getattr(args, argument) == understood


def test_the_port_that_is_probed_is_the_one_listened_on(helm: Path) -> None:
    daemon_set = pick(_template(helm, {"healthPort": 1234}), "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "health", "containerPort": 1234, "protocol": "TCP"}]


def test_what_is_set_of_the_pod_gets_there(helm: Path) -> None:
    daemon_set = pick(
        _template(
            helm,
            {
                "image": {"repository": "mirror/npc", "tag": "x", "pullPolicy": "Always"},
                "imagePullSecrets": [{"name": "s"}],
                "resources": {"limits": {"memory": "1Gi"}},
                "priorityClassName": "p",
                "nodeSelector": {"a": "b"},
                "tolerations": [{"operator": "Exists"}],
                "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
                "podAnnotations": {"c": "d"},
            },
        ),
        "DaemonSet",
    )
    template = daemon_set["spec"]["template"]
    pod = template["spec"]
    [container] = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("mirror/npc:x", "Always")
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert pod["priorityClassName"] == "p"
    assert pod["nodeSelector"]["a"] == "b"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert template["metadata"]["annotations"]["c"] == "d"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"backend": "ebpf"}, "backend"),
        ({"denyAction": "shrug"}, "denyAction"),
        ({"exemptCidrs": "192.0.2.0/24"}, "exemptCidrs"),
        ({"strictStartup": "yes"}, "strictStartup"),
        ({"syncPeriod": "often"}, "syncPeriod"),
        ({"healthPort": "20245"}, "healthPort"),
        ({"bakcend": "nftables"}, "bakcend"),
        ({"image": {"repository": ""}}, "repository"),
        ({"otlp": {"endpoint": "collector:4318"}}, "endpoint"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_makes_no_sense_is_named(
    helm: Path, values: dict[str, Any], complaint: str
) -> None:
    done = _run(helm, "template", values)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_every_value_is_in_the_schema_and_in_the_page() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert values.keys() == schema.keys() - {"global"}
    for name, default in values.items():
        inner = default if "properties" in schema[name] else {"": None}
        if "properties" in schema[name]:
            assert inner.keys() == schema[name]["properties"].keys()
        for part in inner:
            assert f"| `{f'{name}.{part}'.rstrip('.')}` |" in page


def test_the_chart_has_the_version_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (chart["version"], chart["appVersion"]) == (project["version"],) * 2
