"""What the command line's words become."""

from __future__ import annotations

import pytest

from npc.dataplane.choose import choose_families, kernel_has
from npc.ruleset import Family


@pytest.mark.parametrize(
    ("wanted", "families"),
    [
        ("ipv4", (Family.IPV4,)),
        ("ipv6", (Family.IPV6,)),
        ("dual", (Family.IPV4, Family.IPV6)),
    ],
)
def test_named_families_are_taken_whatever_the_kernel_speaks(
    wanted: str, families: tuple[Family, ...]
) -> None:
    assert choose_families(wanted, lambda _: False) == families


@pytest.mark.parametrize("spoken", [(Family.IPV4,), (Family.IPV6,), tuple(Family)])
def test_auto_is_what_the_kernel_speaks(spoken: tuple[Family, ...]) -> None:
    assert choose_families("auto", lambda family: family in spoken) == spoken


def test_this_kernel_speaks_ipv4() -> None:
    assert kernel_has(Family.IPV4)
