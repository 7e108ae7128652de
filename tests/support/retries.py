"""Reruns of failing tests. Tests that pass in a rerun are listed as FLAKY; too many of them fail the run.

A test that fails once and then passes indicates a fault, in the product or in the test. The fault must be seen and
fixed, but must not block correct work from being merged. pytest-rerunfailures runs a test again. Its own limit ends the
reruns: a flaky test after it would count as failed, and its first traceback would be lost. Hence the limit here.
"""

from __future__ import annotations

import socket

import pytest

__all__ = ["Retries"]


class Retries:
    """A plug-in for `--flaky-limit`.

    Args:
        limit: Largest number of tests that may fail first and pass later without failing the run.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: dict[str, pytest.TestReport] = {}  # the first failure of each rerun test
        self._failed: set[str] = set()  # tests that also failed in the last rerun

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Disable Nagle's algorithm between pytest-rerunfailures and the workers of pytest-xdist.

        With it, each test waits 40 ms for the acknowledgement of the previous one.
        """
        connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @pytest.hookimpl(trylast=True)  # after the tests have got their tiers
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Rerun a failing system test at most twice, since it depends on other processes, and any other test once."""
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=2 if item.get_closest_marker("system") else 1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the first failure of each rerun test, and the names of tests that fail in the last rerun."""
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures' own outcome
            self._failures.setdefault(report.nodeid, report)  # type: ignore[unreachable]
        elif report.failed:
            self._failed.add(report.nodeid)

    @property
    def _flaky(self) -> list[pytest.TestReport]:
        return [report for name, report in self._failures.items() if name not in self._failed]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run with too many flaky tests."""
        if len(self._flaky) > self._limit:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the flaky tests with their first tracebacks, and the first tracebacks of tests that failed again."""
        if again := [report for name, report in self._failures.items() if name in self._failed]:
            terminalreporter.section("first failures of tests that failed again")
            for report in again:
                self._write(terminalreporter, "FIRST", report)
        if not self._flaky:
            return
        terminalreporter.section("flaky tests")
        for report in self._flaky:
            self._write(terminalreporter, "FLAKY", report)
        terminalreporter.write_line(
            "Each is a fault, in the product or in the test. Repeat it alone, and on a busy machine."
        )
        if len(self._flaky) > self._limit:
            terminalreporter.write_line(f"The run fails: {len(self._flaky)} are flaky, and {self._limit} may be.")

    @staticmethod
    def _write(terminalreporter: pytest.TerminalReporter, word: str, report: pytest.TestReport) -> None:
        terminalreporter.write_line(f"{word} {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"--- {title} ---")
            terminalreporter.write_line(text)
