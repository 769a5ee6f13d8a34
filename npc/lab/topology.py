"""The lab's cables and routes.

    outside hosts --+
                    +-- fabric (a router, and the control plane's address) -- node-1 -- pods
    outside hosts --+                                                      -- node-2 -- pods

Everything is inside namespaces whose names begin with the run's prefix; the host's own network is
not touched. Pods have a ``/32`` address and reach their node by a link-local gateway, as with
Calico; the node routes, so every packet to or from a pod passes the node's FORWARD chain. With
``bridged`` the pods of a node are on one bridge instead, as with the bridge plugin of CNI, and
``br_netfilter`` lets what the bridge carries pass that chain.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npc.lab import netns
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FABRIC_ADDRESSES = ("172.31.0.1", "fd00:172:31::1")
POD_RANGES = {4: "10.244.0.0/16", 6: "fd00:10:244::/48"}
"""By IP version, the range that holds those of all nodes' pods."""

_FABRIC_LENGTHS = {4: 24, 6: 64}
_GATEWAYS = {4: "169.254.1.1", 6: "fe80::1"}
_MTU = 1500
_LARGEST_SEGMENTS = {4: 1460, 6: 1440}
_HOST_LENGTHS = {4: 32, 6: 128}

_BRIDGE = "cbr0"
_BRIDGE_SYSCTLS = {
    "bridge/bridge-nf-call-iptables": "1",
    "bridge/bridge-nf-call-ip6tables": "1",
}
_SYSCTLS = {
    "ipv4/ping_group_range": "0 2147483647",  # everybody may send echo requests
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/icmp_ratelimit": "0",  # every refusal is to come at once
    "ipv6/conf/all/forwarding": "1",
    "ipv6/icmp/ratelimit": "0",
    "ipv6/conf/all/accept_dad": "0",
    "ipv6/conf/default/accept_dad": "0",
}


@dataclass(frozen=True)
class Host:
    """Somewhere with addresses: a node, a pod or an outside host, and its namespace."""

    namespace: str
    addresses: tuple[str, ...]

    def address(self, version: int) -> str | None:
        """Its address of an IP version, if it has one."""
        return next((a for a in self.addresses if ipaddress.ip_address(a).version == version), None)


@dataclass
class Topology:
    """The namespaces of one run. ``prefix`` begins each of their names.

    ``families`` are those in which the cluster has addresses.
    """

    prefix: str
    families: tuple[Family, ...] = tuple(Family)
    bridged: bool = False
    nodes: dict[str, Host] = field(default_factory=dict)
    outside: dict[str, Host] = field(default_factory=dict)
    _cables: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By a host's namespace, its parent's and the name of the cable's end there."""

    @property
    def fabric(self) -> str:
        """The fabric's namespace."""
        return f"{self.prefix}fabric"

    @property
    def fabric_addresses(self) -> tuple[str, ...]:
        """The fabric's addresses: the nodes' default route, and where the control plane listens."""
        return self.of_families(_FABRIC_ADDRESSES)

    def of_families(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Those of the addresses or ranges that are of the cluster's families."""
        versions = {family.value for family in self.families}
        return tuple(text for text in addresses if ipaddress.ip_network(text).version in versions)

    def build(self, nodes: list[str]) -> None:
        """Make the fabric and the nodes; node N has 10.244.N.0/24 and fd00:10:244:N::/64."""
        self.nodes = {
            name: Host(
                f"{self.prefix}{name}",
                self.of_families((f"172.31.0.{9 + n}", f"fd00:172:31::{9 + n:x}")),
            )
            for n, name in enumerate(nodes, 1)
        }
        sysctls = _SYSCTLS | (_BRIDGE_SYSCTLS if self.bridged else {})
        netns.create([self.fabric, *(node.namespace for node in self.nodes.values())], sysctls)
        netns.ip(
            [
                "link add br0 type bridge",
                "link set br0 up",
                *(f"addr add {_on_fabric(a)} dev br0" for a in self.fabric_addresses),
            ],
            self.fabric,
        )
        for n, node in enumerate(self.nodes.values(), 1):
            port = f"n{n}"
            netns.ip([_cable("eth0", node.namespace, port, self.fabric)])
            netns.ip(
                [
                    f"link set {port} master br0 up",
                    *(
                        f"route add {r} via {a}"
                        for r, a in zip(self._pod_ranges(n), node.addresses, strict=True)
                    ),
                ],
                self.fabric,
            )
            netns.ip(
                [
                    "link set eth0 up",
                    *(f"addr add {_on_fabric(a)} dev eth0" for a in node.addresses),
                    *(f"route add default via {a}" for a in self.fabric_addresses),
                ],
                node.namespace,
            )
            if self.bridged:
                self._add_bridge(node)

    def pod_networks(self, node: str) -> list[Network]:
        """The ranges of a node's pods, one of each family."""
        number = 1 + list(self.nodes).index(node)
        return [ipaddress.ip_network(text) for text in self._pod_ranges(number)]

    def add_outside(self, name: str, addresses: tuple[str, ...], mtu: int = 1500) -> Host:
        """Make a host outside the cluster and route its addresses of the cluster's families.

        The way there carries packets of at most ``mtu`` bytes; the host knows that, and whoever
        sends to it is told by the router.
        """
        host = Host(f"{self.prefix}out-{name}", self.of_families(addresses))
        self._attach(host, self.fabric, self.fabric_addresses)
        parent, port = self._cables[host.namespace]
        netns.ip([f"link set {port} mtu {mtu}"], parent)
        if mtu < _MTU:
            routes = [
                f"route change default via {_GATEWAYS[version]} dev eth0 mtu {mtu} advmss {segment}"
                for version, segment in _LARGEST_SEGMENTS.items()
                if host.address(version) is not None
            ]
            netns.ip(routes, host.namespace)
        self.outside[name] = host
        return host

    def add_pod(self, namespace: str, name: str, node: str, addresses: tuple[str, ...]) -> Host:
        """Make a pod on a node. An address that another pod had is this pod's from now on."""
        host = Host(f"{self.prefix}{namespace}.{name}", addresses)
        parent = self.nodes[node]
        if self.bridged:
            self._plug_in(host, parent.namespace, self.pod_networks(node))
        else:
            self._attach(host, parent.namespace, parent.addresses)
        return host

    def remove(self, host: Host) -> None:
        """Remove a pod or an outside host; its cable and routes go with it."""
        # The kernel takes a namespace apart later; the cable must be gone before the next is laid.
        parent, port = self._cables.pop(host.namespace)
        netns.ip([f"link del {port}"], parent)
        netns.delete([host.namespace])
        for name, found in list(self.outside.items()):
            if found == host:
                del self.outside[name]

    def destroy(self) -> None:
        """Remove every namespace of the run."""
        netns.delete(netns.existing(self.prefix))

    def _pod_ranges(self, number: int) -> tuple[str, ...]:
        return self.of_families((f"10.244.{number}.0/24", f"fd00:10:244:{number}::/64"))

    def _attach(self, host: Host, parent: str, sources: tuple[str, ...]) -> None:
        """A namespace with a cable to its parent, which routes the host's addresses to it."""
        port = self._lay_cable(host, parent)
        parent_commands, own_commands = [f"link set {port} up"], ["link set eth0 up"]
        for version, gateway in _GATEWAYS.items():
            address = host.address(version)
            if address is None:
                continue
            source = next(s for s in sources if ipaddress.ip_address(s).version == version)
            length = _HOST_LENGTHS[version]
            link = f"{gateway}/{'64' if version == 6 else length} scope link"
            at_once = "nodad" if version == 6 else ""
            parent_commands += [
                f"addr add {link} dev {port} {at_once}",
                f"route replace {address}/{length} dev {port} src {source}",
            ]
            own_commands += [f"addr add {address}/{length} dev eth0 {at_once}"]
            own_commands += [f"route add {gateway} dev eth0"] if version == 4 else []
            own_commands += [f"route add default via {gateway} dev eth0 src {address}"]
        netns.ip(parent_commands, parent)
        netns.ip(own_commands, host.namespace)

    def _lay_cable(self, host: Host, parent: str) -> str:
        """Make a host's namespace with a cable to its parent; the name of the cable's end there."""
        netns.create([host.namespace], _SYSCTLS)
        port = "v" + hashlib.sha256(host.namespace.encode()).hexdigest()[:10]
        netns.ip([_cable("eth0", host.namespace, port, parent)])
        self._cables[host.namespace] = (parent, port)
        return port

    # -- pods on a bridge ----------------------------------------------------------------------

    def _add_bridge(self, node: Host) -> None:
        netns.inside(node.namespace, _require_br_netfilter)
        commands = [f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up"]
        name = next(name for name, found in self.nodes.items() if found is node)
        commands += (f"addr add {_on(n, n[1])} dev {_BRIDGE}" for n in self.pod_networks(name))
        netns.ip(commands, node.namespace)

    def _plug_in(self, host: Host, parent: str, networks: list[Network]) -> None:
        """A namespace with a cable to its parent's bridge."""
        port = self._lay_cable(host, parent)
        # Hairpin: a pod may be behind its own service.
        joined = f"link set {port} type bridge_slave hairpin on"
        netns.ip([f"link set {port} master {_BRIDGE} up", joined], parent)
        commands = ["link set eth0 up"]
        for network in networks:
            address = host.address(network.version)
            if address is not None:
                commands.append(f"addr add {_on(network, address)} dev eth0")
                commands.append(f"route add default via {network[1]}")
        netns.ip(commands, host.namespace)


def _require_br_netfilter() -> None:
    if not Path("/proc/sys/net/bridge").exists():
        raise netns.UnusableMachineError(
            "pods on a bridge need the kernel module br_netfilter (try: modprobe br_netfilter)"
        )


def _on(network: Network, address: object) -> str:
    """The address with the network's prefix length, usable at once."""
    return f"{address}/{network.prefixlen}{' nodad' if network.version == 6 else ''}"


def _cable(end: str, namespace: str, other_end: str, other_namespace: str) -> str:
    return (
        f"link add {end} netns {namespace} type veth peer name {other_end} netns {other_namespace}"
    )


def _on_fabric(address: str) -> str:
    """The address with the fabric's prefix length, usable at once."""
    version = ipaddress.ip_address(address).version
    return f"{address}/{_FABRIC_LENGTHS[version]}{' nodad' if version == 6 else ''}"
