"""The image: what its Dockerfile may say, and what comes out when it is carried out."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.image import Stage, build, in_container, parse
from tests.deploy.manifests import DEPLOY, KUSTOMIZE, ROOT, Manifest, kustomize, pick
from tests.deploy.test_privileges import WAYS, capabilities, confined
from tests.e2e.clusters import policy, reached, small_cluster

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STAGES = parse(DEPLOY / "Dockerfile")
FINAL = STAGES[-1]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_built_of_what_is_named(stage: Stage) -> None:
    assert re.fullmatch(r"debian:[a-z]+-slim", stage.base)
    assert stage.every("ADD") == []
    for run in stage.every("RUN"):
        if "apt-get install" in run.words:
            assert "--no-install-recommends" in run.words
            assert run.words.endswith("rm -rf /var/lib/apt/lists/*")
        if re.search(r"pip install(?! --no-deps)", run.words):
            assert "--require-hashes" in run.words


def test_both_stages_stand_on_one_release() -> None:
    assert {stage.base for stage in STAGES} == {FINAL.base}


def test_it_starts_npc_as_the_user_that_the_daemon_set_names() -> None:
    [entry_point] = FINAL.every("ENTRYPOINT")
    assert entry_point.words == '["/opt/npc/bin/npc"]'
    [user] = FINAL.every("USER")
    context = _container()["securityContext"]
    assert user.words == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_it_names_this_version() -> None:
    [version] = FINAL.every("ARG")
    assert version.pairs == {"VERSION": PROJECT["version"]}
    [label] = FINAL.every("LABEL")
    assert label.pairs["org.opencontainers.image.version"] == "${VERSION}"
    assert label.pairs["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert _container()["image"].rpartition(":")[2] == PROJECT["version"]


def test_the_builder_gets_what_is_copied_and_no_more() -> None:
    copied = {
        name
        for stage in STAGES
        for copy in stage.every("COPY")
        if "--from=" not in copy.words
        for name in shlex.split(copy.words)[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert "*" in lines
    assert all((ROOT / name).exists() for name in copied)


def test_the_lock_holds_every_requirement() -> None:
    """Run scripts/lock-image if it does not."""
    lock = (DEPLOY / "requirements.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    for requirement in map(Requirement, PROJECT["dependencies"]):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in locked
        assert requirement.specifier.contains(locked[name], prereleases=True), name


# -- carried out -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    root: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            in_container(self.root, list(command)),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.netns
@pytest.mark.timeout(1200)
def test_what_comes_out_runs_and_enforces() -> None:
    """One test for all of it, as the image is made in a minute and used in seconds."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap to carry out the Dockerfile with (Debian package debootstrap)")
    with tempfile.TemporaryDirectory(prefix="image-") as directory:
        image = Image(build(STAGES, ROOT, Path(directory)), FINAL.environment)
        _runs_on_a_read_only_root(image)
        _has_our_packages_from_the_wheel(image)
        _has_the_iptables_library_whole(image)
        _has_nothing_that_only_builds(image)
        _knows_its_version(image)
        for backend, mode in WAYS:
            _enforces(image, backend, mode)


def _runs_on_a_read_only_root(image: Image) -> None:
    done = image.run("npc", "run", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert image.run("touch", "/any").returncode != 0


def _has_our_packages_from_the_wheel(image: Image) -> None:
    shown = "import npc, reconciler, workqueue as w; print(npc.__file__, w.__file__)"
    done = image.run("python", "-c", shown)
    assert done.stdout.count("/opt/npc/lib/python3.13/site-packages/") == 2, done.stderr


def _has_the_iptables_library_whole(image: Image) -> None:
    """It finds what it links to without a compiler, and complains of nothing."""
    done = image.run("python", "-c", "import iptc; print(iptc.__name__)")
    assert (done.stdout, done.stderr) == ("iptc\n", "")


def _has_nothing_that_only_builds(image: Image) -> None:
    for name in ("cc", "gcc", "make", "pip", "pip3"):
        assert image.run("sh", "-c", f"command -v {name}").returncode != 0, name


def _knows_its_version(image: Image) -> None:
    """Which the telemetry names."""
    done = image.run(
        "python", "-c", "from importlib.metadata import version as v; print(v('fullsync'))"
    )
    assert done.stdout.strip() == PROJECT["version"], done.stderr


def _enforces(image: Image, backend: str, mode: str) -> None:
    """The agent, with the DaemonSet's capabilities and its own tools."""
    with small_cluster(mode, f"--backend={backend}") as lab:
        agent = lab.agents["node-1"]
        agent.stop()
        npc = [*confined(capabilities()), "/opt/npc/bin/npc"]
        agent.program = in_container(image.root, npc, agent.log.parent)
        agent.environment = image.environment
        agent.start()
        lab.apply(policy(80))
        lab.settle()
        assert reached(lab) == {80}


def _container() -> Manifest:
    daemon_set = pick(kustomize(KUSTOMIZE / "base"), "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    return dict(container)
