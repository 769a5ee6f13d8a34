"""The files for ``kubectl apply -f``: one to install, one to clean up."""

from __future__ import annotations

import yaml

from npc import cli
from tests.deploy.manifests import DEPLOY, KUSTOMIZE, kustomize, pick


def test_install_yaml_is_up_to_date() -> None:
    written = tuple(yaml.safe_load_all((DEPLOY / "install.yaml").read_text()))
    assert written == kustomize(KUSTOMIZE / "base"), "run scripts/render-deploy"


def test_the_clean_up_runs_as_the_agent_does_and_then_waits() -> None:
    clean_up = yaml.safe_load((DEPLOY / "cleanup.yaml").read_text())["spec"]["template"]["spec"]
    agent = pick(kustomize(KUSTOMIZE / "base"), "DaemonSet")["spec"]["template"]["spec"]
    [first], [then], [npc] = clean_up["initContainers"], clean_up["containers"], agent["containers"]
    assert cli._parser().parse_args(first["args"]).command is cli._cleanup
    assert first["image"] == then["image"] == npc["image"]
    assert first["securityContext"] == npc["securityContext"]
    assert all(mount in npc["volumeMounts"] for mount in first["volumeMounts"])
    assert all(volume in agent["volumes"] for volume in clean_up["volumes"])
    assert then["securityContext"]["capabilities"] == {"drop": ["ALL"]}
