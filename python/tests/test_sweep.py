"""Sweeps on threads, on a cluster, and as job files."""

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import shootdown

ROOT = Path(__file__).parents[2]


def spec(seeds):
    """Returns a specification of 8 cells for each seed."""
    return {
        "grid": {
            "command": "replay",
            "recording": str(ROOT / "traces" / "ls.shootdown"),
            "schedule": "simulated",
            "machine": "xeon-2s",
            "cpus": {"from": 2, "to": 16, "times": 2},
            "design": ["linux-7.0", "shootdown"],
            "seed": {"from": 1, "to": seeds},
        }
    }


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def test_sweep_on_threads_is_resumed(tmp_path):
    output = tmp_path / "rows.jsonl"
    whole = shootdown.sweep(spec(3), output=output, threads=2)
    assert len(whole) == 24 and {row["cell"] for row in whole} == set(range(24))
    text = output.read_text()
    assert hashlib.sha256("".join(sorted_rows(text)).encode()).hexdigest() == whole.digest
    with pytest.raises(ValueError, match="exists"):
        shootdown.sweep(spec(3), output=output)
    output.write_text(text[: len(text) // 2])
    assert shootdown.sweep(spec(3), output=output, resume=True).digest == whole.digest


def sorted_rows(text):
    """Returns the lines in the order of their cells."""
    return sorted(text.splitlines(keepends=True), key=lambda row: int(row[8 : row.index(",")]))


def test_error_of_cell_is_row():
    grid = dict(spec(1)["grid"], design=["shootdown", "no"])
    rows = list(shootdown.sweep({"grid": grid}))
    assert sum("error" in row for row in rows) == 4 and len(rows) == 8


def test_rows_become_frame_and_table():
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = shootdown.sweep(spec(1))
    frame = rows.to_pandas()
    assert list(frame["cell"]) == list(range(8)) and "shootdown_wait_ns.p99" in frame
    assert rows.to_arrow().num_rows == 8


def test_killed_worker_does_not_change_digest(cluster):
    from distributed import Client

    seeds = 60
    digest = shootdown.sweep(spec(seeds)).digest
    with Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        assert len(pids) == 4
        killed = []

        def kill(done, cells):
            if not killed and done > cells // 4:
                killed.append(done)
                os.kill(pids[0], signal.SIGKILL)

        rows = shootdown.sweep(spec(seeds), client, progress=kill)
    assert killed and killed[0] < 8 * seeds
    assert rows.digest == digest
    assert sorted(row["cell"] for row in rows) == list(range(8 * seeds))


def test_worker_with_other_files_is_refused(cluster, tmp_path):
    """A worker that reads another recording than the driver must not contribute rows."""
    from distributed import Client

    recording = tmp_path / "a.shootdown"
    shutil.copy(ROOT / "traces" / "ls.shootdown", recording)
    grid = dict(spec(1)["grid"], recording=str(recording))
    with Client(cluster) as client:

        def replace(*_):
            shutil.copy(ROOT / "traces" / "xz.shootdown", recording)

        # The driver reads the file first, and the workers read it when their first task starts.
        original = client.submit
        client.submit = lambda *a, **k: (replace(), original(*a, **k))[1]
        with pytest.raises(RuntimeError, match="other files"):
            shootdown.sweep({"grid": grid}, client)


@pytest.mark.skipif(shutil.which("parallel") is None, reason="needs GNU parallel")
@pytest.mark.skipif("SHOOTDOWN" not in os.environ, reason="SHOOTDOWN is the path of the command")
def test_job_file_of_parallel_runs_all_shards(tmp_path):
    command = os.environ["SHOOTDOWN"]
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    shutil.copy(ROOT / "traces" / "ls.shootdown", folder)
    (folder / "my spec.toml").write_text(
        '[grid]\ncommand = "replay"\nrecording = "ls.shootdown"\nseed = [1, 2, 3]\n'
        'schedule = "simulated"\ncpus = [2, 4]\n'
    )
    path = f"{os.path.dirname(command)}:{os.environ['PATH']}"

    def run(*arguments):
        output = subprocess.run(
            arguments, cwd=tmp_path, env=dict(os.environ, PATH=path), capture_output=True, text=True
        )
        assert output.returncode == 0, output.stderr
        return output.stdout

    spec, rows = "it's a folder/my spec.toml", "it's a folder/rows.jsonl"
    jobs = ROOT / "docs" / "sweeps"
    whole = run("shootdown", "sweep", spec, "--output", "whole.jsonl")
    merged = run("sh", jobs / "parallel.sh", spec, rows, "3")
    assert merged.splitlines()[-1] == whole.splitlines()[-1]
    # The job of Slurm runs the shard that the array's variables name.
    for shard in range(1, 4):
        array = [f"SLURM_ARRAY_TASK_ID={shard}", "SLURM_ARRAY_TASK_COUNT=3"]
        run("env", *array, "SLURM_CPUS_PER_TASK=1", "sh", jobs / "slurm.sh", spec, rows)
    shards = [f"{rows}.shard-{shard}" for shard in range(1, 4)]
    merged = run("shootdown", "sweep", "merge", *shards, "--output", "merged.jsonl")
    assert merged.splitlines()[-1] == whole.splitlines()[-1]


@pytest.mark.skipif("SHOOTDOWN_SOAK" not in os.environ, reason="takes minutes")
def test_driver_of_many_cells_stays_small(cluster):
    """100,000 cells: the driver has at most 500 MB, and a cell costs at most 5 ms."""
    from distributed import Client

    cells = int(os.environ.get("SHOOTDOWN_CELLS", "100000"))
    grid = {
        "command": "check",
        "program": "run 0",
        "seed": {"from": 1, "to": cells},
    }
    with Client(cluster) as client:
        start, cpu = time.perf_counter(), time.process_time()
        rows = shootdown.sweep({"grid": grid}, client)
        seconds = time.perf_counter() - start
        cpu = time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{cells} cells: {seconds:.0f} s, {cpu:.0f} s of the driver's CPU, {peak_mb:.0f} MB")
    assert len(rows) == cells and peak_mb <= 500 and seconds / cells <= 0.005
