"""libiptc writes what the tool would have written, and whatever befalls it stays with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError, libiptc, libiptc_client
from npc.dataplane.libiptc import LibiptcDataplane
from npc.dataplane.libiptc_client import PROGRAM, Worker
from npc.dataplane.mode import tool
from npc.dataplane.tools import ToolError, run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import Denial, DenyAction, Family, Ruleset
from tests.contract.dataplane import samples
from tests.contract.dataplane.netns import Namespace
from tests.contract.dataplane.node import Node, make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.netns

STEPS = ["Builder.build", "Table.__init__", "Table.edit", "Table.commit"]


@pytest.fixture
def variant() -> str:
    return "libiptc"


def _old(family: Family) -> Ruleset:
    return samples.simple(family, 1, 2, port=80)


def _new(family: Family) -> Ruleset:
    """Something to create, add, write, delete, remove and destroy."""
    return samples.simple(family, 2, 3, port=81, label="NEXT")


@contextlib.contextmanager
def _worker(node: Node, program: Sequence[str]) -> Iterator[None]:
    """Within, the node's dataplane uses that program."""
    usual = node.dataplane
    node.dataplane = LibiptcDataplane([node.family], node.run, Worker(program))
    yield
    node.dataplane = usual


def _fault(node: Node, *words: str) -> contextlib.AbstractContextManager[None]:
    """Within, the node's dataplane has a worker with that fault."""
    return _worker(node, [sys.executable, "-m", "tests.contract.dataplane.broken_worker", *words])


def _children() -> set[int]:
    found = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text().split()}


def _rules_of(variant: str, desired: Ruleset) -> list[str]:
    """What iptables-save prints on another machine with those rules."""
    (family,) = desired.families
    with Namespace():
        other = Node(variant, family)
        other.sync(desired)
        return other.saved()


# -- what is written -----------------------------------------------------------------------------


def _decided(family: Family) -> Ruleset:
    return samples.decided(family, Denial(DenyAction.DROP, log=True))


@pytest.mark.parametrize("made", [samples.nothing, samples.everything, _old, _decided])
def test_the_rules_are_those_of_the_tool(node: Node, made: Callable[[Family], Ruleset]) -> None:
    known = _rules_of("legacy", made(node.family))
    node.sync(made(node.family))
    assert node.saved() == known
    node.sync(_new(node.family))
    node.sync(made(node.family))
    assert sorted(node.saved()) == sorted(known)


_BOTH_FAMILIES = [
    "-j DROP",
    "-g NPC-OTHER",
    '-m comment --comment "!" -j RETURN',
    '-m comment --comment "!a --b -c" -j RETURN',
    "-p tcp -m tcp ! --dport 80:90 -j RETURN",
    "-p udp -m multiport --dports 53,5353 -j RETURN",
    "-p sctp -m sctp --dport 7 -j RETURN",
    "-m mark --mark 0x4000/0x4000 -j RETURN",
    "-m limit --limit 10/min --limit-burst 20 -j RETURN",
    "-m set ! --match-set NPC-SET src -m addrtype ! --dst-type LOCAL -j RETURN",
    "-m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j RETURN",
    '-j NFLOG --nflog-prefix "NPC denied " --nflog-group 10',
    '-j LOG --log-prefix "NPC denied " --log-level 6',
]
_OTHER_RULES = {
    Family.IPV4: [
        *_BOTH_FAMILIES,
        "-s 10.0.0.5/8 -d 0.0.0.0/0 -j RETURN",
        "-s 10.0.0.5 -j REJECT --reject-with icmp-admin-prohibited",
        "-p icmp -m icmp --icmp-type 8 -j RETURN",
    ],
    Family.IPV6: [
        *_BOTH_FAMILIES,
        "-s fd00::5/8 -d ::/0 -j RETURN",
        "-s fd00::5 -d fd00:1234:5678::/45 -j REJECT --reject-with icmp6-adm-prohibited",
    ],
}


def test_every_kind_of_rule_is_that_of_the_tool(node: Node) -> None:
    inet = "inet" if node.family is Family.IPV4 else "inet6"
    run_tool(["ipset", "create", "NPC-SET", "hash:ip", "family", inet])
    rules = [f"-A NPC-MANY {rule}" for rule in _OTHER_RULES[node.family]]
    chains = {"NPC-OTHER": [], "NPC-MANY": rules}
    Worker().ask({"family": node.family.value, "chains": chains, "lock_seconds": 5})
    written = node.saved()
    lines = ["*filter", ":NPC-OTHER -", ":NPC-MANY -", *rules, "COMMIT"]
    run_tool([tool(node.mode, node.family, "restore"), "-w", "5"], "\n".join(lines) + "\n")
    assert written == node.saved()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("-p carp -j RETURN", "-p carp is not known here"),
        ("! -s 10.0.0.1 -j RETURN", "!-s 10.0.0.1 is not known here"),
        ("-p tcp -m tcp --tpc 80 -j RETURN", "'tcp' of iptables refuses `--tpc 80'"),
        ("-p tcp -m tcp --dport no-such-port -j RETURN", "refuses `--dport no-such-port'"),
        ("-s 10.0.0.999 -j RETURN", "10.0.0.999"),
        ("-j NPC-ABSENT", "the kernel refused the transaction: No chain/target/match by that name"),
        ("-j REJECT --reject-with tcp-reset", "the kernel refused the transaction: "),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_the_rest(node4: Node, rule: str, said: str) -> None:
    """The library's own short way leaves out what it does not know: the rule allows more."""
    chains = {"NPC-GOOD": ["-A NPC-GOOD -j DROP"], "NPC-BAD": [f"-A NPC-BAD {rule}"]}
    with pytest.raises(ToolError, match=said):
        Worker().ask({"family": 4, "chains": chains, "lock_seconds": 5})
    assert node4.ours() == []


@pytest.mark.parametrize("rule", ["-m no-such-match -j RETURN", "-j NO-SUCH-TARGET"])
def test_an_extension_that_is_not_there_is_missing(node4: Node, rule: str) -> None:
    with pytest.raises(MissingToolError, match=r"has no (match|target) '(?i:no-such)"):
        Worker().ask({"family": 4, "chains": {"NPC-X": [f"-A NPC-X {rule}"]}, "lock_seconds": 5})
    assert node4.ours() == []


def test_one_worker_serves_both_families(namespace: Namespace) -> None:
    dataplane = LibiptcDataplane(list(Family))
    for made in (_old, samples.everything, _new):
        families = {family: made(family).families[family] for family in Family}
        desired = Ruleset(families)
        dataplane.apply(make_plan(dataplane.observe(), desired))
        assert dataplane.observe() == state_of(desired)


def test_an_agent_changes_between_the_tool_and_libiptc_without_writing_a_rule(node: Node) -> None:
    desired = _old(node.family)
    make_node("legacy", node.family).sync(desired)
    assert node.sync(desired).empty
    node.sync(_new(node.family))
    assert make_node("legacy", node.family).sync(_new(node.family)).empty


def test_two_capabilities_are_enough(node: Node) -> None:
    alone = ["setpriv", "--bounding-set", "-all,+net_admin,+net_raw", *PROGRAM]
    with _worker(node, alone):
        node.sync(samples.everything(node.family))
        assert node.dataplane.observe() == state_of(samples.everything(node.family))


def test_no_other_table_comes_to_be(node: Node) -> None:
    node.sync(samples.everything(node.family))
    name = "ip_tables_names" if node.family is Family.IPV4 else "ip6_tables_names"
    assert Path(f"/proc/thread-self/net/{name}").read_text() == "filter\n"


def test_an_apply_runs_ipset_alone(node: Node) -> None:
    node.sync(_old(node.family))
    node.sync(_new(node.family))
    assert node.calls == ["ipset", "ipset", "ipset"]


def test_what_is_right_keeps_its_counters(node4: Node) -> None:
    node4.sync(_old(node4.family))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"?", ("127.0.0.1", 9))
    node4.sync(_new(node4.family))
    counted = run_tool(["iptables-legacy-save", "-c", "-t", "filter"]).splitlines()
    jump = next(line for line in counted if "-A OUTPUT" in line)
    assert not jump.startswith("[0:0]")


def test_a_stray_that_left_by_itself_does_not_matter(node: Node) -> None:
    node.iptables("-N KUBE-X")
    node.iptables("-N NPC-STALE")
    node.iptables("-A KUBE-X -j NPC-STALE")
    plan = make_plan(node.dataplane.observe(), _old(node.family))
    node.iptables("-F KUBE-X")
    node.dataplane.apply(plan)
    assert node.dataplane.observe() == state_of(_old(node.family))


def test_the_agent_never_loads_the_library_nor_lends_it_its_output(
    node4: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    node4.sync(samples.everything(node4.family))
    assert "iptc" not in sys.modules
    assert capfd.readouterr() == ("", "")


# -- the worker fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("action", "number"), [("die", 9), ("crash", 11)])
def test_the_worker_dies_at_any_step(
    node4: Node, step: str, when: str, action: str, number: int
) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    plan = make_plan(node4.dataplane.observe(), _new(node4.family))
    with _fault(node4, step, when, action), pytest.raises(ToolError, match=f"signal {number}"):
        node4.dataplane.apply(plan)
    if (step, when) == ("Table.commit", "after"):
        assert sorted(node4.saved()) == sorted(_rules_of("libiptc", _new(node4.family)))
    else:
        assert node4.ours() == before
    node4.sync(_new(node4.family))
    assert node4.dataplane.observe() == state_of(_new(node4.family))


def test_a_worker_that_hangs_is_killed(node4: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    known = _children()
    monkeypatch.setattr(libiptc_client, "TIMEOUT_SECONDS", 1)
    with (
        _fault(node4, "Table.commit", "before", "hang"),
        pytest.raises(ToolError, match="was killed: it had not answered after 1 s"),
    ):
        node4.sync(_new(node4.family))
    assert node4.ours() == before
    assert _children() <= known
    node4.sync(_new(node4.family))
    assert node4.dataplane.observe() == state_of(_new(node4.family))


def test_a_worker_that_died_meanwhile_is_started_again(node4: Node) -> None:
    known = _children()
    node4.sync(_old(node4.family))
    (worker,) = _children() - known
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    node4.sync(_new(node4.family))
    assert node4.dataplane.observe() == state_of(_new(node4.family))


def test_a_program_that_cannot_even_start(node4: Node) -> None:
    with _worker(node4, ["/nonexistent"]), pytest.raises(DataplaneError, match="nonexistent"):
        node4.sync(_old(node4.family))
    assert node4.ours() == []


def test_it_ends_with_the_dataplane_and_not_at_a_signal_to_all(node4: Node) -> None:
    known = _children()
    node4.sync(_old(node4.family))
    (worker,) = _children() - known
    os.kill(worker, signal.SIGTERM)
    node4.sync(_new(node4.family))
    assert _children() - known == {worker}
    del node4.dataplane
    assert _children() <= known


_AGENT = textwrap.dedent("""
    import sys
    from npc.dataplane.libiptc import LibiptcDataplane
    from npc.dataplane.libiptc_client import Worker
    from npc.plan import make_plan
    from npc.ruleset import Family
    from tests.contract.dataplane.test_libiptc import _new
    dataplane = LibiptcDataplane([Family.IPV4], worker=Worker(sys.argv[1:]))
    dataplane.apply(make_plan(dataplane.observe(), _new(Family.IPV4)))
""")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_what_an_agent_wanted_that_was_killed_is_not_written_later(
    node4: Node, step: str, when: str
) -> None:
    """Its successor may be at work by then."""
    node4.sync(_old(node4.family))
    before = node4.ours()
    program = [sys.executable, "-m", "tests.contract.dataplane.broken_worker", step, when, "orphan"]
    # The worker has the same standard error, so this waits for the end of both.
    agent = subprocess.run(
        [sys.executable, "-c", _AGENT, *program], stderr=subprocess.PIPE, check=False
    )
    assert (agent.returncode, agent.stderr) == (-9, b"")
    if step != "Table.commit":
        assert node4.ours() == before
    node4.sync(_new(node4.family))
    assert node4.dataplane.observe() == state_of(_new(node4.family))


# -- other programs ------------------------------------------------------------------------------


def test_a_lock_that_another_program_keeps(
    node4: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(libiptc, "LOCK_SECONDS", 1)
    plan = make_plan(node4.dataplane.observe(), _old(node4.family))
    with (tmp_path / "xtables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ToolError, match="held by another program for 1 s"):
            node4.dataplane.apply(plan)
        assert node4.ours() == []
    node4.sync(_old(node4.family))
    assert node4.dataplane.observe() == state_of(_old(node4.family))


def test_a_lock_that_another_program_gives_back(node4: Node, tmp_path: Path) -> None:
    with (tmp_path / "xtables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        timer = threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN))
        timer.start()
        node4.sync(_old(node4.family))
        timer.join()
    assert node4.dataplane.observe() == state_of(_old(node4.family))


@pytest.mark.parametrize("step", ["Table.__init__", "Table.edit", "Table.commit"])
def test_the_lock_is_held_from_the_copy_to_the_commit(
    node4: Node, step: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with _fault(node4, step, "before", "try-lock"):
        node4.sync(_old(node4.family))
    assert capfd.readouterr().err == "held\n"


def test_no_lock_is_held_while_rules_are_built(
    node4: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    with _fault(node4, "Builder.build", "before", "try-lock"):
        node4.sync(_old(node4.family))
    assert capfd.readouterr().err == "free\n"


def test_a_change_without_the_lock_is_kept(node4: Node) -> None:
    with _fault(node4, "Table.commit", "before", "meddle", "2"):
        node4.sync(_old(node4.family))
    assert node4.dataplane.observe() == state_of(_old(node4.family))
    assert len([line for line in node4.foreign() if "203.0.113.1" in line]) == 2


def test_changes_without_end_are_an_error(node4: Node) -> None:
    with (
        _fault(node4, "Table.commit", "before", "meddle", "100"),
        pytest.raises(ToolError, match="changed the filter table during each of 5 tries"),
    ):
        node4.sync(_old(node4.family))
    assert node4.ours() == []
    node4.sync(_old(node4.family))
    assert node4.dataplane.observe() == state_of(_old(node4.family))


# -- what is refused -----------------------------------------------------------------------------


def test_a_set_that_vanished_fails_the_whole_transaction(node4: Node) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    desired = samples.simple(node4.family, 3, port=82, label="NEXT")
    plan = make_plan(state_of(_new(node4.family)), desired)
    refusal = r"'set' of iptables refuses `--match-set NPC-.*' \[rule: -A NPC-"
    with pytest.raises(ToolError, match=refusal):
        node4.dataplane.apply(plan)
    assert node4.ours() == before
    node4.sync(desired)
    assert node4.dataplane.observe() == state_of(desired)


def test_a_set_that_vanishes_last_fails_the_whole_transaction(node4: Node) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    with (
        _fault(node4, "Table.commit", "before", "destroy"),
        pytest.raises(ToolError, match="the kernel refused the transaction"),
    ):
        node4.sync(_new(node4.family))
    assert node4.ours() == before


@pytest.mark.parametrize("wanted", ["auto", "nft"])
def test_a_node_that_uses_nft_is_refused(node4: Node, wanted: str) -> None:
    with pytest.raises(MissingToolError, match="this node uses nft"):
        LibiptcDataplane.open(wanted, [Family.IPV4])
    assert Path("/proc/thread-self/net/ip_tables_names").read_text() == ""


def _python(*lines: str) -> list[str]:
    serve = "from npc.dataplane.libiptc_worker.__main__ import main; main()"
    return [sys.executable, "-c", "\n".join([*lines, serve])]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["setpriv", "--bounding-set", "-net_admin", *PROGRAM], r"\[needs root, or .*NET_ADMIN"),
        (["setpriv", "--bounding-set", "-net_raw", *PROGRAM], r"\[needs root, or .*NET_RAW"),
        (
            _python(
                "from npc.dataplane.libiptc_worker import __main__, table",
                "table.os.setuid(65534)",
            ),
            r"cannot open the xtables lock .* \[needs root",
        ),
        (
            _python("import sys; sys.modules['iptc'] = None"),
            "python-iptables cannot be loaded: .* install the package",
        ),
        (
            _python(
                "from iptc import ip4tc",
                "init = ip4tc.iptc.iptc_init",
                "ip4tc.iptc.iptc_init = lambda name: init(b'absent')",
            ),
            r"Table does not exist .* \[this kernel has no legacy iptables",
        ),
    ],
    ids=["net-admin", "net-raw", "root", "library", "kernel"],
)
def test_what_is_missing_is_told_from_a_fault(
    namespace: Namespace, program: Sequence[str], said: str
) -> None:
    with pytest.raises(MissingToolError, match=said):
        Worker(program).ask({"family": 4, "lock_seconds": 1})
