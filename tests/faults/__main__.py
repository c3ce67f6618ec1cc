"""`python -m tests.faults`: run every fault, print what was promised and what was seen, write the page.

Further arguments go to pytest. The page is written only where every fault was run and went well.
"""

import sys

import pytest

from tests.faults.cases import CASES
from tests.faults.page import NOT_RUN, PAGE, page


class Results:
    """What the tests report, by fault."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what one phase of a test reports."""
        found = {key: str(value) for key, value in report.user_properties}
        if (name := found.get("fault")) is not None:
            if report.failed:
                self.failed.add(name)
            self.seen[name] = found.get("seen", self.seen.get(name, ""))


def main() -> int:
    """Run, print, write."""
    results = Results()
    folder = PAGE.parents[1] / "tests" / "faults"
    # The test of the page is about the page that this run writes.
    arguments = [str(folder), f"--ignore={folder / 'test_page.py'}", *sys.argv[1:]]
    code = pytest.main(arguments, plugins=[results])
    for case in CASES:
        seen = "FAILED" if case.name in results.failed else results.seen.get(case.name, NOT_RUN)
        unknown = f"; unknown: {case.unknown}" if case.unknown != "Nothing" else ""
        sys.stdout.write(
            f"\n{case.name}\n  expected  {case.served}{unknown}. {case.recovers}.\n  seen      {seen}\n"
        )
    if results.failed or len(results.seen) < len(CASES):
        return int(code) or 1
    PAGE.write_text(page(results.seen))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
