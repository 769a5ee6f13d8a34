"""The manifests as kustomize renders them."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"

Manifest = dict[str, Any]


@functools.cache
def kustomize(directory: Path) -> tuple[Manifest, ...]:
    """What ``kubectl apply -k`` would send for this folder."""
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", directory], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def pick(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """The only manifest of a kind."""
    [found] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def overlays() -> list[Path]:
    """The folders that users apply: the base and each overlay."""
    return [KUSTOMIZE / "base", *sorted((KUSTOMIZE / "overlays").glob("*/"))]
