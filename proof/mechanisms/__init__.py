"""The mechanisms of the engine, each with its state, its steps and its invariant."""

from __future__ import annotations

from ..system import System
from . import asids_invariant, away, batches, bell, broadcasts, devices, early, isolated, lifetimes, log, mask, names, online, tags
from . import reuse, secondary, sleeping, targeting, waiting, walkers


def build_all() -> list[System]:
    return [
        targeting.build(), bell.build(), waiting.build(), sleeping.build(), log.build(), log.build_ranges(), walkers.build(), mask.build(),
        lifetimes.build(), lifetimes.build_list(),
        online.build(), isolated.build(), away.build(), devices.build(), devices.build_pins(), batches.build(), broadcasts.build(),
        broadcasts.build_gaps(),
        early.build(), tags.build(), tags.build_renamed(), tags.build_recycled(), asids_invariant.build(), names.build(), names.build_list(), reuse.build(), secondary.build(),
    ]
