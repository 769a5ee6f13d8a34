"""What is known of the syncs so far, and how it is said in a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npc.ruleset import Direction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npc.compile import Compiled
    from npc.plan import Plan


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is enforced; ``isolated`` by the direction's name in small letters."""

    policies: int = 0
    local_pods: int = 0
    isolated: Mapping[str, int] = field(
        default_factory=lambda: {d.value.lower(): 0 for d in Direction}
    )
    rules: int = 0
    sets: int = 0
    entries: int = 0
    problems: int = 0


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The syncs up to now. ``versions`` is what the last good one had seen.

    ``last_success_seconds`` and ``failing_since`` are by the monotonic clock, the timestamp is in
    seconds since 1970. ``denied`` is by direction and as of the last look at the kernel.
    """

    total: int = 0
    failed_in_a_row: int = 0
    last_error: str | None = None
    failing_since: float | None = None
    last_success_seconds: float | None = None
    last_success_timestamp: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    denied: Mapping[str, int] = field(default_factory=dict)


def count(compiled: Compiled, policies: int) -> Counts:
    """Count what is enforced."""
    families = compiled.ruleset.families.values()
    return Counts(
        policies=policies,
        local_pods=compiled.local_pods,
        isolated={d.value.lower(): n for d, n in compiled.isolated.items()},
        rules=sum(len(chain.rules) for rules in families for chain in rules.chains.values()),
        sets=sum(len(rules.sets) for rules in families),
        entries=sum(len(s.entries) for rules in families for s in rules.sets.values()),
        problems=len(compiled.problems),
    )


def count_changes(plan: Plan) -> dict[str, int]:
    """How many changes of each sort the plan makes; those that it does not make are left out."""
    counts: Counter[str] = Counter()
    for family in plan.families:
        counts["chains written"] += len(family.write_chains)
        counts["chains deleted"] += len(family.delete_chains)
        counts["sets created"] += len(family.create) + len(family.replace)
        counts["sets destroyed"] += len(family.destroy)
        counts["entries added"] += sum(len(change.entries) for change in family.add)
        counts["entries removed"] += sum(len(change.entries) for change in family.remove)
        counts["dispatches written"] += family.write_dispatch
    return {what: n for what, n in counts.items() if n}


def describe(counts: Counts, changes: Mapping[str, int], why: Mapping[str, int]) -> str:
    """A sync that changed something, in a line: what, and why."""
    changed = ", ".join(counted(n, what) for what, n in changes.items())
    isolated = ", ".join(
        f"{n} isolated for {direction}" for direction, n in counts.isolated.items()
    )
    events = ", ".join(f"{n} of {kind}" for kind, n in sorted(why.items()))
    return (
        f"{counted(counts.local_pods, 'local pods')} ({isolated}); {changed}; "
        f"events: {events or 'none, the kernel was checked'}"
    )


_ONE = {
    "chains": "chain",
    "sets": "set",
    "entries": "entry",
    "dispatches": "dispatch",
    "pods": "pod",
}


def counted(count: int, what: str) -> str:
    """``1 chain written``, ``2 chains written``."""
    words = (_ONE.get(word, word) for word in what.split()) if count == 1 else (what,)
    return f"{count} {' '.join(words)}"
