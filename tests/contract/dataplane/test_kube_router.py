"""What kube-router's network policy controller left goes, and everything else stays as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError
from npc.dataplane.kube_router import cleanup_kube_router
from npc.dataplane.mode import Mode, tool
from npc.dataplane.tools import run_tool
from npc.ruleset import Family
from tests.contract.dataplane import samples
from tests.contract.dataplane.node import Node

if TYPE_CHECKING:
    from tests.contract.dataplane.netns import Namespace

pytestmark = pytest.mark.netns

POD, POLICY, PEERS = "JZ4ZQXN3VBXGF7OA", "R2HTXG5WA7BUOJNQ", "NWDOFSP6WEQBT2RO"


def sets(family: Family) -> list[str]:
    """Its sets: of targets, of peers, of blocks, and of the pods that it knows."""
    inet6, kind = ("inet6:", "family inet6") if family is Family.IPV6 else ("", "")
    return [
        f"create {inet6}KUBE-DST-{POLICY} hash:ip {kind} timeout 0",
        f"create {inet6}KUBE-SRC-{PEERS} hash:net {kind} timeout 0",
        f"create {inet6}kube-router-local-pods hash:ip {kind} timeout 0",
    ]


def rules(family: Family) -> str:
    """Its filter table: entry chains, a pod's chain, a policy's chain, and those that all share."""
    inet6, pod = ("inet6:", "fd00::7") if family is Family.IPV6 else ("", "10.1.1.7")
    matched = f"-m set --match-set {inet6}KUBE-SRC-{PEERS} src"
    matched += f" -m set --match-set {inet6}KUBE-DST-{POLICY} dst -p tcp -m tcp --dport 80"
    known = f"-m set ! --match-set {inet6}kube-router-local-pods src -j REJECT"
    return f"""*filter
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-ROUTER-OUTPUT - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-NWPLCY-COMMON - [0:0]
:KUBE-NWPLCY-TAIL - [0:0]
:KUBE-NWPLCY-{POLICY} - [0:0]
:KUBE-POD-FW-{POD} - [0:0]
-A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
-A FORWARD -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
-A OUTPUT -m comment --comment "kube-router netpol - VEAAIY32XVBHCSCY" -j KUBE-ROUTER-OUTPUT
-A FORWARD -d {pod} -m comment --comment "as version 1 did" -j KUBE-POD-FW-{POD}
-A KUBE-ROUTER-FORWARD -d {pod} -j KUBE-POD-FW-{POD}
-A KUBE-ROUTER-FORWARD -m physdev --physdev-is-bridged -s {pod} -j KUBE-POD-FW-{POD}
-A KUBE-ROUTER-FORWARD -j KUBE-NWPLCY-TAIL
-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-POD-FW-{POD} -j KUBE-NWPLCY-COMMON
-A KUBE-POD-FW-{POD} -d {pod} -j KUBE-NWPLCY-DEFAULT
-A KUBE-POD-FW-{POD} -d {pod} -j KUBE-NWPLCY-{POLICY}
-A KUBE-POD-FW-{POD} -m mark ! --mark 0x10000/0x10000 -j REJECT
-A KUBE-NWPLCY-{POLICY} {matched} -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-{POLICY} {matched} -m mark --mark 0x10000/0x10000 -j RETURN
-A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NWPLCY-TAIL -s {pod} {known}
COMMIT
"""


OTHERS = """*filter
:KUBE-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-SERVICES - [0:0]
:KUBE-NWPLCY-MINE - [0:0]
-A INPUT -m comment --comment "handle traffic to KUBE-NWPLCY-TAIL" -j KUBE-ROUTER-SERVICES
-A FORWARD -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-ROUTER-SERVICES -m set --match-set {}kube-router-svip-prt dst,dst -j ACCEPT
-A KUBE-FIREWALL -j KUBE-NWPLCY-MINE
COMMIT
"""
OTHER_SETS = [
    "create kube-router-svip-prt hash:ip,port",
    "create inet6:kube-router-svip-prt hash:ip,port family inet6",
    "create kube-router-pod-subnets hash:net",
    "create KUBE-CLUSTER-IP hash:ip,port",
    "create KUBE-SRC-SHORT hash:ip",
]


def restore(mode: Mode, family: Family, table: str) -> None:
    run_tool([tool(mode, family, "restore"), "--noflush"], table)


def whole(mode: Mode) -> dict[str, str]:
    """All that the kernel holds, as its tools print it, without counters."""
    tables = {
        family.name: "\n".join(
            line.partition(" [")[0]
            for line in run_tool([tool(mode, family, "save")]).splitlines()
            if line[:1] in ":-"
        )
        for family in Family
    }
    return {**tables, "sets": run_tool(["ipset", "list", "-n"])}


@pytest.fixture(params=list(Mode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture
def others(namespace: Namespace, mode: Mode) -> dict[str, str]:
    """What kube-proxy, kube-router's service proxy and we have on the node."""
    run_tool(["ipset", "restore"], "\n".join(OTHER_SETS) + "\n")
    for family in Family:
        restore(mode, family, OTHERS.format("inet6:" if family is Family.IPV6 else ""))
        Node(mode.value, family).sync(samples.everything(family))
    return whole(mode)


def test_all_of_it_goes_and_nothing_of_others(others: dict[str, str], mode: Mode) -> None:
    for family in Family:
        run_tool(["ipset", "restore"], "\n".join(sets(family)) + "\n")
        restore(mode, family, rules(family))
    assert "KUBE-POD-FW" in whole(mode)["IPV6"]
    assert "inet6:KUBE-SRC" in whole(mode)["sets"]
    cleanup_kube_router()
    assert whole(mode) == others


def test_where_nothing_is_left_nothing_changes(others: dict[str, str], mode: Mode) -> None:
    cleanup_kube_router()
    cleanup_kube_router()
    assert whole(mode) == others


def test_its_nftables_tables_go_and_others_stay(namespace: Namespace) -> None:
    chain = "chain KUBE-ROUTER-FORWARD { type filter hook forward priority filter; };"
    tables = ("ip kube-router-filter-ipv4", "ip6 kube-router-filter-ipv6", "ip kube-proxy")
    for table in tables:
        run_tool(["nft", "-f", "-"], f"table {table} {{ {chain} }}\n")
    cleanup_kube_router()
    assert run_tool(["nft", "list", "tables"]) == "table ip kube-proxy\n"


def test_a_set_that_others_use_is_named_and_the_rest_goes(namespace: Namespace, mode: Mode) -> None:
    run_tool(["ipset", "restore"], "\n".join(sets(Family.IPV4)) + "\n")
    restore(mode, Family.IPV4, rules(Family.IPV4))
    foreign = f"*filter\n-A OUTPUT -m set --match-set KUBE-SRC-{PEERS} dst -j DROP\nCOMMIT\n"
    restore(mode, Family.IPV4, foreign)
    with pytest.raises(DataplaneError, match=f"the set KUBE-SRC-{PEERS} is in use by rules"):
        cleanup_kube_router(pause=lambda _: None)
    assert whole(mode)["sets"] == f"KUBE-SRC-{PEERS}\n"
    assert "KUBE-" not in whole(mode)["IPV4"].replace(f"KUBE-SRC-{PEERS}", "")
