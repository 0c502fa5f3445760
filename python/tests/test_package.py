"""The functions of the package."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import shootdown

ROOT = Path(__file__).parents[2]
LS = ROOT / "traces" / "ls.shootdown"


def test_machines_and_designs_are_listed():
    assert "xeon-2s" in shootdown.machines()
    machine = shootdown.machine("xeon-2s")
    assert machine["cpus"] == 96
    walk = next(number for number in machine["numbers"] if number["name"] == "tlb.walk_ns")
    assert walk["value"] > 0 and walk["source"]
    assert {"linux-7.0", "shootdown"} <= set(shootdown.designs())
    assert "pthread-mmap" in {workload["workload"] for workload in shootdown.workloads()}


def test_recording_and_replay_agree_on_kernel():
    recording = shootdown.recording(LS)
    assert recording["records"] > 0 and recording["lost"] == 0
    row = shootdown.replay(LS, design="linux-7.0", machine="xeon-2s")
    assert row["violations"] == 0 and row["time_ns"] > 0
    slow = shootdown.replay(
        LS, design="linux-7.0", machine="xeon-2s", set={"tlb.walk_ns": 1000}
    )
    assert slow["time_ns"] > row["time_ns"]


def test_same_arguments_give_same_row():
    arguments = dict(machine="xeon-2s", cpus=8, schedule="simulated", seed=3)
    assert shootdown.replay(LS, **arguments) == shootdown.replay(LS, **arguments)


def test_workload_as_text_runs(tmp_path):
    row = shootdown.run("fork-server", cpus=4, design="linux-7.0")
    assert row["time_ns"] > 0 and row["violations"] == 0 and "time_by_cause" in row
    with pytest.raises(ValueError, match="no-such"):
        shootdown.run(tmp_path / "no-such.workload")


def test_reproduce_has_metric_with_unit():
    row = shootdown.reproduce("madvise-touch-migrate", design="linux-4.14", scale="quick")
    assert row["unit"] == "us" and row["value"] > 0


def test_check_finds_violation_of_removed_rule_only():
    program = "run 0, idle, run 0 | unmap 0.0"
    assert shootdown.check(program)["verdict"] == "none"
    broken = shootdown.check(program, design="without-resume-fence")
    assert broken["verdict"] == "violation" and "--program" in broken["repeat"]


def test_error_has_cause():
    with pytest.raises(ValueError, match="no design `no`"):
        shootdown.replay(LS, design="no")
    with pytest.raises(ValueError, match="pdp-11"):
        shootdown.machine("pdp-11")
    with pytest.raises(ValueError, match="not a parameter"):
        shootdown.sweep({"grid": {"command": "check", "recording": "a"}})


def test_interpreter_runs_during_simulation():
    """Another thread makes progress while this one simulates."""
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    # It takes a second or more.
    shootdown.reproduce("pthread-mmap", design="linux-7.0")
    during = ticks - before
    stop.set()
    thread.join()
    # With the lock held, there is one at most, as the call begins.
    assert during > 10


def test_example_specifications_are_valid():
    examples = sorted((ROOT / "docs" / "sweeps").glob("*.toml"))
    assert len(examples) >= 3
    for example in examples:
        assert shootdown._native.Sweep.read(str(example)).cells > 1


def test_stubs_name_every_function():
    stubs = (ROOT / "python" / "lib" / "shootdown" / "_native.pyi").read_text()
    for name in dir(shootdown._native):
        if not name.startswith("_"):
            assert f"def {name}(" in stubs or f"class {name}:" in stubs, name


def test_package_needs_no_other_package():
    code = "import sys; sys.modules['pandas'] = sys.modules['distributed'] = None; import shootdown"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert json.dumps(shootdown.designs())
