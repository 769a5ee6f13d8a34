"""What is written for nftables against the API's definition, and read back."""

from __future__ import annotations

from hypothesis import given, settings

from npc.compile import Settings
from npc.dataplane.nft import layout, listing, read
from npc.ruleset import Direction, Family
from tests.property.npc.nft_interpreter import Table
from tests.property.npc.reference import Cluster
from tests.property.npc.strategies import NODE, choices, clusters
from tests.property.npc.test_compile import Snapshot, compiled, packets, thorough

enough = settings(thorough, max_examples=100)


@given(clusters(), choices())
@enough
def test_the_table_means_what_the_policies_mean(snapshot: Snapshot, chosen: Settings) -> None:
    reference = Cluster(*snapshot, NODE, [*map(str, chosen.exempt)], [*map(str, chosen.guarded)])
    for family, rules in compiled(snapshot, chosen).ruleset.families.items():
        table = Table(rules)
        isolated = [rules.sets[name].entries for name in rules.dispatch.isolated.values()]
        for packet in packets(snapshot[0], family):
            # A held address that nobody knows may speak to itself or not: it never leaves its pod.
            own = packet.source == packet.destination
            if own and not all(packet.source in one for one in isolated):
                continue
            assert table.allows(packet) == reference.allows(packet), packet


@given(clusters(), choices())
@enough
def test_what_is_written_is_read(snapshot: Snapshot, chosen: Settings) -> None:
    families = compiled(snapshot, chosen).ruleset.families
    tables = {family: Table(rules) for family, rules in families.items()}
    whole = listing.Table()
    for table in tables.values():
        whole.sets.update(table.sets)
        whole.maps.update(table.maps)
        whole.chains.update(table.chains)
    whole.chains.update(layout.fixed_chains({f: r.dispatch for f, r in families.items()}))
    found = read.read_families(whole, list(families))
    for family, rules in families.items():
        assert found[family].dispatch == rules.dispatch
        assert dict(found[family].chains) == dict(rules.chains)
        assert found[family].sets.keys() == rules.sets.keys()
        assert found[family].verdicts == {
            d: tables[family].maps[layout.VERDICTS[family, d]] for d in Direction
        }


def test_both_families_are_compiled() -> None:
    assert set(compiled(([], [], [])).ruleset.families) == set(Family)
