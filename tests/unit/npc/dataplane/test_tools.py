"""Running tools: what an error says. The tools are shell scripts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError, tools
from npc.dataplane.tools import ToolError, run_tool

if TYPE_CHECKING:
    from pathlib import Path

INPUT = "*filter\n:NPC-A - [0:0]\n-A NPC-A -j NO\nCOMMIT\n"


def _script(directory: Path, body: str) -> str:
    path = directory / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def _fail(directory: Path, stderr: str, code: int = 2, stdin: str = INPUT) -> DataplaneError:
    script = _script(directory, f"cat >/dev/null\ncat >&2 <<'END'\n{stderr}\nEND\nexit {code}")
    with pytest.raises(DataplaneError) as caught:
        run_tool([script, "--noflush"], stdin)
    return caught.value


def test_output_is_returned_and_input_is_given(tmp_path: Path) -> None:
    assert run_tool([_script(tmp_path, "cat; echo ignored >&2")], "in\n") == "in\n"


def test_the_tools_speak_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run_tool([_script(tmp_path, "echo $LC_ALL")]) == "C\n"


@pytest.mark.parametrize(
    "stderr",
    [
        (
            "iptables-restore v1.8.9 (nf_tables): unknown option\nError occurred at line: 3\n"
            "Try `iptables-restore -h' or 'iptables-restore --help' for more information."
        ),
        "iptables-restore: line 3 failed",
        "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (No such file): x",
        "ipset v7.17: Error in line 3: Syntax error: cannot parse NO",
    ],
)
def test_the_line_at_fault_is_shown(tmp_path: Path, stderr: str) -> None:
    error = _fail(tmp_path, stderr)
    assert isinstance(error, ToolError)
    assert error.line == 3
    assert str(error).endswith("[line 3: -A NPC-A -j NO]")
    assert "--noflush failed (exit 2): " in str(error)
    assert "for more information" not in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("stderr", ["line 0 failed", "line 99 failed", "no number", ""])
def test_a_line_that_the_input_does_not_have_is_not_shown(tmp_path: Path, stderr: str) -> None:
    error = _fail(tmp_path, stderr)
    assert isinstance(error, ToolError)
    assert error.line is None
    assert (stderr or "it gave no reason") in str(error)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("Could not fetch rule set generation id: Permission denied (you must be root)", "root"),
        ("Fatal: can't open lock file /run/xtables.lock: Permission denied", "root"),
        ("ipset v7.17: Error in line 1: Kernel error received: Operation not permitted", "root"),
        ("ipset v7.17: Error in line 1: Kernel error received: set type not supported", "kernel"),
        ("can't initialize: Table does not exist (do you need to insmod?)", "kernel"),
        ("Could not fetch rule set generation id: Invalid argument", "kernel"),
        ("ipset v7.17: Cannot open session to kernel.", "kernel"),
    ],
)
def test_what_a_retry_cannot_help_is_told_apart(tmp_path: Path, stderr: str, said: str) -> None:
    error = _fail(tmp_path, stderr)
    assert isinstance(error, MissingToolError)
    assert {"root": "needs root", "kernel": "this kernel lacks"}[said] in str(error)


def test_a_lock_that_is_held_is_worth_a_retry(tmp_path: Path) -> None:
    error = _fail(tmp_path, "Another app is currently holding the xtables lock. Perhaps ...", 4)
    assert isinstance(error, ToolError)
    assert "held by another program" in str(error)


@pytest.mark.parametrize(
    ("name", "package"), [("ipset", "ipset"), ("ip6tables-nft-save", "iptables")]
)
def test_an_absent_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=f"{name} is not .* the package '{package}'"):
        run_tool([name])


def test_a_tool_that_may_not_be_run(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("")
    with pytest.raises(MissingToolError, match="cannot be run"):
        run_tool([str(script)])


def test_a_tool_that_is_no_program(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("garbage")
    script.chmod(0o755)
    with pytest.raises(ToolError, match="could not be started"):
        run_tool([str(script)])


def test_a_tool_that_dies_by_a_signal(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="ended by signal 9"):
        run_tool([_script(tmp_path, "kill -9 $$")])


def test_a_tool_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TIMEOUT_SECONDS", 0.1)
    script = _script(tmp_path, "exec sleep 600")
    with pytest.raises(ToolError, match=re.escape(f"{script} was killed")):
        run_tool([script])


def test_a_tool_that_does_not_read_its_input(tmp_path: Path) -> None:
    assert run_tool([_script(tmp_path, "exec true")], "x" * 1_000_000) == ""


def test_output_that_is_no_text(tmp_path: Path) -> None:
    assert run_tool([_script(tmp_path, "printf 'a\\377b'")]) == "a\\xffb"
