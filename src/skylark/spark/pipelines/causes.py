"""Causes: what went wrong in Spark, as one line and one of our errors.

Spark reports a failure of a Python worker as a page: its own sentence, our traceback, its stack.
The line that helps is the last one of the traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import ConfigError, SkylarkError, TransportError
from ...logs import escaped

_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Loss): .+")
_OURS = re.compile(r"^(?:skylark\.[\w.]*?)(?P<kind>\w+): (?P<text>.+)")
_QUERY = re.compile(r"Query \[id = [^\]]*\] terminated with exception: ")
_JAVA_PREFIX = re.compile(r"^(?:[a-z_]\w*\.)+(?P<name>[A-Z]\w*): ")
_JAVA_ROOT = re.compile(r"^(?:com|io|java|javax|jdk|net|org|scala|sun)\.")
_PYSPARK_PREFIX = re.compile(r"^pyspark\.(?:\w+\.)*\w+: ")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)")
_RETURN_MESSAGE = re.compile(r"\s*Return Message: .*")
_SAYS_NOTHING = re.compile(
    r"Error while instantiating |Job aborted|Writing job aborted|Exception thrown in awaitResult"
)
_CAUSED_BY = "Caused by: "
JAVA_IS_GONE = "Spark's Java has ended: it was killed, or had no memory left"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}\s*\.?")
_POSITION = re.compile(r"\.?; line (\d+) pos (\d+)")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_WRONG_USE = frozenset({"ConfigError", "InvalidName", "InvalidExpression", "InvalidSetting"})
_UNREACHABLE = frozenset({"TransportError", "ConnectFailed", "ConnectionLost", "CallTimeout"})
_LINE_CHARS_MAX = 600


def one_line(error: BaseException) -> str:
    """The line of Spark's report that says what went wrong."""
    return _found(error)[1]


def as_error(error: BaseException, where: str = "") -> SkylarkError:
    """One of our errors in place of Spark's; its class decides the exit code."""
    if isinstance(error, SkylarkError) and not where:
        return error
    kind, text = _found(error)
    if kind in _UNREACHABLE:
        address, _, problem = text.partition(": ")
        return TransportError(f"{where}: {address}" if where else address, problem)
    text = f"{where}: {text}" if where else text
    if kind in _WRONG_USE or is_about_a_query(error):
        return ConfigError(text)
    return SkylarkError(text)


def _found(error: BaseException) -> tuple[str, str]:
    kind, text = _read(error)
    return kind, escaped(text)  # It may quote what somebody has sent.


def is_java_gone(error: BaseException) -> bool:
    """Whether Spark's Java, which is a process of its own, does not answer any more."""
    if isinstance(error, SkylarkError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    return "Py4JNetworkError" in names or isinstance(error, ConnectionError)


def _read(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SkylarkError):
        return type(error).__name__, str(error)
    if is_java_gone(error):
        return "Error", f"{JAVA_IS_GONE}; go on with the same command"
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("An error occurred while calling ")]
    # The last of ours: what was raised from something else comes after it.
    for line in reversed(lines):
        if ours := _OURS.match(line):
            return ours["kind"], ours["text"][:_LINE_CHARS_MAX]
    for number, line in reversed(list(enumerate(lines))):
        if "Py4JJavaError: " in line and number + 1 < len(lines):
            return "Error", _of_java(lines[number + 1 :])
        if _PYTHON_ERROR.match(line) and "Py4J" not in line and not _JAVA_ROOT.match(line):
            return "Error", _plain(line)
    if tracebacks := _TRACEBACK.findall(str(error)):  # Classes that are not called errors.
        return "Error", _plain(tracebacks[-1])
    kind = type(error).__name__
    return kind, _of_java(lines) if lines else kind


def _of_java(lines: Sequence[str]) -> str:
    """What Java says: its first line, or where that says nothing the cause that it names last."""
    first = _plain(_RETURN_MESSAGE.sub("", _QUERY.sub("", lines[0])))
    if _SAYS_NOTHING.match(first):
        causes = [line for line in lines if line.startswith(_CAUSED_BY)]
        return _plain(causes[-1].removeprefix(_CAUSED_BY)) if causes else first
    return first


def _plain(line: str) -> str:
    """A line without classes, conditions and codes."""
    line = _CONDITION.sub("", _SQLSTATE.sub("", line))
    line = _PYSPARK_PREFIX.sub("", line)
    if _JAVA_ROOT.match(line):
        line = _JAVA_PREFIX.sub("", line)
    line = _POSITION.sub(r" (line \1 of the query, position \2)", _CONDITION.sub("", line))
    return line.rstrip(";")[:_LINE_CHARS_MAX]


def is_about_a_query(error: BaseException) -> bool:
    """Whether Spark says that a query or its options make no sense, before anything ran."""
    if "[DATA_SOURCE_NOT_FOUND]" in str(error):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"AnalysisException", "ParseException", "IllegalArgumentException"})


def is_about_a_setting(error: BaseException) -> bool:
    """Whether Spark refuses a setting, which it does wherever it first looks at it."""
    return "[INVALID_CONF_VALUE." in str(error)


def explained(error: BaseException, names: list[str]) -> str:
    """The line for a query that cannot be analysed; a table that is not there, in our words."""
    if _condition(error).startswith("TABLE_OR_VIEW_NOT_FOUND"):
        parameters = getattr(error, "getMessageParameters", lambda: None)() or {}
        name = str(parameters.get("relationName", "?")).strip("`")
        return f"there is no source or step {name} above; the pipeline has {', '.join(names)}"
    return one_line(error)


def _condition(error: BaseException) -> str:
    return getattr(error, "getCondition", lambda: None)() or ""
