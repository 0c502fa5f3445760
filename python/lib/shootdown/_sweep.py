"""Sweeps on the cores of this host, or on a cluster of `dask.distributed`."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import islice
from typing import Any, Callable, Iterator, Mapping, Optional, Union

from . import _native

Path = Union[str, "os.PathLike[str]"]

#: The time that a task of several cells should take on a worker, in seconds. A task costs the
#: scheduler and the network about a millisecond.
_TASK_SECONDS = 0.25
#: The largest number of cells of a task. A worker that is lost loses at most this many.
_CELLS_MAX = 64
#: Tasks for each thread of the cluster that are submitted at the same time. The memory of the driver
#: is bounded by them, and not by the cells of the sweep.
_TASKS_PER_THREAD = 3


class Results:
    """The rows of a finished sweep, in a file.

    Iterating yields one dictionary for each row, in the order in which the cells finished. Only one
    row is in memory at a time.
    """

    #: The SHA-256 of all rows in the order of their cells, in hexadecimal.
    digest: str
    #: The file with the rows, as JSON lines.
    path: str

    def __init__(self, digest: str, path: str, cells: int, folder: Optional[object] = None):
        self.digest = digest
        self.path = path
        self._cells = cells
        # A temporary folder lives as long as its results.
        self._folder = folder

    def __len__(self) -> int:
        return self._cells

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with open(self.path, encoding="utf-8") as rows:
            for row in rows:
                yield json.loads(row)

    def __repr__(self) -> str:
        return f"<{self._cells} rows in {self.path!r}, digest {self.digest[:12]}>"

    def to_pandas(self) -> Any:
        """Returns a data frame, sorted by cell. Members of inner objects are columns with dots."""
        import pandas

        frame = pandas.json_normalize(list(self))
        return frame.sort_values("cell", ignore_index=True)

    def to_arrow(self) -> Any:
        """Returns a table of pyarrow, sorted by cell, from which Parquet files can be written."""
        import pyarrow

        return pyarrow.Table.from_pandas(self.to_pandas(), preserve_index=False)


def sweep(
    spec: Union[Path, Mapping[str, Any]],
    client: Any = None,
    *,
    output: Optional[Path] = None,
    resume: bool = False,
    threads: Optional[int] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Results:
    """Runs all cells of a sweep, and returns their rows.

    ``spec`` is the path of a TOML file, or a dictionary of the same form:
    ``{"grid": [{"command": "replay", "recording": "a.shootdown", "cpus": [2, 4]}]}``. Paths in a file
    are relative to it, and paths in a dictionary to the current directory.

    ``client`` is a ``dask.distributed.Client``. Without one, ``threads`` threads of this process run
    the cells, by default one for each core. The workers of a cluster need this package in the same
    version, and the recordings and machine files of the sweep under the same paths.

    Rows are appended to ``output`` as soon as they are there; without it, to a temporary file. With
    ``resume``, the rows in ``output`` are kept. The digest is the same however the cells are run.
    ``progress`` is called with the number of finished cells and the number of all cells.

    A cell that fails has a row with ``error``. A worker that is lost costs nothing but time: its cells
    run again elsewhere. ``RuntimeError`` means that the cluster cannot run the cells at all; finished
    rows are kept.
    """
    if isinstance(spec, Mapping):
        cells = _native.Sweep(json.dumps(spec), os.getcwd())
    else:
        cells = _native.Sweep.read(os.path.abspath(spec))
    folder = None
    if output is None:
        folder = tempfile.TemporaryDirectory(prefix="shootdown-")
        output = os.path.join(folder.name, "rows.jsonl")
    path = os.path.abspath(output)
    rows = _native.Rows(cells, path, resume)
    missing = rows.missing()
    if client is None:
        finished = _on_threads(cells, missing, threads or os.cpu_count() or 1)
    else:
        finished = _on_cluster(cells, missing, client)
    for number, row in finished:
        rows.append(number, row)
        if progress is not None:
            progress(len(rows), cells.cells)
    if len(rows) != cells.cells:
        raise RuntimeError(f"{cells.cells - len(rows)} cells have no row")
    return Results(rows.digest(), path, cells.cells, folder)


def _on_threads(
    sweep: _native.Sweep, numbers: list[int], threads: int
) -> Iterator[tuple[int, str]]:
    """Yields the rows of cells that run on threads, which do not hold the interpreter's lock."""
    left = iter(numbers)
    with ThreadPoolExecutor(threads) as pool:
        running = {}
        try:
            while True:
                for number in left:
                    running[pool.submit(sweep.run, number)] = number
                    if len(running) >= 2 * threads:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()


def _on_cluster(
    sweep: _native.Sweep, numbers: list[int], client: Any
) -> Iterator[tuple[int, str]]:
    """Yields the rows of cells that run as tasks of a cluster.

    A task is a few cells. It has no effect besides its result, so that the scheduler may run it again
    when a worker is lost.
    """
    from distributed import as_completed

    specification, folder = sweep.arguments
    left = iter(numbers)
    size, futures = 1, {}
    tasks = as_completed(with_results=True, raise_errors=False)

    def submit(cells: list[int]) -> None:
        future = client.submit(
            _task, specification, folder, sweep.fingerprint, cells, pure=False, retries=3
        )
        futures[future.key] = cells
        tasks.add(future)

    def fill() -> None:
        while len(futures) < _TASKS_PER_THREAD * threads:
            cells = list(islice(left, size))
            if not cells:
                return
            submit(cells)

    threads, counted = _threads(client), time.monotonic()
    fill()
    if not futures:
        return
    for future, result in tasks:
        cells = futures.pop(future.key)
        if future.status == "finished":
            seconds, rows = result
            yield from zip(cells, rows)
            size = max(1, min(_CELLS_MAX, int(_TASK_SECONDS * len(cells) / max(seconds, 1e-6))))
        elif _is_killed(result) and len(cells) > 1:
            # One cell may exhaust the memory of workers. The others of its task still run.
            for number in cells:
                submit([number])
        else:
            raise RuntimeError(f"the cluster did not run the cells {cells}: {_cause(result)!r}")
        if time.monotonic() - counted > 1:
            # Clusters grow and shrink.
            threads, counted = _threads(client), time.monotonic()
        fill()


def _threads(client: Any) -> int:
    return max(1, sum(client.nthreads().values()))


def _cause(result: Any) -> Any:
    """Returns the exception of a failed task, which comes with its traceback."""
    return result[1] if isinstance(result, tuple) else result


def _is_killed(result: Any) -> bool:
    from distributed import KilledWorker

    return isinstance(_cause(result), KilledWorker)


@lru_cache(maxsize=4)
def _parsed(specification: str, folder: str) -> _native.Sweep:
    return _native.Sweep(specification, folder)


#: Protects the first use of a specification on a worker with several threads.
_parsing = threading.Lock()


def _task(
    specification: str, folder: str, fingerprint: str, numbers: list[int]
) -> tuple[float, list[str]]:
    """Runs cells on a worker. Returns the seconds that they took, and their rows."""
    with _parsing:
        sweep = _parsed(specification, folder)
    if sweep.fingerprint != fingerprint:
        # Rows of other inputs or another version must not be mixed with the driver's.
        _parsed.cache_clear()
        raise RuntimeError(
            f"a worker has another version of this package, or other files in {folder}"
        )
    start = time.perf_counter()
    rows = [sweep.run(number) for number in numbers]
    return time.perf_counter() - start, rows
