"""Histories of nodes with known truth: what is wrong is told in time, and what is innocent is never critical.

A failure prints its seed: `python -m tests.simulation --seed S --seeds 1` shows it again.
"""

import ast
import multiprocessing
import os
import random
import sys
from pathlib import Path

import pytest

from exporter.model import FindingName
from tests.simulation.score import Failure, Score, play, table

HOURS = 4.0
SEEDS = range(1, 51)
FRESH = 5

# What the generators of histories must never know: how the exporter judges.
FORBIDDEN = ("exporter.diagnosis", "exporter.attribution", "exporter.history", "exporter.report")
VOCABULARY = ("exporter.model", "exporter.device_ids")


def folded(seeds: list[int]) -> Score:
    """All seeds' histories, compared on as many processors as there are."""
    score = Score()
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for one in pool.imap_unordered(play, [(seed, HOURS) for seed in seeds]):
            score.add(one)
    sys.stdout.write(table(score) + "\n")
    return score


def grave(score: Score) -> list[str]:
    """Critical findings that are not true, and incidents that nobody was told of."""
    return [str(one) for one in score.failures if _is_grave(one)]


def _is_grave(failure: Failure) -> bool:
    return failure.critical or failure.verdict == "missed"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fixed_histories() -> None:
    """200 node-hours: no false critical, and nothing missed. Every finding comes up."""
    score = folded(list(SEEDS))
    assert grave(score) == []
    assert {name.value for name in FindingName} <= set(score.true)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fresh_histories() -> None:
    """20 node-hours that nobody has seen before."""
    first = random.SystemRandom().randrange(10**6, 10**9)
    sys.stdout.write(f"first fresh seed {first}\n")
    assert grave(folded([first + number for number in range(FRESH)])) == []


def test_same_seed_same_history() -> None:
    """A seed is all that it takes to see a failure again."""
    one, other = play((7, 0.3)), play((7, 0.3))
    assert (one.true, one.delays, one.failures) == (other.true, other.delays, other.failures)


def test_generators_know_no_rules() -> None:
    """Truth comes from what happened: modules that make it import the vocabulary, and nothing that judges."""
    for path in sorted(Path(__file__).parent.glob("node_*.py")):
        for name in imported(path):
            assert not name.startswith(FORBIDDEN), f"{path.name} imports {name}"
            if name.split(".")[0] == "exporter":
                assert name.startswith(VOCABULARY) or name == "exporter", f"{path.name} imports {name}"


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, with the names taken from packages."""
    found = set()
    for one in ast.walk(ast.parse(path.read_text())):
        if isinstance(one, ast.Import):
            found |= {alias.name for alias in one.names}
        elif isinstance(one, ast.ImportFrom) and one.module:
            found |= {one.module}
            if one.module == "exporter":
                found |= {f"exporter.{alias.name}" for alias in one.names}
    return found
