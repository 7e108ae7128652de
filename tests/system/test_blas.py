"""Tests of the choice of OpenBLAS' kernels and timeouts, in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from aioflow_numpy import blas


def run_python(code: str, **environment: str) -> dict[str, object]:
    """Run the code in a new interpreter without NumPy or a core type, and return the JSON that it prints."""
    clean = {k: v for k, v in os.environ.items() if k not in (blas.VARIABLE, blas.TIMEOUT_VARIABLE)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


REPORT = """
import json, os, sys
from aioflow_numpy import blas
early = "numpy" in sys.modules
{before}
choice = blas.choose_core_type()
import numpy
running = blas.loaded_blas()
print(json.dumps({{"early": early, "set": os.environ.get("OPENBLAS_CORETYPE"), "by": choice.set_by,
                  "running": running[0].core_type if running else None,
                  "threads": running[0].threads if running else None, "text": blas.describe()}}))
"""


def test_importing_the_module_does_not_load_numpy() -> None:
    assert run_python(REPORT.format(before=""))["early"] is False


def test_core_type_set_in_the_process_reaches_openblas() -> None:
    """Choose Nehalem: it runs on every x86-64, and OpenBLAS detects no processor of the last fifteen years as it."""
    rule = 'blas.decide = lambda *a, **k: blas.CoreTypeChoice("Nehalem", "a test", "aioflow")'
    answer = run_python(REPORT.format(before=rule))
    if answer["running"] is None:
        pytest.skip("this NumPy has no OpenBLAS")
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("core types of x86-64")
    assert answer["set"] == "Nehalem"
    assert answer["running"] == "Nehalem"


def test_core_type_set_by_the_user_is_kept() -> None:
    answer = run_python(REPORT.format(before=""), OPENBLAS_CORETYPE="Sandybridge")
    if answer["running"] is None or sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("needs OpenBLAS on Linux x86-64")
    assert (answer["set"], answer["by"], answer["running"]) == ("Sandybridge", "user", "Sandybridge")


def test_chosen_kernels_run_on_this_machine() -> None:
    """Multiply with the chosen kernels. Wrong ones would end the process with an illegal instruction."""
    code = REPORT.format(before="") + "\nnumpy.ones((300, 300)) @ numpy.ones((300, 300), 'f4')"
    answer = run_python(code)
    assert isinstance(answer["text"], dict)
    assert "core type chosen" in answer["text"]
    if answer["by"] == "aioflow" and answer["running"] is not None:
        assert answer["running"] == answer["set"]


def test_loaded_blas_is_empty_before_numpy_is_loaded() -> None:
    code = "import json; from aioflow_numpy import blas; print(json.dumps({'found': blas.loaded_blas()}))"
    assert run_python(code) == {"found": []}


TIMEOUT = """
import json, os, sys
{before}
from aioflow_numpy import blas
blas.choose_core_type()
print(json.dumps({{"set": os.environ.get("OPENBLAS_THREAD_TIMEOUT"), "by": blas.chosen_timeout().set_by,
                  "text": blas.describe()["idle threads spin for"]}}))
"""


def test_hook_sets_the_timeout_and_the_doctor_reports_it() -> None:
    answer = run_python(TIMEOUT.format(before=""))
    assert (answer["set"], answer["by"]) == ("16", "aioflow")
    assert str(answer["text"]).startswith("2**16 cycles by aioflow: ")


def test_hook_keeps_the_timeout_of_the_user() -> None:
    answer = run_python(TIMEOUT.format(before=""), OPENBLAS_THREAD_TIMEOUT="20")
    assert (answer["set"], answer["by"]) == ("20", "user")
    assert str(answer["text"]).startswith("2**20 cycles by user: ")


def test_hook_sets_no_timeout_after_numpy_is_loaded() -> None:
    answer = run_python(TIMEOUT.format(before="import numpy"))
    assert (answer["set"], answer["by"]) == (None, "openblas")
    assert str(answer["text"]).startswith("automatic by openblas: ")


def test_idle_threads_do_not_spin() -> None:
    """Measure the processor time of a sleeping process, right after a product on several threads."""
    code = """
        import json, time
        import aioflow
        import numpy
        from aioflow_numpy import blas
        a = numpy.ones((512, 512), "f4")
        spent = []
        for _ in range(7):
            a @ a
            before = time.process_time()
            time.sleep(0.05)
            spent.append(time.process_time() - before)
        running = blas.loaded_blas()
        print(json.dumps({"spent": min(spent), "threads": running[0].threads if running else 0}))
    """
    answer = run_python(code)
    if answer["threads"] in (0, 1):
        pytest.skip("needs OpenBLAS with several threads")
    assert isinstance(answer["spent"], float)
    assert answer["spent"] < 0.005  # 0.015 to 0.03 with OpenBLAS's own timeout
