"""Tests of signals: what they end immediately, and what may finish first."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from offline_rl.utils.signals import Abandoned, postpone_signals, stop_compilers


def test_the_first_signal_is_noted_and_the_second_one_ends_the_block(ctrl_c: None) -> None:
    said = list[str]()
    with pytest.raises(KeyboardInterrupt), postpone_signals(said.append) as request:  # noqa: PT012
        assert not request()
        signal.raise_signal(signal.SIGINT)
        assert request()
        signal.raise_signal(signal.SIGINT)
    assert [line.split(".")[0] for line in said] == ["Interrupted"]
    assert "checkpoint is written first" in said[0]


def test_a_compilation_is_abandoned_at_the_first_signal(ctrl_c: None) -> None:
    said, reached = list[str](), list[int]()
    with postpone_signals(said.append) as request:
        with pytest.raises(Abandoned), request.abandon_on_signal():
            signal.raise_signal(signal.SIGINT)
        assert request()
        with pytest.raises(Abandoned), request.abandon_on_signal():  # noqa: PT012 (begun after it)
            reached.append(1)
            raise RuntimeError
    assert not reached
    assert said == ["Interrupted. The compilation is abandoned."]


def test_a_signal_after_a_compilation_does_not_end_the_block(ctrl_c: None) -> None:
    with postpone_signals(lambda _: None) as request:
        with request.abandon_on_signal():
            pass
        signal.raise_signal(signal.SIGINT)
        assert request()


def test_an_error_of_a_compiler_that_the_signal_ended_is_not_raised(ctrl_c: None) -> None:
    def fails() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("g++ was ended by signal 2") from None

    with (
        postpone_signals(lambda _: None) as request,
        pytest.raises(Abandoned),
        request.abandon_on_signal(),
    ):
        fails()
    with (
        postpone_signals(lambda _: None) as request,
        pytest.raises(RuntimeError),
        request.abandon_on_signal(),
    ):
        raise RuntimeError("g++: no such file")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_compilers_are_killed_with_their_children_and_nothing_else_is(tmp_path: Path) -> None:
    """A driver g++ has a child cc1plus that holds its output; another program is not killed."""
    for name in ("g++", "cc1plus", "other"):
        shutil.copy("/bin/sh", tmp_path / name)
    child = f"{tmp_path}/cc1plus -c 'echo begun; read x'"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([tmp_path / "g++", "-c", f"{child}; true"], **pipes)
    other = subprocess.Popen([tmp_path / "other", "-c", "read x; exit 7"], **pipes)
    assert driver.stdout.readline() == "begun\n"
    started = time.monotonic()
    stop_compilers()
    driver.communicate(timeout=10)  # which reads to the end of what the child holds
    assert driver.returncode == -signal.SIGKILL
    assert time.monotonic() - started < 5
    other.communicate("x\n", timeout=10)
    assert other.returncode == 7
