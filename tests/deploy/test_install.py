"""The one-file install says what the base says."""

from __future__ import annotations

import yaml

from tests.deploy.manifests import DEPLOY, KUSTOMIZE, kustomize


def test_install_yaml_is_up_to_date() -> None:
    written = tuple(yaml.safe_load_all((DEPLOY / "install.yaml").read_text()))
    assert written == kustomize(KUSTOMIZE / "base"), "run scripts/render-deploy"
