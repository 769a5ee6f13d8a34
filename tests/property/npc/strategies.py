"""Small clusters in which all that matters happens often: few labels, ports and addresses."""

from __future__ import annotations

import ipaddress
from typing import Any

from hypothesis import strategies as st

from npc.compile import Settings
from npc.ruleset import Denial, DenyAction

Object = dict[str, Any]

NODE = "here"
NAMESPACES = ("a", "ab", "b")
KEYS = ("app", "tier")
VALUES = ("x", "y", "")
PORTS = (80, 81, 8080)
PORT_NAMES = ("http", "metrics")
PROTOCOLS = ("TCP", "UDP", "SCTP")
OUTSIDE = {4: ("203.0.113.7", "203.0.113.200"), 6: ("2001:db8::7", "2001:db8::c8")}
BLOCKS = {
    4: (
        "10.0.0.0/29",
        "10.0.0.4/30",
        "10.0.0.2/32",
        "203.0.113.5/24",
        "203.0.113.128/25",
        "0.0.0.0/0",
    ),
    6: ("fd00::/125", "fd00::4/126", "2001:db8::/32", "2001:db8::80/121", "::/0"),
}

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2)


@st.composite
def selectors(draw: st.DrawFn) -> Object:
    """Any selector; often the empty one."""
    selector: Object = {}
    if draw(st.booleans()):
        selector["matchLabels"] = draw(labels)
    expressions = draw(st.lists(_expressions(), max_size=2))
    if expressions:
        selector["matchExpressions"] = expressions
    return selector


@st.composite
def _expressions(draw: st.DrawFn) -> Object:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    expression: Object = {"key": draw(st.sampled_from(KEYS)), "operator": operator}
    if operator in ("In", "NotIn"):
        expression["values"] = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=2))
    return expression


@st.composite
def blocks(draw: st.DrawFn) -> Object:
    """A block, perhaps with exceptions that lie within it."""
    version = draw(st.sampled_from([4, 4, 4, 6]))
    cidr = draw(st.sampled_from(BLOCKS[version]))
    outer = ipaddress.ip_network(cidr, strict=False)
    inside = [
        text
        for text in BLOCKS[version]
        if ipaddress.ip_network(text, strict=False).subnet_of(outer)  # type: ignore[arg-type]
    ]
    block: Object = {"cidr": cidr}
    if draw(st.booleans()):
        block["except"] = draw(st.lists(st.sampled_from(inside), max_size=2))
    return block


@st.composite
def peers(draw: st.DrawFn) -> Object:
    """A peer of any form."""
    match draw(st.sampled_from(["pods", "namespaces", "both", "block"])):
        case "pods":
            return {"podSelector": draw(selectors())}
        case "namespaces":
            return {"namespaceSelector": draw(selectors())}
        case "both":
            return {"namespaceSelector": draw(selectors()), "podSelector": draw(selectors())}
        case _:
            return {"ipBlock": draw(blocks())}


@st.composite
def ports(draw: st.DrawFn) -> Object:
    """A port of any form."""
    port: Object = {}
    if draw(st.booleans()):
        port["protocol"] = draw(st.sampled_from(PROTOCOLS))
    match draw(st.sampled_from(["all", "number", "range", "name"])):
        case "number":
            port["port"] = draw(st.sampled_from(PORTS))
        case "range":
            port["port"] = draw(st.sampled_from(PORTS))
            port["endPort"] = port["port"] + draw(st.sampled_from([0, 1, 8000]))
        case "name":
            port["port"] = draw(st.sampled_from(PORT_NAMES))
    return port


often = st.sampled_from([True, True, True, False])


@st.composite
def rules(draw: st.DrawFn, peers_field: str) -> Object:
    """A rule; its lists may be missing, empty or full."""
    rule: Object = {}
    if draw(often):
        rule[peers_field] = draw(st.lists(peers(), max_size=3))
    if draw(st.booleans()):
        rule["ports"] = draw(st.lists(ports(), max_size=2))
    return rule


@st.composite
def policies(draw: st.DrawFn, name: str) -> Object:
    """A policy that the API would take."""
    spec: Object = {"podSelector": draw(st.one_of(st.just({}), selectors()))}
    types = draw(st.sampled_from([None, [], ["Ingress"], ["Egress"], ["Ingress", "Egress"]]))
    if types is not None:
        spec["policyTypes"] = types
    for field, peers_field in (("ingress", "from"), ("egress", "to")):
        if draw(often):
            spec[field] = draw(st.lists(rules(peers_field), max_size=2))
    namespace = draw(st.sampled_from(NAMESPACES))
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


@st.composite
def pods(draw: st.DrawFn, number: int) -> Object:
    """A pod; its number gives it its name and its addresses."""
    families = draw(st.sampled_from([(4,), (4,), (4, 6), (6,)]))
    addresses = {4: f"10.0.0.{number}", 6: f"fd00::{number}"}
    declared = draw(
        st.lists(
            st.builds(
                lambda name, port, protocol: {
                    "name": name,
                    "containerPort": port,
                    "protocol": protocol,
                },
                st.sampled_from(PORT_NAMES),
                st.sampled_from(PORTS),
                st.sampled_from(PROTOCOLS),
            ),
            max_size=2,
        )
    )
    return {
        "metadata": {
            "namespace": draw(st.sampled_from(NAMESPACES)),
            "name": f"p{number}",
            "labels": draw(labels),
        },
        "spec": {
            "nodeName": draw(st.sampled_from([NODE, NODE, "elsewhere"])),
            "hostNetwork": draw(st.sampled_from([False] * 7 + [True])),
            "containers": [{"ports": declared}],
        },
        "status": {
            "phase": draw(st.sampled_from(["Running"] * 6 + ["Pending", "Succeeded", "Failed"])),
            "podIPs": [{"ip": addresses[f]} for f in families]
            if draw(st.sampled_from([True] * 9 + [False]))
            else [],
        },
    }


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Object], list[Object], list[Object]]:
    """Pods, namespaces and policies. Now and then a namespace's object is not known yet."""
    some_pods = [draw(pods(n)) for n in range(1, draw(st.integers(1, 6)) + 1)]
    known = draw(st.sampled_from([NAMESPACES, NAMESPACES, NAMESPACES[:2]]))
    namespaces = [{"metadata": {"name": name, "labels": draw(labels)}} for name in known]
    some_policies = [draw(policies(f"n{n}")) for n in range(draw(st.sampled_from([0, 1, 1, 2, 3])))]
    return some_pods, namespaces, some_policies


@st.composite
def choices(draw: st.DrawFn) -> Settings:
    """What an operator may decide; mostly nothing."""
    exempt = draw(st.sampled_from([(), (), ("10.0.0.2/32",), ("203.0.113.0/25", "fd00::4/126")]))
    guarded = draw(st.sampled_from([(), (), ("10.0.0.0/29",), ("10.0.0.0/30", "fd00::/125")]))
    return Settings(
        draw(st.builds(Denial, st.sampled_from(DenyAction), st.booleans())),
        tuple(map(ipaddress.ip_network, exempt)),
        tuple(map(ipaddress.ip_network, guarded)),
    )
