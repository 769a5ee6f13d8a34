"""The kustomization that docs/deploy.md shows works, with every component that there is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import DEPLOY, KUSTOMIZE, ROOT, kustomize, pick

[EXAMPLE] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)


def _rendered(directory: Path, example: str) -> tuple[dict[str, Any], ...]:
    deploy = os.path.relpath(DEPLOY, directory.resolve())
    (directory / "kustomization.yaml").write_text(example.replace("fullsync/deploy", deploy))
    return kustomize(directory)


def test_the_example_puts_together_what_it_names(tmp_path: Path) -> None:
    manifests = _rendered(tmp_path, EXAMPLE)
    [container] = pick(manifests, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/npc:0.1.0"
    assert container["args"] == [
        "run",
        "--backend=nftables",
        "--health-address=$(HOST_IP):20245",
    ]
    assert pick(manifests, "PodMonitor")["metadata"]["namespace"] == "kube-system"


def test_all_components_go_together(tmp_path: Path) -> None:
    example = yaml.safe_load(EXAMPLE)
    names = sorted(path.name for path in (KUSTOMIZE / "components").iterdir())
    example["components"] = [f"fullsync/deploy/kustomize/components/{name}" for name in names]
    manifests = _rendered(tmp_path, yaml.safe_dump(example))
    [container] = pick(manifests, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    changes = [
        "--backend=nftables",
        "--iptables-mode=legacy",
        "--health-address=$(HOST_IP):20245",
        "--strict-startup",
    ]
    assert sorted(container["args"]) == sorted(["run", *changes])
    assert "OTEL_TRACES_EXPORTER" in {variable["name"] for variable in container["env"]}
    assert names == sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
