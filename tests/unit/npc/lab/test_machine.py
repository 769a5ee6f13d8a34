"""A machine that cannot have a lab is told what it lacks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from npc.lab.netns import UnusableMachineError

if TYPE_CHECKING:
    from pathlib import Path


def test_everything_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnusableMachineError) as error:
        netns.require_machine()
    for word in ("root", "ip (Debian's package iproute2)", "package ipset", "package iptables"):
        assert word in str(error.value)
