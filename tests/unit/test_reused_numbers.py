"""A number that NVML has listed for longer than the process lives that has it now accuses nobody."""

from exporter.infrastructure import COMPONENTS
from exporter.model import FindingName, Policy, Process, Report
from exporter.report import advance
from tests import builders as b

DEAD_ROW = b.nvml(b.gpu(0, used=b.GIB, rows=(b.row(4000),)), b.gpu(1))
GIVEN = b.kubelet(
    b.allocation(b.gpu_uuid(0), pod="owner-0"), b.allocation(b.gpu_uuid(1), pod="other-0", container="main")
)
PODS = (b.pod("owner-0", uid=b.pod_uid(1)), b.pod("other-0", uid=b.pod_uid(2)))


def course(*starts: int | None) -> Report:
    """One cycle an entry: the start in ticks of the process with pid 4000, None where none has it."""
    report: Report | None = None
    for number, start in enumerate(starts):
        at = 15.0 * number
        mine = () if start is None else (_stranger(start),)
        table = b.process_table(*mine, missing=(4000,) if start is None else ())
        look = b.snapshot(
            nvml=DEAD_ROW,
            processes=table,
            kubelet=GIVEN,
            pods=PODS,
            at=b.NOW + at,
            monotonic=b.MONOTONIC + at,
        )
        report = advance(Policy(), report, look)
    assert report is not None
    return report


def _stranger(start: int) -> Process:
    return b.process(4000, start=start, pod_uid=b.pod_uid(2), container_id=b.container_id(2), numbers=(4000,))


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(f.holds.subject.finding, f.holds.kind) for f in report.diagnosis.findings if f.active}


def test_the_pod_of_the_new_process_is_no_trespasser() -> None:
    """The row is a phantom under another name, and its bytes are nobody's use of another pod's GPU."""
    young = int((b.NOW + 60 - b.BOOT_TIME) * b.TICKS)
    told = kinds(course(None, None, None, None, *[young] * 12))
    assert (FindingName.PHANTOM_PROCESS, "aliased") in told
    assert not any(finding is FindingName.USED_NOT_ALLOCATED for finding, _ in told)


def test_a_process_as_old_as_its_row_is_one() -> None:
    """The same process and row, seen from the start, is a pod on a GPU that was given to another."""
    assert (FindingName.USED_NOT_ALLOCATED, "of_other_pod") in kinds(course(*[1000] * 12))


def test_mps_may_hold_what_its_clients_use() -> None:
    """Only its memory is not limited: it stands for others."""
    assert {one.name for one in COMPONENTS if one.memory_limit is None} == {"mps"}
