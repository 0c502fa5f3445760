"""What the sources say about rules: their names and kinds, and the tests that fail without them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def kinds() -> dict[str, str]:
    """Each rule of the engine, with its kind: `Fence`, `Step`, or the ordering."""
    text = (ROOT / "crates/shootdown/src/base/rules/list.rs").read_text()
    body = text[text.index("\nrules! {") :]
    return {name: ordering or kind for name, kind,
        ordering in re.findall(r"^    (\w+): (?:Kind::)?(Fence|Step|Ordering\((\w+)\)),", body, re.M)}


@cache
def loom() -> dict[str, str]:
    """For each rule, the loom program that fails without it."""
    text = (ROOT / "crates/shootdown/tests/rules/main.rs").read_text()
    body = text[text.index("\nprograms_against! {") :]
    body = body[: body.index("\n}\n")]
    found = re.findall(r"((?:\w+\s*\|\s*)*\w+) => (\w+),", body)
    return {rule: program for rules, program in found for rule in re.findall(r"\w+", rules)}


@cache
def hostile() -> dict[str, str]:
    """For each rule, the program on the hostile machine that fails without it."""
    text = (ROOT / "crates/check/tests/engine.rs").read_text()
    body = text[text.index("const NEEDED") :]
    body = body[: body.index("\n];")]
    return dict(reversed(re.findall(r"Rule::(\w+),\s*Profile::(\w+)", body)))


@cache
def axiomatic() -> set[str]:
    """The rules whose need only the axiomatic checker shows."""
    return {rule for rule in kinds() if rule not in loom()} - {"PublishTables"}
