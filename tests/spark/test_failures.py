"""Why something failed on Spark, in one line."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from headwater import Invalid
from headwater.spark.failures import cause

IN_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 100, in main
  File "/home/ann/shop.py", line 12, in price
    return 1 / 0
  File "/venv/pyspark/shuffle.py", line 7, in add
ZeroDivisionError: division by zero

	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""
OURS = (
    'Traceback (most recent call last):\n  File "x.py", line 1, in f\nheadwater.errors.Invalid: no such field — cast it'
)
UNRESOLVED = "[UNRESOLVED_COLUMN] A column `x` cannot be resolved. SQLSTATE: 42703;\n'Project ['x]\n+- Relation"
STREAM = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. SQLSTATE: XXKST\n=== Streaming Query ==="
)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Invalid("it is wrong", hint="mend it"), "it is wrong — mend it"),
        (PythonException(IN_A_TASK), "ZeroDivisionError: division by zero (shop.py, line 12)"),
        (PythonException(OURS), "no such field — cast it"),
        (AnalysisException(UNRESOLVED), "[UNRESOLVED_COLUMN] A column `x` cannot be resolved."),
        (AnalysisException(STREAM), "Job aborted."),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_cause_is_told_without_stacks(error: Exception, told: str) -> None:
    assert cause(error) == told


def test_where_it_was_raised_is_told() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // int("0")
    assert cause(caught.value).startswith(
        "ZeroDivisionError: integer division or modulo by zero (test_failures.py, line "
    )
