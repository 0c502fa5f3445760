"""The native module. It passes JSON as text; use the functions of the package instead."""

from typing import List, Tuple

class Sweep:
    """Cells with numbers from 0."""

    def __init__(self, specification: str, folder: str) -> None:
        """Parses a specification, a JSON object. Paths in it are relative to ``folder``."""

    @staticmethod
    def read(path: str) -> Sweep:
        """Reads a specification, a TOML file."""

    @property
    def cells(self) -> int:
        """Number of cells."""

    @property
    def fingerprint(self) -> str:
        """A hash of the cells, their files and the version."""

    @property
    def arguments(self) -> Tuple[str, str]:
        """The specification as JSON, and the folder of its paths."""

    def run(self, cell: int) -> str:
        """Runs a cell without the interpreter's lock, and returns its row as JSON."""

class Rows:
    """A file of rows of a sweep."""

    def __init__(self, sweep: Sweep, path: str, resume: bool) -> None:
        """Creates the file, or continues it if ``resume`` is true."""

    def missing(self) -> List[int]:
        """Returns the cells without a row."""

    def append(self, cell: int, row: str) -> bool:
        """Appends the row of a cell, unless the file has it."""

    def digest(self) -> str:
        """Returns the SHA-256 of the rows in the order of their cells."""

    def __len__(self) -> int: ...

def machines() -> List[str]:
    """Returns the names of the machines that need no file."""

def machine(name: str) -> str:
    """Returns a machine as JSON."""

def designs() -> List[str]:
    """Returns the names of all designs."""

def workloads() -> str:
    """Returns the workloads of the studies as JSON."""

def recording(path: str) -> str:
    """Returns the header and the totals of a recording as JSON."""

def merge(inputs: List[str], output: str) -> str:
    """Merges files of rows and returns their digest."""
