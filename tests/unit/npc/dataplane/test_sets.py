"""Address sets to text and back, with an ipset of a few lines in place of the kernel's."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.dataplane.sets import as_read, destroy_sets, extend_sets, read_sets, remove_entries
from npc.dataplane.tools import ToolError
from npc.plan import SetChange
from npc.ruleset import AddressSet, Family, SetKind

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ipset:
    """Holds sets as the kernel does: one element for each block, a nomatch replaces a match."""

    def __init__(self) -> None:
        self.sets: dict[str, tuple[str, dict[str, str]]] = {}
        self.in_use: set[str] = set()
        self.scripts: list[list[str]] = []

    def __call__(self, argv: Sequence[str], stdin: str = "") -> str:
        if list(argv) == ["ipset", "save"]:
            return "".join(
                f"create {name} {header}\n"
                + "".join(f"add {name} {element}{flag}\n" for element, flag in elements.items())
                for name, (header, elements) in self.sets.items()
            )
        assert list(argv) == ["ipset", "restore", "-exist"]
        self.scripts.append(stdin.splitlines())
        for number, line in enumerate(stdin.splitlines(), 1):
            self._do(number, *line.split(" "))
        return ""

    def _do(self, number: int, verb: str, name: str, *rest: str) -> None:
        if verb == "create":
            self.sets.setdefault(name, (" ".join(rest), {}))
        elif verb == "add":
            assert not rest[0].endswith("/0"), "hash:net has no prefix of length 0"
            header = self.sets[name][0]
            text = rest[0].removesuffix("/128" if "inet6" in header else "/32")
            self.sets[name][1][text] = "".join(f" {flag}" for flag in rest[1:])
        elif verb == "del":
            self.sets[name][1].pop(rest[0], None)
        elif verb == "flush":
            self.sets[name][1].clear()
        elif verb == "swap":
            self.sets[name], self.sets[rest[0]] = self.sets[rest[0]], self.sets[name]
        elif verb == "destroy" and name in self.in_use:
            stderr = f"Error in line {number}: it is in use by a kernel component"
            raise ToolError(stderr, stderr, number)
        else:
            assert verb == "destroy"
            self.sets.pop(name, None)


def _networks(family: Family) -> st.SearchStrategy[str]:
    bits = 32 if family is Family.IPV4 else 128
    kind = ipaddress.IPv4Network if family is Family.IPV4 else ipaddress.IPv6Network
    return st.tuples(st.integers(0, 2**bits - 1), st.integers(0, bits)).map(
        lambda pair: str(kind((pair[0] >> bits - pair[1] << bits - pair[1], pair[1])))
    )


def _sets(family: Family) -> st.SearchStrategy[AddressSet]:
    address = st.ip_addresses(v=4 if family is Family.IPV4 else 6).map(str)
    endpoint = st.builds(
        "{},{}:{}".format, address, st.sampled_from(["tcp", "udp", "sctp"]), st.integers(1, 65535)
    )
    blocks = st.frozensets(_networks(family), max_size=6)
    return st.one_of(
        st.builds(AddressSet, st.just("NPC-X"), st.just(SetKind.ADDRESS), st.frozensets(address)),
        st.builds(AddressSet, st.just("NPC-X"), st.just(SetKind.ENDPOINT), st.frozensets(endpoint)),
        st.builds(AddressSet, st.just("NPC-X"), st.just(SetKind.NETWORK), blocks, blocks),
    )


@pytest.mark.parametrize("family", list(Family))
@given(data=st.data())
def test_what_is_written_is_read(family: Family, data: st.DataObject) -> None:
    wanted = data.draw(_sets(family))
    ipset = Ipset()
    extend_sets(ipset, family, create=[wanted])
    assert read_sets(ipset)[family] == {"NPC-X": as_read(wanted, family)}


@given(
    st.frozensets(_networks(Family.IPV4), max_size=6).filter(
        lambda blocks: not {"0.0.0.0/1", "128.0.0.0/1"} & blocks
    )
)
def test_it_is_read_as_it_was_spelled(blocks: frozenset[str]) -> None:
    for family, entries in (
        (Family.IPV4, blocks),
        (Family.IPV6, frozenset(["::/0", "fd00::/8", "2001:db8::1/128"])),
    ):
        wanted = AddressSet("NPC-X", SetKind.NETWORK, entries)
        assert as_read(wanted, family) == wanted


@given(st.data())
def test_a_rebuilt_set_has_the_new_content_whatever_was_there(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(Family))
    old, new, left = data.draw(st.tuples(_sets(family), _sets(family), _sets(family)))
    network = AddressSet(new.name, SetKind.NETWORK, frozenset(["10.0.0.0/8"]))
    ipset = Ipset()
    ipset.sets["NPC-X"] = ("hash:net family inet", dict.fromkeys(old.entries, ""))
    ipset.sets[f"NPC-REBUILD-{family.value}"] = (
        "hash:net family inet",
        dict.fromkeys(left.entries, ""),
    )
    extend_sets(ipset, family, replace=[network])
    assert read_sets(ipset)[Family.IPV4] == {"NPC-X": network}


def test_exceptions_are_added_before_what_they_are_exceptions_of() -> None:
    ipset = Ipset()
    wanted = AddressSet(
        "NPC-X", SetKind.NETWORK, frozenset(["0.0.0.0/0"]), frozenset(["10.0.0.0/8"])
    )
    extend_sets(ipset, Family.IPV4, create=[wanted])
    assert ipset.scripts == [
        [
            "create NPC-X hash:net family inet maxelem 1048576",
            "add NPC-X 10.0.0.0/8 nomatch",
            "add NPC-X 0.0.0.0/1",
            "add NPC-X 128.0.0.0/1",
        ]
    ]


def test_one_call_for_all_that_adds_and_one_for_all_that_removes() -> None:
    ipset = Ipset()
    change = SetChange("NPC-A", SetKind.ADDRESS, ("10.0.0.1", "10.0.0.2"))
    new = AddressSet("NPC-A", SetKind.ADDRESS, frozenset())
    extend_sets(ipset, Family.IPV4, [new], [], [change])
    remove_entries(ipset, [change, change])
    assert len(ipset.scripts) == 2
    assert ipset.sets["NPC-A"][1] == {}


def test_nothing_to_do_calls_nothing() -> None:
    ipset = Ipset()
    extend_sets(ipset, Family.IPV4)
    remove_entries(ipset, [])
    assert destroy_sets(ipset, []) == []
    assert ipset.scripts == []


@given(st.sets(st.sampled_from("ABCDEF")), st.sets(st.sampled_from("ABCDEF")))
def test_sets_in_use_stay_and_the_others_go(names: set[str], in_use: set[str]) -> None:
    ipset = Ipset()
    ipset.sets = {name: ("hash:ip family inet", {}) for name in "ABCDEF"}
    ipset.in_use = in_use
    assert destroy_sets(ipset, sorted(names)) == sorted(names & in_use)
    assert set(ipset.sets) == set("ABCDEF") - (names - in_use)


def test_another_failure_to_destroy_is_an_error() -> None:
    def broken(argv: Sequence[str], stdin: str = "") -> str:
        raise ToolError("ipset: Kernel error received: Cannot allocate memory", "Cannot", 1)

    with pytest.raises(ToolError, match="allocate"):
        destroy_sets(broken, ["NPC-A"])


SAVED = """\
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
add KUBE-CLUSTER-IP 10.96.0.1,tcp:443 comment "add NPC-A 10.0.0.9"
create NPC-A hash:ip family inet hashsize 1024 maxelem 1048576 bucketsize 12 initval 0xe8166001
add NPC-A 10.0.0.1
create NPC-N hash:net family inet6 hashsize 1024 maxelem 1048576
add NPC-N fd00::1
add NPC-N fd01::/16 nomatch
create NPC-M hash:ip family inet6 hashsize 1024 maxelem 1048576
add NPC-M ::ffff:1.2.3.4
create NPC-B bitmap:port range 0-1023
add NPC-B 80
"""


def test_options_that_newer_kernels_print_do_not_matter() -> None:
    ipset = Ipset()
    wanted = AddressSet("NPC-X", SetKind.ADDRESS, frozenset(["10.0.0.1"]))
    extend_sets(ipset, Family.IPV4, create=[wanted])
    more = " bucketsize 12 initval 0x6f3c1d2e"
    saved = re.sub("(?m)^(create .*)$", rf"\1{more}", ipset(["ipset", "save"]))
    assert more in saved
    assert read_sets(lambda _argv, _stdin="": saved)[Family.IPV4] == {"NPC-X": wanted}


def test_sets_of_others_and_other_types() -> None:
    found = read_sets(lambda _argv, _stdin="": SAVED)
    assert found == {
        Family.IPV4: {
            "NPC-A": AddressSet("NPC-A", SetKind.ADDRESS, frozenset(["10.0.0.1"])),
            "NPC-B": None,
        },
        Family.IPV6: {
            "NPC-N": AddressSet(
                "NPC-N", SetKind.NETWORK, frozenset(["fd00::1/128"]), frozenset(["fd01::/16"])
            ),
            "NPC-M": AddressSet(
                "NPC-M", SetKind.ADDRESS, frozenset([str(ipaddress.ip_address("::ffff:1.2.3.4"))])
            ),
        },
    }
