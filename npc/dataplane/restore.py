"""The dataplane of iptables and ipset, by the tools that every distribution has.

For each family: one call of ``ipset restore`` that only adds, one of ``iptables-restore --noflush``
that changes all our chains in one transaction of the kernel, one of ``ipset restore`` that only
takes away. Whatever fails or dies between two of them leaves old rules that see a few more
addresses, or the new rules. The kernel is asked for its state and can answer after a restart too:
chains are read back into the ruleset's own words.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError, layout, sets
from npc.dataplane.mode import Mode, choose_mode, tool
from npc.dataplane.removal import remove_chains_and_sets
from npc.dataplane.table import FilterTable, parse_save, refused, rules_of
from npc.dataplane.tools import LOCK_SECONDS, run_tool
from npc.plan import FamilyState
from npc.ruleset import PREFIX, AddressSet, Chain, Direction, Family, FamilyRules, SetKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npc.dataplane.tools import Run
    from npc.plan import FamilyPlan, KernelState, Plan

log = logging.getLogger(__name__)


class RestoreDataplane:
    """``Dataplane`` over iptables-restore and ipset; for the families of ``families``."""

    def __init__(self, mode: Mode, families: Iterable[Family], run: Run = run_tool) -> None:
        self.mode = mode
        self.name = f"restore-{mode.value}"
        self._families = tuple(families)
        self._run = run
        self._written: dict[Family, FamilyRules] = {}
        self._present: frozenset[str] = frozenset()
        self._strays: dict[Family, dict[str, tuple[str, ...]]] = {}
        # Where our denial is there; what it had counted each time before it was written anew.
        self._counting: set[Family] = set()
        self._denied: Counter[tuple[Family, Direction]] = Counter()

    @property
    def tables(self) -> frozenset[tuple[Mode, Family]]:
        """The filter tables that it writes."""
        return frozenset((self.mode, family) for family in self._families)

    @classmethod
    def open(
        cls, wanted_mode: str, families: Iterable[Family], run: Run = run_tool
    ) -> RestoreDataplane:
        """Choose the mode (``auto``, ``nft``, ``legacy``) and see that this machine can do it.

        :raises MissingToolError: if a tool is absent, the kernel lacks a part, or we are not root
        :raises DataplaneError: if the rules cannot be read for another reason
        """
        dataplane = cls(choose_mode(wanted_mode, run), families, run)
        log.info("rules are written by iptables (%s) and ipset", dataplane.mode.value)
        for family in dataplane._families:
            dataplane._read_table(family)
            # An empty transaction shows that the tool is there and may write.
            dataplane._write_table(family, ["*filter", "COMMIT"])
            sets.probe_sets(run, family)
        return dataplane

    def observe(self) -> KernelState:
        """Read what the kernel holds of ours, repairing nothing.

        A chain or set that enforces what was last written for it is returned as it was written,
        where the kernel's way to spell it differs.
        """
        found = sets.read_sets(self._run)
        self._present = frozenset(sets.all_names(found))
        return {family: self._observe_family(family, found[family]) for family in self._families}

    def _observe_family(self, family: Family, found: dict[str, AddressSet | None]) -> FamilyState:
        table = self._read_table(family)
        self._strays[family] = table.strays(layout.JUMPS)
        if table.chains.keys() >= set(layout.DENY.values()):
            self._counting.add(family)
        else:
            self._counting.discard(family)
        typed = {name: one for name, one in found.items() if one}
        kinds = {name: one.kind for name, one in typed.items()}
        written = self._written.get(family)
        known_sets = written.sets if written else {}
        known_chains = written.chains if written else {}
        return FamilyState(
            sets={
                name: one and _known_set(one, known_sets.get(name), family)
                for name, one in found.items()
            },
            chains={
                name: _known_chain(table, name, known_chains.get(name), kinds)
                for name in table.ours
                if name not in layout.FIXED
            },
            dispatch=layout.read_dispatch(table, family, typed),
        )

    def apply(self, plan: Plan) -> None:
        """Carry out the plan, a family at a time. A set that is still in use is left for later."""
        for family_plan in plan.families:
            self._apply_family(family_plan)
        self._present = frozenset()  # from now on there are those that we made

    def _apply_family(self, plan: FamilyPlan) -> None:
        family = plan.desired.family
        self._make_room(plan)
        sets.extend_sets(self._run, family, plan.create, plan.replace, plan.add)
        if plan.changes_rules:
            counted = self._count_denied(family) if plan.write_dispatch else {}
            self._write_rules(plan)
            for direction, packets in counted.items():
                self._denied[family, direction] += packets
            if plan.write_dispatch:
                self._counting.add(family)
        sets.remove_entries(self._run, plan.remove)
        for name in sets.destroy_sets(self._run, plan.destroy):
            log.warning("the set %s is still in use and stays until a later sync", name)
        self._written[family] = plan.desired

    def _make_room(self, plan: FamilyPlan) -> None:
        """Destroy what is there in place of sets to create: it has another type or family."""
        wanted = {one.name for one in plan.create} | {sets.spare_name(plan.desired.family)}
        for name in sets.destroy_sets(self._run, sorted(wanted & self._present)):
            raise DataplaneError(
                f"another program made the set {name} of another type than ours, and it is in use: "
                "remove the rules that use it"
            )

    def _write_rules(self, plan: FamilyPlan) -> None:
        """Change chains, dispatch and jumps, all in one transaction of the kernel."""
        family = plan.desired.family
        self._write_table(family, _transaction(self._read_hooks(family), plan))

    def denied_packets(self) -> Mapping[Direction, int]:
        """Count the packets refused since this object was made; see ``Dataplane``."""
        total = dict.fromkeys(Direction, 0)
        for family in self._families:
            for direction, packets in self._count_denied(family).items():
                total[direction] += packets + self._denied[family, direction]
        return total

    def _count_denied(self, family: Family) -> dict[Direction, int]:
        return self._read_denied(family) if family in self._counting else {}

    def _read_denied(self, family: Family) -> dict[Direction, int]:
        argv = [tool(self.mode, family), "-w", str(LOCK_SECONDS), "-v", "-S"]
        return {
            direction: refused(rules_of(self._run([*argv, chain])))
            for direction, chain in layout.DENY.items()
        }

    def watch(self, changed: Callable[[], None]) -> None:
        """The kernel does not tell of changes by iptables and ipset."""

    def cleanup(self) -> None:
        """Remove everything of ours, in both modes and both families; see ``cleanup_node``."""
        cleanup_node(self._run)
        self._written.clear()
        self._counting.clear()

    def _read_table(self, family: Family) -> FilterTable:
        return parse_save(self._run([tool(self.mode, family, "save"), "-t", "filter"]))

    def _read_hooks(self, family: Family) -> FilterTable:
        """What leads to us: the hooks as they are, the rest as it was last observed.

        To print the whole table takes longer than everything else in a small change of many rules.
        """
        chains = dict(self._strays.pop(family, {}))
        for hook in layout.JUMPS:
            argv = [tool(self.mode, family), "-w", str(LOCK_SECONDS), "-S", hook]
            chains[hook] = rules_of(self._run(argv))
        return FilterTable(chains)

    def _write_table(self, family: Family, lines: list[str]) -> None:
        _restore(self._run, self.mode, family, lines)


def _known_set(found: AddressSet, known: AddressSet | None, family: Family) -> AddressSet:
    return known if known and sets.as_read(known, family) == found else found


def _known_chain(
    table: FilterTable, name: str, known: Chain | None, kinds: Mapping[str, SetKind]
) -> Chain | None:
    if known and layout.chain_rules(known) == list(table.chains[name]):
        return known
    found = layout.read_chain(name, table.chains[name], kinds)
    return known if found and known and layout.as_read(known) == found else found


def _transaction(table: FilterTable, plan: FamilyPlan) -> list[str]:
    """All changes of chains and jumps, given the table as it is."""
    chains = written_chains(plan)
    lines = ["*filter"]
    # This creates a chain or empties it. Stale chains may lead to each other: empty them all first.
    lines += (f":{name} - [0:0]" for name in (*chains, *plan.delete_chains))
    for rules in chains.values():
        lines += rules
    if not layout.jumps_in_place(table):
        lines += _deleted(table)
        lines += (layout.jump(hook).replace("-A", "-I", 1) for hook in layout.JUMPS)
    lines += (f"-X {name}" for name in plan.delete_chains)
    return [*lines, "COMMIT"]


def written_chains(plan: FamilyPlan) -> dict[str, list[str]]:
    """The rules of every chain that the plan creates or replaces, in the spelling of iptables."""
    chains = {chain.name: layout.chain_rules(chain) for chain in plan.write_chains}
    return chains | layout.fixed_chains(plan.desired) if plan.write_dispatch else chains


def _deleted(table: FilterTable) -> list[str]:
    """Commands that delete every rule of other programs' chains that leads to us."""
    return [rule.replace("-A", "-D", 1) for _, _, rule in table.references()]


def _restore(run: Run, mode: Mode, family: Family, lines: list[str]) -> None:
    run(
        [tool(mode, family, "restore"), "--noflush", "-w", str(LOCK_SECONDS)],
        "\n".join(lines) + "\n",
    )


def cleanup_node(run: Run = run_tool, pause: Callable[[float], None] = time.sleep) -> None:
    """Remove every jump, chain and set of ours in both modes and both families, nothing else.

    :raises DataplaneError: if something of ours may be left; all that went wrong is in its text
    """
    remove_chains_and_sets(run, owns, pause)


def owns(name: str) -> bool:
    """Whether a chain or set of that name is ours."""
    return name.startswith(PREFIX)
