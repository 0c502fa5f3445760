"""TLB coherence in a simulator: replays, published studies, a checker, and sweeps.

Each function runs one deterministic simulation or search without the interpreter's lock, and
returns a plain dictionary. Times end with their unit: ``time_ns`` is in nanoseconds. All other
numbers are counts, unless the name says otherwise.

>>> import shootdown
>>> row = shootdown.replay("traces/sort.shootdown", design="linux-7.0")
>>> row["ipis_sent"], row["time_ns"]
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional, Union

from . import _native
from ._sweep import Results, sweep

__all__ = [
    "Results",
    "check",
    "designs",
    "machine",
    "machines",
    "merge",
    "recording",
    "replay",
    "reproduce",
    "run",
    "sweep",
    "workloads",
]

Path = Union[str, "os.PathLike[str]"]


def machines() -> list[str]:
    """Returns the names of the machines that need no file."""
    return _native.machines()


def machine(name: Path) -> dict[str, Any]:
    """Returns a machine by its name, or from a file that ends in ``.toml``.

    The dictionary has ``name``, ``about``, ``cpus`` and ``numbers``. Each number has its ``name``,
    which ends with its unit, its ``value``, its ``source``, and in ``calibrated_on`` the published
    measurement that it was fitted to, if any.
    """
    return json.loads(_native.machine(os.fspath(name)))


def designs() -> list[str]:
    """Returns the names of the designs that keep TLBs coherent."""
    return _native.designs()


def workloads() -> list[dict[str, Any]]:
    """Returns the workloads of the published studies.

    Each has its ``study``, its ``machine``, its ``metric`` with ``unit``, the ``published`` figures,
    and its ``designs``.
    """
    return json.loads(_native.workloads())


def recording(path: Path) -> dict[str, Any]:
    """Returns the header and the totals of a recording, and the counts of the recorded kernel.

    ``time_ns``, ``busy_ns`` and ``parallel_ns`` are the nanoseconds of the recording, those in which
    at least one CPU ran the program, and those in which at least two CPUs ran threads of one space.
    """
    return json.loads(_native.recording(os.fspath(path)))


def run(
    file: Path,
    *,
    machine: Path = "xeon-2s",
    cpus: Optional[int] = None,
    design: str = "shootdown",
    seed: int = 1,
    set: Optional[Mapping[str, Any]] = None,
) -> dict[str, Any]:
    """Runs a workload as text, from a file or by the name of one that the package has.

    ``cpus`` resizes the machine. In ``set``, names with a dot are numbers of the machine, such as
    ``{"tlb.invalidate_page_ns": 150}``, and other names are parameters of the workload.

    The result has ``time_ns``, the counts ``operations``, ``requests``, ``interrupts``,
    ``flushes_full`` and ``flushes_ranged``, the classes of the interrupts and their ``bound``, the
    nanoseconds of all CPUs in ``time_by_cause``, and ``violations``, which must be 0. A workload with several intervals has a dictionary for each in
    ``intervals``.
    """
    return _one("run", locals())


def replay(
    recording: Path,
    *,
    machine: Path = "emerald-rapids-kvm",
    cpus: Optional[int] = None,
    design: str = "shootdown",
    schedule: str = "recorded",
    seed: int = 1,
    set: Optional[Mapping[str, Any]] = None,
) -> dict[str, Any]:
    """Replays a recording under a design, once.

    ``cpus`` resizes the machine. ``schedule`` is ``"recorded"`` or ``"simulated"``. ``set`` replaces
    numbers of the machine: ``{"tlb.invalidate_page_ns": 150}``.

    The result has ``time_ns``, the counts ``ipis_sent``, ``flushes_full``, ``flushes_ranged`` and
    others, and ``violations``, which must be 0.
    """
    return _one("replay", locals())


def reproduce(
    workload: str,
    *,
    machine: Optional[Path] = None,
    cpus: Optional[int] = None,
    design: str = "shootdown",
    scale: str = "full",
    seed: int = 1,
    set: Optional[Mapping[str, Any]] = None,
) -> dict[str, Any]:
    """Simulates a workload of a published study under a design.

    Without ``machine``, the study's own machine is simulated. ``scale`` is ``"full"`` for as much work
    as was published, or ``"quick"``. The result has the metric in ``value``, its ``unit``, and counts.
    """
    return _one("reproduce", locals())


def check(
    program: Optional[str] = None,
    *,
    design: str = "shootdown",
    arch: str = "x86",
    cpus: int = 8,
    tags: Optional[str] = None,
    lifetime: Optional[str] = None,
    seed: int = 1,
    tasks: int = 168,
) -> dict[str, Any]:
    """Searches for violations on the hostile machine.

    With ``program``, such as ``"run 0 | unmap 0.0"``, every schedule of it is searched. Otherwise
    ``tasks`` random and short programs are searched, or the known bug that ``design`` names.

    The result has ``verdict`` (``"none"``, ``"violation"`` or ``"undecided"``), ``failed``, the counts
    ``runs``, ``states`` and ``steps``, and the situations that were ``covered``.
    """
    return _one("check", locals())


def merge(inputs: list[Path], output: Path) -> str:
    """Writes the rows of shards to the new file ``output``, sorted by cell. Returns their digest."""
    return _native.merge([os.fspath(path) for path in inputs], os.fspath(output))


def _one(command: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Runs one cell, and raises its error."""
    grid: dict[str, Any] = {"command": command}
    for name, value in parameters.items():
        if value is not None:
            grid[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    row = json.loads(_native.Sweep(json.dumps({"grid": grid}), os.getcwd()).run(0))
    if "error" in row:
        raise ValueError(row["error"])
    for name in ("cell", "cells", "sweep", "command"):
        del row[name]
    return row
