"""The capabilities of the DaemonSet are enough for the real agent, and none of them is too much."""

from __future__ import annotations

import pytest

from npc.lab.netns import UnusableMachineError
from tests.deploy.manifests import KUSTOMIZE, kustomize, pick
from tests.e2e.clusters import policy, reached, small_cluster

pytestmark = pytest.mark.netns

WAYS = [("restore", "nft"), ("restore", "legacy"), ("nftables", "nft"), ("libiptc", "legacy")]
"""How rules may be written: the backend, and which iptables."""


def capabilities() -> list[str]:
    daemon_set = pick(kustomize(KUSTOMIZE / "base"), "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    added: list[str] = container["securityContext"]["capabilities"]["add"]
    return added


def confined(capabilities: list[str]) -> list[str]:
    """A command that starts another as the runtime starts a container with these capabilities."""
    bounding = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    return [
        "setpriv",
        f"--bounding-set={bounding}",
        "--inh-caps=-all",
        "--no-new-privs",
    ]


@pytest.mark.parametrize(("backend", "mode"), WAYS)
def test_the_capabilities_suffice(backend: str, mode: str) -> None:
    with small_cluster(mode, f"--backend={backend}") as lab:
        agent = lab.agents["node-1"]
        agent.stop()
        agent.program = [*confined(capabilities()), *agent.program]
        agent.start()
        lab.apply(policy(80))
        lab.settle()
        assert reached(lab) == {80}


@pytest.mark.parametrize(
    ("lost", "backend", "mode"),
    [
        *(("NET_ADMIN", *way) for way in WAYS),
        *(("NET_RAW", *way) for way in WAYS if "legacy" in way),
    ],
)
def test_each_capability_is_needed(lost: str, backend: str, mode: str) -> None:
    with small_cluster(mode, f"--backend={backend}") as lab:
        agent = lab.agents["node-1"]
        agent.stop()
        left = [name for name in capabilities() if name != lost]
        agent.program = [*confined(left), *agent.program]
        agent.start()
        lab.apply(policy(80))
        with pytest.raises(UnusableMachineError, match=f"CAP_{lost}"):
            lab.settle()
