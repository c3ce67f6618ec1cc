"""The child mechanism against a real child process that serves, hangs, dies and talks nonsense."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Reason, SourceError
from exporter.sources import child as mechanism
from exporter.sources.child import Child

TOY = "tests.sources.toy_child"
LONG = 20.0  # seconds that only a failing test takes


@pytest.fixture
def toy() -> Iterator[Child]:
    made = Child(TOY)
    yield made
    _end(made)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that died are replaced at once."""
    monkeypatch.setattr(mechanism, "BACKOFF", (0.0, 0.0))


def _end(child: Child) -> None:
    """Close it and wait until it is reaped, so that no test leaves a process behind."""
    child.close()
    _eventually(child._reaped)


def _eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def _refusal(child: Child, op: str = "echo", seconds: float = LONG, **request: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        child.call(op, request, seconds)
    return caught.value


def _runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------- a conversation


def test_a_call_gives_what_the_handler_returned(toy: Child) -> None:
    """Values of all kinds survive, and one process answers one call after another."""
    request = {"numbers": [1, 2**62], "text": 'ü"\n\u2028', "none": None, "share": 0.5}
    assert toy.call("echo", request, LONG) == request
    assert toy.call("pid", {}, LONG) == toy.call("pid", {}, LONG) == toy.pid


def test_parts_arrive_while_the_child_still_works(toy: Child) -> None:
    """The GPUs read before a hang are known before the call ends."""
    seen: list[tuple[float, Any]] = []
    end = toy.call(
        "parts", {"count": 3, "pause": 0.2}, LONG, lambda _, value: seen.append((time.monotonic(), value))
    )
    assert end == "done"
    assert [value for _, value in seen] == [0, 1, 2]
    assert seen[2][0] - seen[0][0] > 0.3


def test_a_reply_far_larger_than_a_pipe_arrives_whole(toy: Child) -> None:
    """So does a request of that size: a node with 20,000 watched pids."""
    numbers = list(range(400_000))
    assert toy.call("echo", {"numbers": numbers}, LONG) == {"numbers": numbers}


@pytest.mark.parametrize("reason", list(Reason))
def test_the_childs_reason_is_the_callers(toy: Child, reason: Reason) -> None:
    """A refusal by the child keeps its reason, its text is made printable, and the child goes on."""
    error = _refusal(toy, "refuse", reason=reason.value, detail="no\x1b[31m\nway")
    assert (error.reason, error.detail) == (reason, "no?[31m?way")
    assert toy.call("echo", {}, LONG) == {}


@pytest.mark.parametrize(("op", "text"), [("bug", "KeyError"), ("never-heard-of", "KeyError")])
def test_a_bug_in_a_handler_is_reported_and_not_fatal(toy: Child, op: str, text: str) -> None:
    """An exception that is no SourceError is a protocol error that names its type; the child goes on."""
    pid = toy.call("pid", {}, LONG)
    error = _refusal(toy, op)
    assert error.reason is Reason.PROTOCOL
    assert text in error.detail
    assert toy.call("pid", {}, LONG) == pid


def test_a_value_that_is_no_json_is_a_bug_in_the_handler_too(toy: Child) -> None:
    """It is reported like any other, and does not end the child."""
    error = _refusal(toy, "unserialisable")
    assert error.reason is Reason.PROTOCOL
    assert "TypeError" in error.detail
    assert toy.call("echo", {}, LONG) == {}


def test_what_libraries_print_does_not_get_between_frames(
    toy: Child, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output of the child's libraries goes to standard error."""
    assert toy.call("chatter", {}, LONG) == "quiet"
    assert toy.call("echo", {"x": 1}, LONG) == {"x": 1}
    _end(toy)
    out, err = capfd.readouterr()
    assert out == ""
    assert "a library says hello" in err
    assert "and so does one in C" in err


# ---------------------------------------------------------------- deadlines


def test_a_call_that_takes_too_long_costs_the_child(toy: Child) -> None:
    """The caller gets `timeout` when it is due, and the process is killed."""
    pid = toy.call("pid", {}, LONG)
    began = time.monotonic()
    assert _refusal(toy, "sleep", 0.3, length=60).reason is Reason.TIMEOUT
    assert time.monotonic() - began < 5.0
    _eventually(lambda: not _runs(pid))


def test_a_stopped_child_is_timed_out_and_killed(toy: Child) -> None:
    """SIGSTOP is how a hung driver call looks from outside."""
    pid = toy.call("pid", {}, LONG)
    os.kill(pid, signal.SIGSTOP)
    assert _refusal(toy, seconds=0.3).reason is Reason.TIMEOUT
    _eventually(lambda: not _runs(pid))


def test_a_child_that_does_not_read_cannot_hold_the_caller(toy: Child) -> None:
    """A request larger than the pipe is subject to the deadline as well."""
    os.kill(toy.call("pid", {}, LONG), signal.SIGSTOP)
    began = time.monotonic()
    error = _refusal(toy, seconds=0.3, numbers=list(range(400_000)))
    assert error.reason is Reason.TIMEOUT
    assert time.monotonic() - began < 5.0


def test_parts_do_not_extend_the_deadline(toy: Child) -> None:
    """A child that dribbles for ever is given up when the time is over."""
    began = time.monotonic()
    assert _refusal(toy, "parts", seconds=0.5, count=1000, pause=0.05).reason is Reason.TIMEOUT
    assert time.monotonic() - began < 5.0


# ---------------------------------------------------------------- death and nonsense


def test_a_child_that_dies_in_a_call_is_unavailable_and_backed_off_from(toy: Child) -> None:
    """Its successor starts only after a while, and until then the source says so."""
    error = _refusal(toy, "die", status=3)
    assert error.reason is Reason.UNAVAILABLE
    again = _refusal(toy)
    assert again.reason in (Reason.UNAVAILABLE, Reason.BUSY)
    assert toy.pid is None


def test_a_child_that_died_between_calls_is_noticed(toy: Child) -> None:
    """No call is sent to a dead process, and none hangs on it."""
    pid = toy.call("pid", {}, LONG)
    os.kill(pid, signal.SIGKILL)
    _eventually(lambda: not _runs(pid))
    assert _refusal(toy).reason is Reason.UNAVAILABLE


def test_the_wait_between_starts_grows_and_a_good_answer_resets_it(
    toy: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 4 ... up to a bound; a child that answered is trusted again."""
    monkeypatch.setattr(mechanism, "BACKOFF", (0.01, 0.05))
    delays = []
    for _ in range(5):
        _eventually(lambda: toy._reaped() and time.monotonic() >= toy._not_before)
        _refusal(toy, "die", status=1)
        delays.append(toy._delay)
    assert delays == [0.01, 0.02, 0.04, 0.05, 0.05]
    _eventually(lambda: toy._reaped() and time.monotonic() >= toy._not_before)
    assert toy.call("echo", {}, LONG) == {}
    assert toy._delay == 0.0


@pytest.mark.parametrize(
    "nonsense",
    ["garbage", "huge", "no-json", "no-text", "nested", "no-object", "neither", "unknown-reason"],
)
def test_bytes_that_are_no_frame_are_a_protocol_error_and_end_the_child(nonsense: str) -> None:
    """Never an exception of another kind, never gigabytes of buffer, and no second try with that child."""
    child = Child(TOY, (nonsense,))
    error = _refusal(child)
    assert error.reason is Reason.PROTOCOL
    assert error.detail.isprintable()
    assert child.pid is None
    _end(child)


def test_a_child_that_ends_in_the_middle_of_a_frame_is_unavailable() -> None:
    """Half a frame is no answer."""
    child = Child(TOY, ("half",))
    assert _refusal(child).reason is Reason.UNAVAILABLE
    _end(child)


def test_a_child_that_cannot_start_is_unavailable(toy: Child) -> None:
    """A missing interpreter is a reason like any other, and is backed off from."""
    toy._command = ("/nonexistent/python",)
    assert _refusal(toy).reason is Reason.UNAVAILABLE
    assert "next start" in _refusal(toy).detail


def test_an_exception_in_the_callers_part_does_not_leave_half_a_reply_behind(
    toy: Child, no_delay: None
) -> None:
    """What was not read of one reply must not be taken for the next one."""

    def stumble(_name: str, _value: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        toy.call("parts", {"count": 5}, LONG, stumble)
    _eventually(toy._reaped)
    assert toy.call("echo", {"x": 2}, LONG) == {"x": 2}


# ---------------------------------------------------------------- one child at a time


def test_a_second_caller_waits_its_turn(toy: Child) -> None:
    """It gets its answer after the first has got the other."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(toy.call("sleep", {"length": 1}, LONG)))
    thread.start()
    _eventually(lambda: toy.pid is not None)
    assert toy.call("echo", {"x": 1}, LONG) == {"x": 1}
    thread.join()
    assert answers == ["awake"]


def test_a_second_caller_is_refused_when_its_time_is_over(toy: Child) -> None:
    """It is told `busy`, and the first still gets its answer."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(toy.call("sleep", {"length": 1}, LONG)))
    thread.start()
    _eventually(lambda: toy.pid is not None)
    began = time.monotonic()
    assert _refusal(toy, seconds=0.2).reason is Reason.BUSY
    assert time.monotonic() - began < 0.5
    thread.join()
    assert answers == ["awake"]


def test_no_second_child_while_a_killed_one_still_exists(
    toy: Child, no_delay: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that the kernel holds (state D) outlives SIGKILL; here one that is not reaped stands for it."""
    toy.call("pid", {}, LONG)
    held = toy._process
    assert held is not None
    with monkeypatch.context() as patch:
        patch.setattr(held, "poll", lambda: None)
        assert _refusal(toy, "sleep", 0.2, length=60).reason is Reason.TIMEOUT
        for _ in range(3):
            error = _refusal(toy)
            assert error.reason is Reason.BUSY
            assert str(held.pid) in error.detail
            assert toy.pid is None
    _eventually(toy._reaped)
    assert toy.call("pid", {}, LONG) != held.pid


def test_stop_from_another_thread_ends_a_call_in_flight(toy: Child) -> None:
    """The end of the agent does not wait for a hung call, and the caller is told `unavailable`."""
    toy.call("echo", {}, LONG)
    errors: list[SourceError] = []
    thread = threading.Thread(target=lambda: errors.append(_refusal(toy, "sleep", LONG, length=60)))
    thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    toy.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert time.monotonic() - began < mechanism.STOP_SECONDS + 2
    assert [error.reason for error in errors] == [Reason.UNAVAILABLE]


def test_no_second_child_while_a_stopping_one_still_exists(toy: Child, no_delay: None) -> None:
    """Two children would hold NVML handles at once, just when somebody asked for none."""
    pid = toy.call("pid", {}, LONG)
    os.kill(pid, signal.SIGSTOP)  # it does not hear SIGTERM
    thread = threading.Thread(target=toy.stop)
    thread.start()
    _eventually(lambda: toy.pid is None)
    assert _refusal(toy).reason is Reason.BUSY
    thread.join(5)
    _eventually(lambda: not _runs(pid))
    _eventually(toy._reaped)
    assert toy.call("pid", {}, LONG) != pid


def test_stop_lets_the_child_close_what_it_has_open(tmp_path: Path) -> None:
    """NVML is shut down before the process ends, once."""
    log = tmp_path / "log"
    child = Child(TOY, ("closing", str(log)))
    child.call("echo", {}, LONG)
    child.stop()
    assert log.read_text() == "closed\n"
    _end(child)


def test_a_closed_child_is_not_started_again(toy: Child) -> None:
    """A call that comes after the end starts no process that nobody would end."""
    toy.call("echo", {}, LONG)
    toy.close()
    _eventually(toy._reaped)
    assert _refusal(toy).reason is Reason.UNAVAILABLE
    assert toy.pid is None


# ---------------------------------------------------------------- nothing is left behind


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_hundred_deaths_leak_no_descriptor_and_no_zombie(toy: Child, no_delay: None) -> None:
    """An agent that runs for months survives as many bad drivers."""
    toy._command = (sys.executable, "-I", "-S", "-c", "pass")  # as fast a death as there is
    _refusal(toy)
    _eventually(toy._reaped)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(200):
        assert _refusal(toy).reason is Reason.UNAVAILABLE
        _eventually(toy._reaped)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert toy._dying is None


@pytest.mark.parametrize("busy", [False, True])
def test_a_child_ends_with_its_parent(busy: bool) -> None:
    """Even where the parent was killed: at the end of its input, or when it has something to say."""
    script = (
        "import sys, threading\n"
        "from exporter.sources.child import Child\n"
        f"child = Child({TOY!r})\n"
        "print(child.call('pid', {}, 20), flush=True)\n"
        f"child.call('parts', {{'count': 100 if {busy} else 0, 'pause': 0.1}}, 20)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _runs(pid)
        parent.kill()
    _eventually(lambda: not _runs(pid))


def test_the_end_of_a_terminals_foreground_job_is_the_parents_to_act_on(toy: Child) -> None:
    """A Ctrl-C reaches the child as well, which goes on until the parent says so."""
    pid = toy.call("pid", {}, LONG)
    os.kill(pid, signal.SIGINT)
    assert toy.call("pid", {}, LONG) == pid
