"""Tools that fail, hang, are absent or die with the agent: old rules or new rules, never half.

"Half" is judged by what decides about packets: the rules are those of the old ruleset or of the new
one as a whole, and no set that they use has lost a member that its ruleset wants.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError, restore, tools
from npc.dataplane.mode import Mode, tool
from npc.dataplane.tools import ToolError, run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import AddressSet, Family, Ruleset, SetKind
from tests.contract.dataplane import samples
from tests.contract.dataplane.netns import Namespace
from tests.contract.dataplane.node import TOOLS, Node, make_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.dataplane.node import Wrapped

pytestmark = pytest.mark.netns

# The tools that one apply of `_new` runs: ipset, three looks at hooks and two at what was denied,
# restore, ipset, ipset. With nftables it is nft, once.
CALLS = {"nft": 9, "legacy": 9, "nftables": 1}
RESTORE = {"nft": 7, "legacy": 7, "nftables": 1}
OBSERVING = {"nft": 2, "legacy": 2, "nftables": 1}
AT_ANY_CALL = [(variant, n) for variant, calls in CALLS.items() for n in range(1, calls + 1)]


@pytest.fixture(params=TOOLS)
def variant(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def _old(family: Family) -> Ruleset:
    return samples.simple(family, 1, 2, port=80)


def _new(family: Family) -> Ruleset:
    """Something to create, add, write, delete, remove and destroy."""
    return samples.simple(family, 2, 3, port=81, label="NEXT")


def _expected_rules(node: Node) -> Iterator[tuple[Ruleset, list[str]]]:
    """What the kernel holds for either ruleset, as another machine shows it."""
    for ruleset in (_old(node.family), _new(node.family)):
        with Namespace():
            other = make_node(node.variant, node.family)
            other.sync(ruleset)
            yield ruleset, sorted(other.ours())


def _assert_whole(node: Node, known: list[tuple[Ruleset, list[str]]]) -> Ruleset:
    found = [ruleset for ruleset, rules in known if rules == sorted(node.ours())]
    assert len(found) == 1, "the rules are neither the old ones nor the new ones"
    wanted, sets = found[0].families[node.family], node.sets()
    for name, expected in wanted.sets.items():
        assert expected.entries <= sets[name]
    return found[0]


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("variant", "number"), AT_ANY_CALL)
def test_a_tool_that_fails_at_any_call(
    node: Node, wrapped: Wrapped, number: int, *, done: bool
) -> None:
    known = list(_expected_rules(node))
    node.sync(_old(node.family))
    plan = make_plan(node.dataplane.observe(), _new(node.family))
    first = '"$REAL" "$@"\n' if done else "cat >/dev/null\n"
    wrapped.at_call(number, f"{first}echo it broke >&2\nexit 1")
    with pytest.raises(DataplaneError, match="it broke"):
        node.dataplane.apply(plan)
    wrapped.undo()
    written = _assert_whole(node, known)
    restore_call = RESTORE[node.variant]
    if number < restore_call or (number == restore_call and not done):
        assert written == _old(node.family)
    node.sync(_new(node.family))
    assert node.dataplane.observe() == state_of(_new(node.family))


@pytest.mark.parametrize("number", range(1, CALLS["nft"] + 1))
def test_a_flush_by_another_program_in_the_middle_of_an_apply(
    node: Node, wrapped: Wrapped, number: int
) -> None:
    node.sync(_old(node.family))
    plan = make_plan(node.dataplane.observe(), _new(node.family))
    flush = shutil.which(tool(node.mode, node.family))
    wrapped.at_call(number, f"{flush} -w 5 -F")
    with contextlib.suppress(DataplaneError):
        node.dataplane.apply(plan)
    wrapped.undo()
    node.sync(_new(node.family))
    assert node.dataplane.observe() == state_of(_new(node.family))
    assert make_plan(node.restarted().observe(), _new(node.family)).empty


def test_a_set_that_is_full_leaves_the_old_rules_and_says_so(node: Node) -> None:
    inet = "inet" if node.family is Family.IPV4 else "inet6"
    name = f"NPC-{node.family.value}-INGRESS"
    run_tool(["ipset", "create", name, "hash:ip", "family", inet, "maxelem", "1"])
    node.sync(samples.simple(node.family, 1))
    before = sorted(node.ours())
    with pytest.raises(DataplaneError, match=f"full.*add {name} "):
        node.sync(samples.simple(node.family, 1, 2))
    assert sorted(node.ours()) == before
    assert node.sets()[name] == {samples.address(node.family, 1)}


def test_that_is_all_that_an_apply_calls(node: Node) -> None:
    node.sync(_old(node.family))
    node.sync(_new(node.family))
    assert node.calls == [
        "ipset",
        *[tool(node.mode, node.family)] * 5,
        tool(node.mode, node.family, "restore"),
        "ipset",
        "ipset",
    ]


_AGENT = textwrap.dedent("""
    import sys
    from npc.plan import make_plan
    from npc.ruleset import Family
    from tests.contract.dataplane.node import make_dataplane
    from tests.contract.dataplane.test_faults import _new
    family = Family.IPV4
    dataplane = make_dataplane(sys.argv[1], [family])
    dataplane.apply(make_plan(dataplane.observe(), _new(family)))
""")


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("variant", "number"), AT_ANY_CALL)
def test_the_agent_is_killed_at_any_call(
    node4: Node, wrapped: Wrapped, number: int, *, done: bool
) -> None:
    known = list(_expected_rules(node4))
    node4.sync(_old(node4.family))
    first = '"$REAL" "$@"\n' if done else ""
    wrapped.at_call(OBSERVING[node4.variant] + number, f"{first}kill -9 $PPID\nexit 1")
    agent = subprocess.run([sys.executable, "-c", _AGENT, node4.variant], check=False)
    assert agent.returncode == -9
    wrapped.undo()
    _assert_whole(node4, known)
    node4.dataplane = node4.restarted()
    node4.sync(_new(node4.family))
    assert node4.dataplane.observe() == state_of(_new(node4.family))


@pytest.mark.parametrize("variant", CALLS)
def test_a_tool_that_hangs_is_killed(
    node4: Node, wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    plan = make_plan(node4.dataplane.observe(), _new(node4.family))
    monkeypatch.setattr(tools, "TIMEOUT_SECONDS", 0.2)
    writes = "nft" if node4.variant == "nftables" else tool(node4.mode, Family.IPV4, "restore")
    wrapped.replace(writes, "exec sleep 600")
    with pytest.raises(ToolError, match=r"killed: it had not ended after 0\.2 s"):
        node4.dataplane.apply(plan)
    wrapped.undo()
    assert node4.ours() == before


def test_the_lock_is_held_by_another_program(
    node4: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the legacy tools; nf_tables has no lock, its transactions are tried again."""
    monkeypatch.setattr(restore, "LOCK_SECONDS", 1)
    plan = make_plan(node4.dataplane.observe(), _old(node4.family))
    with (tmp_path / "xtables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if node4.mode is Mode.NFT:
            node4.dataplane.apply(plan)
        else:
            with pytest.raises(ToolError, match="held by another program"):
                node4.dataplane.apply(plan)
            assert node4.ours() == []
    node4.sync(_old(node4.family))
    assert node4.dataplane.observe() == state_of(_old(node4.family))


def test_the_line_at_fault_is_named(node4: Node) -> None:
    bad = AddressSet("NPC-BAD", SetKind.ADDRESS, frozenset(["10.0.0.999"]))
    desired = samples.ruleset(Family.IPV4, [bad])
    with pytest.raises(ToolError, match=r"\[line \d+: add NPC-BAD 10\.0\.0\.999\]"):
        node4.dataplane.apply(make_plan(node4.dataplane.observe(), desired))
    assert node4.ours() == []


def test_a_set_that_vanished_fails_the_whole_transaction(node4: Node) -> None:
    node4.sync(_old(node4.family))
    before = node4.ours()
    desired = samples.simple(node4.family, 3, port=82, label="NEXT")
    plan = make_plan(state_of(_new(node4.family)), desired)
    with pytest.raises(ToolError, match=r"Set NPC-.* doesn't exist.*\[line \d+: -A NPC-"):
        node4.dataplane.apply(plan)
    assert node4.ours() == before


def test_a_stray_that_left_by_itself_is_found_out_by_the_retry(node: Node) -> None:
    desired = samples.simple(node.family, 1)
    node.iptables("-N KUBE-X")
    node.iptables("-N NPC-STALE")
    node.iptables("-A KUBE-X -j NPC-STALE")
    plan = make_plan(node.dataplane.observe(), desired)
    node.iptables("-F KUBE-X")
    with pytest.raises(DataplaneError, match="-D KUBE-X"):
        node.dataplane.apply(plan)
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)


def test_an_absent_tool_is_named_with_its_package(node4: Node, wrapped: Wrapped) -> None:
    wrapped.alone()
    with pytest.raises(MissingToolError, match=r"ipset is not .* install the package 'ipset'"):
        node4.dataplane.observe()
    with pytest.raises(MissingToolError, match=r"-save is not .* install the package 'iptables'"):
        restore.RestoreDataplane.open(node4.mode.value, [node4.family])


def test_without_root_it_says_so(node4: Node, wrapped: Wrapped) -> None:
    unprivileged = 'exec setpriv --reuid 65534 --clear-groups "$REAL" "$@"'
    for name in ("ipset", *(tool(m, f, "save") for m in Mode for f in Family)):
        wrapped.replace(name, unprivileged)
    for action in (
        node4.dataplane.observe,
        node4.dataplane.cleanup,
        lambda: restore.RestoreDataplane.open(node4.mode.value, [node4.family]),
    ):
        with pytest.raises(MissingToolError, match="needs root"):
            action()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ipset", "Kernel error received: set type not supported"),
        ("iptables-{}-save", "can't initialize iptables table `filter': Table does not exist"),
        ("iptables-{}-restore", "Extension set revision 0 not supported, missing kernel module?"),
    ],
)
def test_a_kernel_that_cannot_is_told_from_a_fault(
    node4: Node, wrapped: Wrapped, name: str, said: str
) -> None:
    wrapped.replace(
        name.format(node4.mode.value), f"cat >/dev/null\ncat >&2 <<'.'\n{said}\n.\nexit 1"
    )
    with pytest.raises(MissingToolError, match="this kernel lacks"):
        restore.RestoreDataplane.open(node4.mode.value, [node4.family])


def test_cleanup_goes_on_where_one_part_fails(node: Node, wrapped: Wrapped) -> None:
    node.sync(samples.nothing(node.family))
    broken = tool(Mode.NFT, Family.IPV4, "save")
    wrapped.replace(broken, "echo it broke >&2\nexit 1")
    with pytest.raises(DataplaneError, match="it broke"):
        node.dataplane.cleanup()
    wrapped.undo()
    if (node.mode, node.family) != (Mode.NFT, Family.IPV4):
        assert node.ours() == []
        assert node.sets() == {}
    node.dataplane.cleanup()
    assert node.ours() == []


def test_an_interrupt_at_the_terminal_reaches_the_agent_alone(
    node4: Node, wrapped: Wrapped
) -> None:
    """It goes to the terminal's process group, and the tools are in groups of their own."""
    wrapped.replace("ipset", "exec cut -d ' ' -f 5 /proc/self/stat")
    assert int(run_tool(["ipset", "save"])) != os.getpgrp()
