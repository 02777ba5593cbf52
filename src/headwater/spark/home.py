"""Where Spark is, for the processes that it starts on this machine: a directory of links to the installed package.

Spark has its workers import PySpark from a zip file in its home, which keeps no compiled modules: each process compiles
them again, for about a second. In a home without that file they take the installed package, as this process does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headwater.spark import cache

_NEEDED = ("bin", "jars")  # of the package; the zip file is in another directory


@contextlib.contextmanager
def chosen() -> Iterator[None]:
    """Have a session that is started in this block use that home, if there is one."""
    found = home()
    if found is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(found)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]  # other programs that this process starts may have a Spark of their own


def home() -> Path | None:
    """A directory to use as SPARK_HOME, made if it is not there; None where the user's own Spark is to be used."""
    import pyspark

    package = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (package / "jars").is_dir():
        return None
    found = cache.place("spark", f"{package}\n{pyspark.__version__}")
    if found.exists():
        return found
    new = Path(tempfile.mkdtemp(prefix=f"{found.name}.", dir=found.parent))
    for name in _NEEDED:
        (new / name).symlink_to(package / name)
    try:
        new.rename(found)
    except OSError:  # another process was first
        shutil.rmtree(new)
    return found
