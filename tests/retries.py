"""Failing tests are run again, those that pass then are listed as FLAKY, and more than a few of them fail the run.

A test that fails once and then passes is a fault, in the product or in the test. It must be seen and mended, and must
not keep right work from being merged. pytest-rerunfailures runs a test again. Its own limit ends the reruns, so that a
flaky test behind it would count as failed and its first traceback would be lost; hence the limit here.
"""

from __future__ import annotations

import socket

import pytest

__all__ = ["Retries"]


class Retries:
    """A plug-in for `--flaky-limit`.

    Args:
        limit: The largest number of tests that may fail first and pass later without failing the run.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: dict[str, pytest.TestReport] = {}  # the first one of each test that was run again
        self._failed: set[str] = set()  # tests that failed to the end

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Let pytest-rerunfailures talk to the workers of pytest-xdist without Nagle's algorithm, which lets each test
        wait 40 ms for the acknowledgement of the one before.
        """
        connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @pytest.hookimpl(trylast=True)  # when the tests have their tiers
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Run a failing system test again twice at most, since it depends on other processes; any other test once."""
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=2 if item.get_closest_marker("system") else 1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first failure of each test that is run again, and the names of those that fail to the end."""
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
        """List the flaky tests, each with its first traceback, and the first one of those that failed in the end."""
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
