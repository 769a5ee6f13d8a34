"""Services as kube-proxy's iptables mode makes them: the nodes translate destinations to pods.

A source is translated too where kube-proxy does so: for a client that is no pod, unless it came by
a node port whose traffic is kept local, and for a pod that reaches itself.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npc.lab.netns import LabError
from npc.lab.topology import POD_RANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npc.lab.topology import Host, Topology
    from npc.ruleset import Protocol

_TOOLS = {4: "iptables", 6: "ip6tables"}
_MARK = "0x4000"


@dataclass(frozen=True)
class Service:
    """A service with one endpoint. ``target`` is its pod as ``NAMESPACE/POD``.

    ``local`` keeps the source of what comes in by ``node_port``.
    """

    name: str
    addresses: tuple[str, ...]
    port: int
    protocol: Protocol
    target: str
    target_port: int
    node_port: int | None = None
    local: bool = False
    line: int = 0


def write(topology: Topology, services: Iterable[tuple[Service, Host]]) -> None:
    """Make every node translate these services, each with the host that is its pod, and no others.

    :raises LabError: if iptables cannot
    """
    wanted = list(services)
    for family in topology.families:
        lines = ["*nat", *_rules(family.value, wanted), "COMMIT"]
        for node in topology.nodes.values():
            _restore(node.namespace, f"{_TOOLS[family.value]}-nft-restore", lines)


def _restore(namespace: str, tool: str, lines: list[str]) -> None:
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, tool, "-w", "5"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"{tool} in {namespace}: {done.stderr.strip()}")


def _rules(version: int, services: list[tuple[Service, Host]]) -> Iterator[str]:
    yield from (f":KUBE-{name} - [0:0]" for name in ("SERVICES", "POSTROUTING", "MARK-MASQ"))
    yield from (f"-A {hook} -j KUBE-SERVICES" for hook in ("PREROUTING", "OUTPUT"))
    yield "-A POSTROUTING -j KUBE-POSTROUTING"
    yield f"-A KUBE-POSTROUTING -m mark --mark {_MARK}/{_MARK} -j MASQUERADE"
    yield f"-A KUBE-MARK-MASQ -j MARK --or-mark {_MARK}"
    for service, host in services:
        endpoint = host.address(version)
        if endpoint is not None:
            yield from _service(version, service, endpoint)


def _service(version: int, service: Service, endpoint: str) -> Iterator[str]:
    chain, external = f"KUBE-SVC-{service.name}", f"KUBE-EXT-{service.name}"
    protocol = f"-p {service.protocol.value.lower()}"
    target = f"[{endpoint}]" if version == 6 else endpoint
    yield from (f":{name} - [0:0]" for name in (chain, external))
    for address in service.addresses:
        if (version == 6) == (":" in address):
            yield f"-A KUBE-SERVICES -d {address} {protocol} --dport {service.port} -j {chain}"
            yield f"-A {chain} ! -s {POD_RANGES[version]} -d {address} -j KUBE-MARK-MASQ"
    if service.node_port is not None:
        port = f"{protocol} --dport {service.node_port}"
        yield f"-A KUBE-SERVICES {port} -m addrtype --dst-type LOCAL -j {external}"
    if not service.local:
        yield f"-A {external} -j KUBE-MARK-MASQ"
    yield f"-A {external} -j {chain}"
    yield f"-A {chain} -s {endpoint} -j KUBE-MARK-MASQ"
    yield f"-A {chain} {protocol} -j DNAT --to-destination {target}:{service.target_port}"
