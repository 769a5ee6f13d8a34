"""What the rules do to real packets. A denial is proved by the refusal that answers it."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npc.ruleset import (
    AddressSet,
    Denial,
    DenyAction,
    Direction,
    Family,
    Guard,
    Ports,
    Protocol,
    Rule,
    Ruleset,
    SetKind,
    SetRef,
)
from tests.contract.dataplane.samples import chain, nothing, ruleset, whole
from tests.e2e.dataplane.lan import (
    Host,
    Lan,
    RefusedError,
    acknowledgement,
    datagram,
    is_reset_of,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.netns

IN, OUT = Direction.INGRESS, Direction.EGRESS
TCP, UDP = Protocol.TCP, Protocol.UDP


def port(protocol: Protocol, first: int, last: int | None = None) -> Ports:
    return Ports(protocol, first, first if last is None else last)


def isolate(
    family: Family,
    *pods: tuple[Host, Direction, Sequence[Rule]],
    sets: Sequence[AddressSet] = (),
) -> Ruleset:
    """Each pod in a chain of its own."""
    return ruleset(
        family,
        sets,
        [
            (
                chain(
                    family, f"{host.address.replace(':', '').replace('.', '')}", direction, *rules
                ),
                [host.address],
            )
            for host, direction, rules in pods
        ],
    )


def allow(ports: Ports | None = None, peer: AddressSet | None = None) -> Rule:
    return Rule(SetRef(peer.name, peer.kind) if peer else None, ports, "test/policy")


def pods(*hosts: Host) -> AddressSet:
    return AddressSet("NPC-PODS", SetKind.ADDRESS, frozenset(h.address for h in hosts))


def refused(client: Host, server: Host | str, number: int) -> bool:
    try:
        client.connect(server, number)
    except RefusedError:
        return True
    return False


def test_without_policies_everything_passes(lan: Lan) -> None:
    lan.enforce(nothing(lan.family))
    lan.b.listen(80)
    lan.a.connect(lan.b, 80)
    lan.a.ask(lan.b.receive(53))
    lan.node.connect(lan.b, 80)


def test_ingress_allows_one_port_from_one_peer(lan: Lan) -> None:
    lan.b.listen(80)
    lan.b.listen(81)
    lan.a.listen(80)
    lan.enforce(
        isolate(lan.family, (lan.b, IN, [allow(port(TCP, 80), pods(lan.a))]), sets=[pods(lan.a)])
    )
    lan.a.connect(lan.b, 80)
    assert refused(lan.a, lan.b, 81)
    with pytest.raises(RefusedError):
        lan.a.ask(lan.b.receive(80))
    # The other direction is not isolated, nor is the other pod.
    lan.b.connect(lan.a, 80)


def test_ingress_from_another_peer_is_refused(lan: Lan) -> None:
    lan.b.listen(80)
    lan.enforce(isolate(lan.family, (lan.b, IN, [allow(None, pods())]), sets=[pods()]))
    assert refused(lan.a, lan.b, 80)
    lan.enforce(isolate(lan.family, (lan.b, IN, [allow(None, pods(lan.a))]), sets=[pods(lan.a)]))
    lan.a.connect(lan.b, 80)


def test_egress_allows_one_port_to_one_peer(lan: Lan) -> None:
    lan.b.listen(80)
    lan.a.listen(80)
    name_server = lan.b.receive(53)
    lan.enforce(
        isolate(lan.family, (lan.a, OUT, [allow(port(UDP, 53), pods(lan.b))]), sets=[pods(lan.b)])
    )
    lan.a.ask(name_server)
    assert refused(lan.a, lan.b, 80)
    with pytest.raises(RefusedError):
        lan.a.ask(lan.b.receive(54))
    lan.b.connect(lan.a, 80)


@pytest.mark.parametrize(
    ("out", "into", "passes"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_both_sides_have_to_allow(lan: Lan, *, out: bool, into: bool, passes: bool) -> None:
    """Each pod is isolated both ways, so that also the refusal has to find its way back."""
    lan.b.listen(80)
    lan.enforce(
        isolate(
            lan.family,
            (lan.a, OUT, [allow(port(TCP, 80))] if out else []),
            (lan.a, IN, []),
            (lan.b, IN, [allow(port(TCP, 80))] if into else []),
            (lan.b, OUT, []),
        )
    )
    assert refused(lan.a, lan.b, 80) is not passes
    with pytest.raises(RefusedError):
        lan.a.ask(lan.b.receive(80))


def test_a_range_of_ports(routed: Lan) -> None:
    for number in (79, 80, 85, 90, 91):
        routed.b.listen(number)
    routed.enforce(isolate(routed.family, (routed.b, IN, [allow(port(TCP, 80, 90))])))
    assert [refused(routed.a, routed.b, n) for n in (79, 80, 85, 90, 91)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_all_ports_of_a_protocol(routed: Lan) -> None:
    routed.b.listen(80)
    routed.enforce(isolate(routed.family, (routed.b, IN, [allow(Ports(TCP))])))
    routed.a.connect(routed.b, 80)
    with pytest.raises(RefusedError):
        routed.a.ask(routed.b.receive(80))


def test_a_named_port_of_a_peer(routed: Lan) -> None:
    endpoints = AddressSet("NPC-ENDS", SetKind.ENDPOINT, frozenset([f"{routed.b.address},tcp:80"]))
    routed.b.listen(80)
    routed.b.listen(81)
    routed.enforce(
        isolate(routed.family, (routed.a, OUT, [allow(None, endpoints)]), sets=[endpoints])
    )
    routed.a.connect(routed.b, 80)
    assert refused(routed.a, routed.b, 81)
    with pytest.raises(RefusedError):
        routed.a.ask(routed.b.receive(80))


def test_a_block_with_an_exception(routed: Lan) -> None:
    def except_(*hosts: Host) -> Ruleset:
        peer = AddressSet(
            "NPC-NET",
            SetKind.NETWORK,
            frozenset([whole(routed.family)]),
            frozenset(routed.block(host) for host in hosts),
        )
        return isolate(routed.family, (routed.b, IN, [allow(None, peer)]), sets=[peer])

    routed.b.listen(80)
    routed.enforce(except_())
    routed.a.connect(routed.b, 80)
    routed.enforce(except_(routed.a))
    assert refused(routed.a, routed.b, 80)


def test_established_connections_outlive_a_policy_in_both_directions(lan: Lan) -> None:
    lan.enforce(nothing(lan.family))  # without rules of anyone, conntrack does not run
    server = lan.b.listen(80)
    client = lan.a.connect(lan.b, 80)
    accepted, _ = server.accept()
    with accepted:
        lan.enforce(
            isolate(lan.family, *((pod, d, ()) for pod in (lan.a, lan.b) for d in (IN, OUT)))
        )
        client.send(b"?")
        accepted.settimeout(5)
        assert accepted.recv(1) == b"?"
        accepted.send(b"!")
        assert client.recv(1) == b"!"
    assert refused(lan.a, lan.b, 80)


def test_replies_pass_where_the_client_may_receive_nothing(lan: Lan) -> None:
    lan.b.listen(80)
    lan.enforce(isolate(lan.family, (lan.a, IN, ()), (lan.b, OUT, ())))
    lan.a.connect(lan.b, 80)
    lan.a.ask(lan.b.receive(53))


def test_icmp_errors_of_an_allowed_flow_pass(lan: Lan) -> None:
    """Nothing listens at b: its own ICMP error has to reach a, who may receive nothing."""
    lan.enforce(isolate(lan.family, (lan.a, IN, ()), (lan.b, OUT, ())))
    gone = lan.b.receive(53)
    address = gone.getsockname()
    gone.close()
    client = lan.a.socket(socket.SOCK_DGRAM)
    client.connect(address[:2])
    client.send(b"?")
    with pytest.raises(ConnectionRefusedError):
        client.recv(1)


def test_the_node_always_reaches_its_pods(lan: Lan) -> None:
    lan.b.listen(80)
    lan.enforce(isolate(lan.family, (lan.b, IN, ()), (lan.b, OUT, ())))
    lan.node.connect(lan.b, 80)
    lan.node.ask(lan.b.receive(53))
    assert refused(lan.a, lan.b, 80)


def test_a_pod_reaches_its_node_only_if_its_egress_allows(lan: Lan) -> None:
    lan.node.listen(80)
    lan.node.listen(81)
    lan.enforce(
        isolate(
            lan.family, (lan.a, OUT, [allow(port(TCP, 80), pods(lan.node))]), sets=[pods(lan.node)]
        )
    )
    lan.a.connect(lan.node, 80)
    assert refused(lan.a, lan.node, 81)
    lan.b.connect(lan.node, 81)


def _virtual(lan: Lan) -> str:
    return "10.96.0.1" if lan.family.value == 4 else "fd96::1"


def _service(lan: Lan, backend: Host, *, masquerade: bool = False) -> str:
    """A service as kube-proxy makes it: a virtual address, translated to a backend."""
    virtual = _virtual(lan)
    target = backend.address if lan.family.value == 4 else f"[{backend.address}]"
    seen = f"-t nat -A PREROUTING -d {virtual} -p tcp --dport 80"
    lan.iptables(f"{seen} -j DNAT --to-destination {target}:8080")
    if masquerade:
        me = backend.address
        lan.iptables(f"-t nat -A POSTROUTING -s {me} -d {me} -j MASQUERADE")
    return virtual


def test_a_pod_reaches_itself_through_its_service(lan: Lan) -> None:
    lan.a.listen(8080)
    virtual = _service(lan, lan.a, masquerade=True)
    lan.enforce(isolate(lan.family, (lan.a, IN, ()), (lan.a, OUT, ())))
    lan.a.connect(virtual, 80)
    assert refused(lan.b, lan.a, 8080)


def test_a_service_is_judged_by_the_pod_behind_it(lan: Lan) -> None:
    lan.b.listen(8080)
    virtual = _service(lan, lan.b)
    rule = [allow(port(TCP, 8080), pods(lan.b))]
    lan.enforce(isolate(lan.family, (lan.a, OUT, rule), sets=[pods(lan.b)]))
    lan.a.connect(virtual, 80)
    rule = [allow(port(TCP, 80), pods(lan.b))]
    lan.enforce(isolate(lan.family, (lan.a, OUT, rule), sets=[pods(lan.b)]))
    assert refused(lan.a, virtual, 80)


def test_fragments_are_judged_as_the_whole(lan: Lan) -> None:
    lan.enforce(isolate(lan.family, (lan.b, IN, [allow(port(UDP, 53))])))
    lan.a.ask(lan.b.receive(53), size=4000)
    with pytest.raises(RefusedError):
        lan.a.ask(lan.b.receive(54), size=4000)


def test_the_rules_of_others_still_decide_what_we_allow(routed: Lan) -> None:
    routed.b.listen(80)
    routed.iptables("-A FORWARD -p tcp --dport 80 -j REJECT --reject-with tcp-reset")
    routed.enforce(isolate(routed.family, (routed.b, IN, [allow()])))
    assert refused(routed.a, routed.b, 80)


def test_the_rules_of_others_open_nothing_that_we_deny(routed: Lan) -> None:
    routed.b.listen(80)
    routed.enforce(isolate(routed.family, (routed.b, IN, ())))
    routed.iptables("-A FORWARD -j ACCEPT")
    assert refused(routed.a, routed.b, 80)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_ipvs_sends_on_is_judged_as_the_pods(lan4: Lan, side: str) -> None:
    """It leaves by OUTPUT with the client's address."""
    server = lan4.b.receive(53)
    rules = [allow(port(UDP, 53))]
    pod = (lan4.a, OUT, rules) if side == "source" else (lan4.b, IN, rules)
    lan4.enforce(isolate(lan4.family, pod))
    with pytest.raises(PermissionError):
        send(lan4.node, lan4.a, lan4.b, socket.IPPROTO_UDP, datagram(52))
    send(lan4.node, lan4.a, lan4.b, socket.IPPROTO_UDP, datagram(53))
    assert server.recv(1) == b"?"


def test_a_stray_packet_is_not_answered_by_a_reset(lan4: Lan) -> None:
    """What conntrack calls INVALID may belong to a connection that is allowed."""
    lan4.enforce(isolate(lan4.family, (lan4.b, IN, ())))
    lan4.node.run("sh", "-c", "echo 0 >/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
    with lan4.a.namespace:
        seen = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    with seen:
        stray = acknowledgement(lan4.a, lan4.b, 80)
        send(lan4.a, lan4.a, lan4.b, socket.IPPROTO_TCP, stray)
        assert refused(lan4.a, lan4.b, 80)
        assert not is_reset_of(stray, seen.recv(100))
    assert lan4.denied() == {IN: 2, OUT: 0}


def test_what_was_refused_is_counted_over_changes_of_the_rules(lan: Lan) -> None:
    lan.b.listen(80)
    lan.enforce(isolate(lan.family, (lan.b, IN, [])))
    assert refused(lan.a, lan.b, 80)
    assert lan.denied() == {IN: 1, OUT: 0}
    lan.enforce(isolate(lan.family, (lan.b, IN, []), (lan.a, OUT, [])))
    assert refused(lan.a, lan.b, 80)
    assert lan.denied() == {IN: 1, OUT: 1}


def test_a_held_address_neither_sends_nor_receives(lan: Lan) -> None:
    lan.b.listen(80)
    lan.a.listen(80)
    lan.enforce(_held(lan, known=()))
    assert refused(lan.a, lan.b, 80)
    assert refused(lan.b, lan.a, 80)
    lan.node.connect(lan.b, 80)
    lan.enforce(_held(lan, known=[lan.a, lan.b]))
    lan.a.connect(lan.b, 80)


def test_a_held_address_that_becomes_isolated_obeys_its_rules(lan: Lan) -> None:
    lan.b.listen(80)
    lan.b.listen(81)
    isolated = isolate(lan.family, (lan.b, IN, [allow(port(TCP, 80))]))
    lan.enforce(_held(lan, known=[lan.a], base=isolated))
    lan.a.connect(lan.b, 80)
    assert refused(lan.a, lan.b, 81)


def test_an_exempt_address_is_never_judged(lan: Lan) -> None:
    lan.b.listen(80)
    desired = isolate(lan.family, (lan.b, IN, []))
    lan.enforce(desired)
    assert refused(lan.a, lan.b, 80)
    rules = desired.families[lan.family]
    exempt = AddressSet("NPC-EXEMPT", SetKind.NETWORK, frozenset({lan.block(lan.a)}))
    sets = {**rules.sets, exempt.name: exempt}
    dispatch = replace(rules.dispatch, exempt=exempt.name)
    lan.enforce(Ruleset({lan.family: replace(rules, sets=sets, dispatch=dispatch)}))
    lan.a.connect(lan.b, 80)


def test_a_dropped_packet_is_answered_by_nothing(lan: Lan) -> None:
    lan.b.listen(80)
    rules = isolate(lan.family, (lan.b, IN, [])).families[lan.family]
    dispatch = replace(rules.dispatch, denial=Denial(DenyAction.DROP, log=True))
    lan.enforce(Ruleset({lan.family: replace(rules, dispatch=dispatch)}))
    with pytest.raises(TimeoutError):
        lan.a.connect(lan.b, 80)
    assert lan.denied()[IN] >= 1


def _held(lan: Lan, known: Sequence[Host], base: Ruleset | None = None) -> Ruleset:
    """All addresses of the network are held but those of hosts that are known."""
    rules = (base or nothing(lan.family)).families[lan.family]
    sets = [
        AddressSet("NPC-HELD", SetKind.NETWORK, frozenset({lan.block(lan.a), lan.block(lan.b)})),
        *(
            AddressSet(
                f"NPC-OPEN-{d.name}",
                SetKind.ADDRESS,
                frozenset(h.address for h in known)
                - rules.sets[rules.dispatch.isolated[d]].entries,
            )
            for d in Direction
        ),
    ]
    guard = Guard("NPC-HELD", {d: f"NPC-OPEN-{d.name}" for d in Direction})
    return Ruleset(
        {
            lan.family: replace(
                rules,
                sets={**rules.sets, **{s.name: s for s in sets}},
                dispatch=replace(rules.dispatch, guard=guard),
            )
        }
    )
