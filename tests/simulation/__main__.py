"""`python -m tests.simulation`: fold simulated node histories and compare the findings with the truth.

    --hours N    node-hours of each seed (4)
    --seeds N    how many seeds (2)
    --seed S     the first seed (1); --fresh takes one from the clock
    --for 10m    go on over fresh seeds for so long, and print each seed that fails

The exit status is 1 where a false critical or a miss was found.
"""

import argparse
import multiprocessing
import os
import re
import sys
import time

from tests.simulation.score import Failure, Score, play, table


def main() -> int:
    """Play, print, and say by the exit status whether all was well."""
    options = _options()
    first = int(time.time()) % 10**9 if options.fresh or options.seconds else options.seed
    sys.stdout.write(f"first seed {first}\n")
    until = time.monotonic() + options.seconds
    score, failed = Score(), False
    with multiprocessing.Pool(os.cpu_count()) as pool:
        while True:
            seeds = range(first, first + options.seeds)
            for one in pool.imap_unordered(play, [(seed, options.hours) for seed in seeds]):
                score.add(one)
                for failure in one.failures:
                    failed = failed or is_grave(failure)
                    sys.stdout.write(f"{failure} {again(failure)}\n")
            first += options.seeds
            if time.monotonic() >= until:
                break
    sys.stdout.write(table(score) + "\n")
    return int(failed)


def again(failure: Failure) -> str:
    """The command that shows a failure again, and no more than it."""
    hours = f"{failure.hour + 0.05:.2f}"
    return f"(again: python -m tests.simulation --seed {failure.seed} --seeds 1 --hours {hours})"


def is_grave(failure: Failure) -> bool:
    """What must never happen."""
    return failure.critical or failure.verdict == "missed"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--for", dest="seconds", type=_seconds, default=0.0)
    return parser.parse_args()


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 90s, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


if __name__ == "__main__":
    sys.exit(main())
