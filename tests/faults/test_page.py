from pathlib import Path

from tests.faults.cases import CASES
from tests.faults.page import PAGE, promised, rows

HERE = Path(__file__).parent


def test_the_page_is_current() -> None:
    """Its rows are those of the table of cases, in its words; what was seen is from the run that wrote it."""
    found = [tuple(cells[:4]) for cells in rows(PAGE.read_text())]
    assert found == [promised(case) for case in CASES], "write it with: make faults"


def test_every_case_has_a_test() -> None:
    """A row without a test would promise what nobody looked at."""
    text = "".join(path.read_text() for path in HERE.glob("test_faults_*.py"))
    assert not [case.name for case in CASES if f'"{case.name}"' not in text]
