"""Logs: text or JSON lines, to a file that rolls and to standard error.

Only apps call setup(). It touches the loggers "skylark" and "asyncio" and never the root logger, so
that a program which uses the client keeps its own logging.

    text    2026-11-15 08:00:00.123 INFO nameserver.app - broker=broker-a registered topic=T
    JSON    {"ts":"2026-11-15T08:00:00.123Z","level":"info","logger":"nameserver.app","event":...}

Fields given as `extra={...}` follow the text as key=value, and are keys of their own in JSON. Names
come from peers, so every character that could forge a line or steer a terminal is escaped. What
repeats too often is counted instead, and the count is logged.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from types import TracebackType
from typing import Self, TextIO

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

FILE_BYTES_MAX = 100 * 1024 * 1024
FILES_MAX = 10
BURST_MAX = 100
BURST_WINDOW_MS = 10_000
_TEMPLATES_MAX = 1_024

_LOGGERS = ("skylark", "asyncio")
_PREFIX = "skylark."
_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def escaped(text: str) -> str:
    """Escape line ends, terminal sequences, and characters that reorder or hide others."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return ascii(char)[1:-1]


class TextFormatter(logging.Formatter):
    """One line per record; a traceback follows indented, so that it cannot pass for a record."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = (
            f"{stamp}.{_milliseconds(record):03d} {record.levelname} {_short_name(record)} - "
            f"{escaped(record.getMessage())}"
        )
        for key, value in _extras(record).items():
            line += f" {escaped(key)}={escaped(str(value))}"
        for trace_line in _trace(record):
            line += f"\n    {escaped(trace_line)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; everything outside ASCII is escaped by JSON itself."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # Only for those who ask for JSON.

        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "ts": f"{stamp}.{_milliseconds(record):03d}Z",
            "level": record.levelname.lower(),
            "logger": _short_name(record),
            "event": record.getMessage(),
        }
        for key, value in _extras(record).items():
            plain = isinstance(value, (bool, int, str)) or value is None
            fields.setdefault(key, value if plain else str(value))
        trace = _trace(record)
        if trace:
            fields["traceback"] = "\n".join(trace)
        return json.dumps(fields, separators=(",", ":"))


def _milliseconds(record: logging.LogRecord) -> int:
    return int(record.created * 1000) % 1000


def _short_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix(_PREFIX)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _RECORD_FIELDS}


def _trace(record: logging.LogRecord) -> list[str]:
    lines: list[str] = []
    if record.exc_info:
        lines += _TRACES.formatException(record.exc_info).splitlines()
    if record.stack_info:
        lines += record.stack_info.splitlines()
    return lines


_TRACES = logging.Formatter()


class RepeatLimit(logging.Filter):
    """Lets a template through BURST_MAX times in a window, then only counts it.

    The template is what is counted, not the text: a peer that varies a name or a port in each of a
    million messages fills no disk. Debug records always pass, for whoever asks for them wants them.
    """

    def __init__(self, *, burst_max: int = BURST_MAX, window_ms: int = BURST_WINDOW_MS) -> None:
        super().__init__()
        self.burst_max = burst_max
        self.window_ms = window_ms
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        now_ms = int(record.created * 1000)
        key = (record.name, record.levelno, str(record.msg))
        window = self._windows.get(key)
        # A wall clock that was set back must not silence a template until it has caught up.
        if window is None or not 0 <= now_ms - window.start_ms < self.window_ms:
            if window is None and len(self._windows) >= _TEMPLATES_MAX:
                return True
            window = self._windows[key] = _Window(now_ms)
        window.seen += 1
        return window.seen <= self.burst_max

    def take_finished(self, now_ms: int | None) -> list[logging.LogRecord]:
        """Forget the windows that are over, or all, and return records of what they held back."""
        finished = [
            (key, window)
            for key, window in self._windows.items()
            if now_ms is None or not 0 <= now_ms - window.start_ms < self.window_ms
        ]
        reports = []
        for key, window in finished:
            del self._windows[key]
            held_back = window.seen - self.burst_max
            if held_back > 0:
                name, level, template = key
                text = f"{held_back} more like this were not logged: {template}"
                # A percent sign in the template is text here: no arguments, no formatting.
                reports.append(logging.LogRecord(name, level, "", 0, text, None, None))
        return reports


class _Window:
    __slots__ = ("seen", "start_ms")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.seen = 0


class _Output(logging.Handler):
    """A handler that reports held-back repeats before the record that comes after them."""

    def __init__(self, formatter: logging.Formatter, limit: RepeatLimit) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._limit = limit
        self._checked_ms = 0

    def handle(self, record: logging.LogRecord) -> bool:
        with_lock = self.lock
        assert with_lock is not None
        with with_lock:
            now_ms = int(record.created * 1000)
            # A second's grain keeps the search through the windows out of the path of each record.
            if abs(now_ms - self._checked_ms) >= 1_000:
                self._checked_ms = now_ms
                for report in self._limit.take_finished(now_ms):
                    self.emit(report)
            if not self._limit.filter(record):
                return False
            self.emit(record)
            return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write_line(self.format(record))
        except Exception:
            # A full disk or a closed pipe must not take the server down with it.
            self.handleError(record)

    def write_line(self, line: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for report in self._limit.take_finished(None):
            self.emit(report)
        super().close()


class StreamOutput(_Output):
    """Writes to an open stream, which stays open."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter, limit: RepeatLimit) -> None:
        super().__init__(formatter, limit)
        self._stream = stream

    def write_line(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class FileOutput(_Output):
    """Appends to a file, and begins a new one when it is full.

    namesrv.log is the newest, namesrv.log.1 the one before; the oldest goes. Several processes may
    share the file: each line is one write in append mode, and a file that another process has
    renamed is opened anew. Only the owner can read it.
    """

    def __init__(
        self,
        path: str,
        formatter: logging.Formatter,
        limit: RepeatLimit,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        super().__init__(formatter, limit)
        self.path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._fd = -1
        self._open()

    def write_line(self, line: str) -> None:
        data = (line + "\n").encode("utf-8", "backslashreplace")
        self._follow_renames()
        if os.fstat(self._fd).st_size + len(data) > self._file_bytes_max:
            self._roll()
        os.write(self._fd, data)

    def close(self) -> None:
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

    def _follow_renames(self) -> None:
        if self._fd < 0:
            self._open()
            return
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            self._open()
            return
        if not os.path.samestat(there, os.fstat(self._fd)):
            self._open()

    def _roll(self) -> None:
        if os.fstat(self._fd).st_size == 0:
            return  # One line longer than a whole file: write it all the same.
        for number in range(self._files_max - 1, 0, -1):
            older = self.path if number == 1 else f"{self.path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        if self._files_max == 1:
            os.truncate(self.path, 0)
        self._open()


class Logs:
    """The logging of an app, from setup() until close()."""

    def __init__(self, outputs: list[_Output], path: str | None) -> None:
        self.path = path
        self._outputs = outputs
        self._saved = [
            (logger, logger.level, logger.propagate) for logger in map(logging.getLogger, _LOGGERS)
        ]
        for logger, _, _ in self._saved:
            logger.propagate = False
            for output in outputs:
                logger.addHandler(output)

    def set_level(self, level: str) -> None:
        """Change the least level that is logged: debug, info, warning or error."""
        logging.getLogger(_LOGGERS[0]).setLevel(LEVELS[level])
        # asyncio tells of every slow callback and selector at lower levels.
        logging.getLogger(_LOGGERS[1]).setLevel(max(LEVELS[level], logging.WARNING))

    def close(self) -> None:
        """Write what was held back, close the file, and leave the loggers as they were."""
        for logger, level, propagate in self._saved:
            for output in self._outputs:
                logger.removeHandler(output)
            logger.setLevel(level)
            logger.propagate = propagate
        for output in self._outputs:
            output.close()
        self._outputs = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def setup(
    *,
    log_format: str = "text",
    level: str = "info",
    log_dir: str | None = None,
    file_name: str = "skylark.log",
    stream: TextIO | None = None,
    file_bytes_max: int = FILE_BYTES_MAX,
    files_max: int = FILES_MAX,
) -> Logs:
    """Send the records of skylark and asyncio to a file in log_dir, or to a stream; raises OSError.

    log_dir None or "-" means the stream alone, which is standard error unless another is given.
    With a file, the stream still gets the errors: a failing start can be seen in the terminal.
    """
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    screen = StreamOutput(sys.stderr if stream is None else stream, formatter, RepeatLimit())
    outputs: list[_Output] = [screen]
    path = None
    if log_dir not in (None, "", "-"):
        directory = os.path.expanduser(str(log_dir))
        os.makedirs(directory, mode=0o700, exist_ok=True)
        path = os.path.join(directory, file_name)
        screen.setLevel(logging.ERROR)
        outputs.insert(
            0,
            FileOutput(
                path,
                formatter,
                RepeatLimit(),
                file_bytes_max=file_bytes_max,
                files_max=files_max,
            ),
        )
    logs = Logs(outputs, path)
    logs.set_level(level)
    return logs
