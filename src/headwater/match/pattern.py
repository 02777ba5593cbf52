"""Regular expressions from users: RE2 alone, which takes time linear in the text, whatever the pattern."""

from __future__ import annotations

from typing import Any

from headwater.errors import Invalid
from headwater.limits import PATTERN_BYTES_MAX, PATTERN_STEPS_MAX

HINT = "patterns are RE2: no look-around, no back-references"


def compile_pattern(pattern: str) -> Any:
    """Return a pattern of RE2 that may be used from any thread; raises Invalid with the code `bad_pattern`.

    Groups do not capture: a filter needs to know only whether there is a match.
    """
    import re2

    if len(pattern.encode(errors="replace")) > PATTERN_BYTES_MAX:
        raise _refused(f"a pattern may have at most {PATTERN_BYTES_MAX} bytes", "shorten it, or combine several")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else error
        raise _refused(f"the pattern {pattern!r} is not valid: {reason}", HINT) from error
    except UnicodeEncodeError as error:
        raise _refused(f"the pattern {pattern!r} is not valid: it is not text", HINT) from error
    if compiled.programsize > PATTERN_STEPS_MAX:
        raise _refused(
            f"the pattern {pattern!r} is too large: {compiled.programsize} steps of {PATTERN_STEPS_MAX}",
            "repeat fewer times: x{1,20} instead of x{1,999}",
        )
    return compiled


def exactly(text: str) -> str:
    """Return the pattern that matches this text alone."""
    import re2

    escaped: str = re2.escape(text)
    return escaped


def _refused(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, code="bad_pattern")
