"""Reading scenarios: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npc.lab import scenario
from npc.lab.located import ScenarioError
from npc.lab.scenario import Expect
from npc.ruleset import Family, Protocol

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """\
name: whole
cluster:
  nodes: [node-1, node-2]
  namespaces: [{name: x, labels: {ns: x}}]
  pods:
    - {namespace: x, name: a, node: node-2, ports: [{name: web, port: 80}], ips: [10.244.2.9]}
    - {namespace: x, name: b, hostNetwork: true}
  outside: [{name: client, ip: 203.0.113.7}]
steps:
  - apply:
      - {kind: Pod, metadata: {namespace: x, name: c}}
    patch: [{kind: Namespace, name: x, merge: {metadata: {labels: {ns: null}}}}]
    probes:
      - {from: x/c, to: x/a, port: 80, expect: allow}
      - {from: outside/client, to: node/node-2, port: 53, protocol: UDP, expect: deny}
  - name: gone
    delete: [{kind: Pod, namespace: x, name: c}]
    probes: [{from: x/a, to: ip/203.0.113.7, port: 9, protocol: SCTP, expect: deny}]
---
name: second
"""


def read(tmp_path: Path, text: str) -> list[scenario.Scenario]:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return scenario.read(str(path))


def test_a_whole_scenario(tmp_path: Path) -> None:
    whole, second = read(tmp_path, WHOLE)
    assert (whole.name, whole.nodes, whole.line) == ("whole", ("node-1", "node-2"), 1)
    assert (second.name, second.nodes, second.steps) == ("second", ("node-1",), ())
    assert whole.families == (Family.IPV4,)
    assert whole.outside == (scenario.OutsideHost("client", ("203.0.113.7",), 1500),)
    assert whole.ports == {(80, Protocol.TCP), (53, Protocol.UDP), (9, Protocol.SCTP)}
    namespace, a, b = whole.objects
    assert namespace["metadata"] == {"name": "x", "labels": {"ns": "x"}}
    assert a["spec"] == {
        "nodeName": "node-2",
        "containers": [{"ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}],
    }
    assert a["status"] == {"podIPs": [{"ip": "10.244.2.9"}]}
    assert b["spec"]["hostNetwork"] is True
    first, gone = whole.steps
    assert (first.name, gone.name) == ("step 1", "gone")
    assert first.patch[0].merge == {"metadata": {"labels": {"ns": None}}}
    assert (first.apply[0]["kind"], first.apply[0].line) == ("Pod", 11)
    assert [probe.expect for probe in first.probes] == [Expect.ALLOW, Expect.DENY]
    assert first.probes[1].line == 15
    assert (gone.delete[0].namespace, gone.delete[0].name, gone.delete[0].line) == ("x", "c", 17)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("name: whole", "title: whole", 1, "a scenario has no field 'title'"),
        ("[node-1, node-2]", "node-1", 3, "nodes must be a list, not 'node-1'"),
        ("[node-1, node-2]", "[1]", 3, "nodes: 1 is not a name"),
        ("{ns: x}}", "{ns: 1}}", 4, "labels must be texts by name, not {'ns': 1}"),
        ("node: node-2", "node: node-3", 6, "node: there is no node 'node-3'"),
        ("10.244.2.9", "10.244.2.999", 6, "'10.244.2.999' is not an address"),
        ("{namespace: x, name: b", "{namespace: z, name: b", 7, "there is no namespace 'z'"),
        ("ip: 203", "address: 203", 8, "an outside host has no field 'address'"),
        ("kind: Pod, metadata", "kind: Service, metadata", 11, "kind: 'Service' is none of"),
        ("{namespace: x, name: c}}", "{name: c}}", 11, "a Pod needs a namespace"),
        ("name: x, merge", "namespace: x, name: x, merge", 12, "a Namespace needs no namespace"),
        ("merge: {metadata: {labels: {ns: null}}}", "merge: 1", 12, "merge must be a mapping"),
        (
            "expect: allow",
            "expect: perhaps",
            14,
            "expect: 'perhaps' is none of allow, deny",
        ),
        ("x/c, to", "x/d, to", 14, "from: at this step no pod 'x/d' runs"),
        ("x/c, to", "c, to", 14, "from: 'c' is not of the form NAMESPACE/POD"),
        ("x/c, to", "ip/1.2.3.4, to", 14, "from: a probe cannot come from an address"),
        ("port: 80, expect", "port: 0, expect", 14, "port: 0 is not a number from 1 to 65535"),
        ("outside/client", "outside/nobody", 15, "from: there is no outside host 'nobody'"),
        ("node/node-2", "node/node-3", 15, "to: there is no node 'node-3'"),
        ("protocol: UDP", "protocol: IGMP", 15, "protocol: 'IGMP' is none of TCP, UDP, SCTP"),
        ("protocol: UDP", "protocol: ICMP", 15, "port: ICMP has none"),
        ("protocol: UDP", "size: 8", 15, "size: 8 is not a number from 16 to 60000"),
        ("from: outside/client", "from: service/web", 15, "from: there is no service 'web'"),
        ("expect: allow", "expect: deny, hold: c", 14, "hold: only an allowed probe by TCP or UDP"),
        ("{from: x/a, to: ip", "{over: c, to: ip", 18, "a probe has no field 'to'"),
        ("from: x/a, to: ip", "from: x/c, to: ip", 18, "from: at this step no pod 'x/c' runs"),
        ("ip/203.0.113.7", "ip/here", 18, "'here' is not an address"),
        ("ip: 203.0.113.7", "ip: 203.0.113.7, mtu: 99", 8, "mtu: 99 is not a number from 1280"),
        ("nodes: [", "network: token-ring\n  nodes: [", 3, "network: 'token-ring' is none of"),
        ("- name: gone", "- name: gone\n    name: gone", 17, "'name' stands twice"),
        ("steps:", "families: [ipv5]\nsteps:", 1, "families: 'ipv5' is neither ipv4 nor ipv6"),
        ("  - name: gone", "  - 1\n  - name: gone", 10, "a step must be a mapping, not 1"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in WHOLE
    with pytest.raises(ScenarioError) as error:
        read(tmp_path, WHOLE.replace(old, new, 1))
    assert str(error.value).startswith(f"{tmp_path}/s.yaml:{line}: {message}")


def test_a_scenario_runs_in_the_families_that_it_names_and_otherwise_in_those_of_the_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: any\n---\nname: both\nfamilies: [ipv6, ipv4]\n")
    any_family, both = scenario.read(str(path), (Family.IPV6,))
    assert any_family.families == (Family.IPV6,)
    assert both.families == (Family.IPV4, Family.IPV6)


def test_text_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"s\.yaml:2: "):
        read(tmp_path, "name: x\n  y: [\n")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"absent\.yaml: No such file"):
        scenario.read(str(tmp_path / "absent.yaml"))
