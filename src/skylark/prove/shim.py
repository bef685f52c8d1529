"""A shim under a broker: its wall clock jumps, its syncs fail, when the run says so.

A few lines of C, compiled where there is a compiler and put in front of the C library with
LD_PRELOAD; the broker itself knows nothing of it. Two numbers in a mapped file steer it:

    at   size  field
    0    8     milliseconds to add to the wall clock; the monotonic clock stays as it is
    8    8     not 0: fsync, fdatasync and msync fail with EIO
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_STATE: Final = struct.Struct("=qq")
_VARIABLE: Final = "PROVE_SHIM_STATE"
_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *state;

__attribute__((constructor)) static void open_state(void) {
    const char *path = getenv("PROVE_SHIM_STATE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) state = at;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (!result && state && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_nsec + (state[0] % 1000) * 1000000;
        now->tv_sec += state[0] / 1000;
        if (ns < 0) { ns += 1000000000; now->tv_sec--; }
        if (ns >= 1000000000) { ns -= 1000000000; now->tv_sec++; }
        now->tv_nsec = ns;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at) *at = exact.tv_sec;
    return exact.tv_sec;
}

#define FAILING(name, parameters, arguments)                          \
    int name parameters {                                             \
        static int (*real) parameters;                                \
        if (!real) real = dlsym(RTLD_NEXT, #name);                    \
        if (state && state[1]) { errno = EIO; return -1; }            \
        return real arguments;                                        \
    }
FAILING(fsync, (int file), (file))
FAILING(fdatasync, (int file), (file))
FAILING(msync, (void *at, size_t size, int flags), (at, size, flags))
"""


class Shim:
    """The compiled library of one run."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "shim.so"

    @staticmethod
    def missing() -> str | None:
        """Why there can be none, or None."""
        return None if _compiler() else "no C compiler is installed for the shim"

    def build(self) -> None:
        """Compile it; raises CalledProcessError."""
        compiler = _compiler()
        assert compiler is not None
        source = self.library.with_suffix(".c")
        source.write_text(_SOURCE)
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(self.library), str(source)]
        subprocess.run([*command, "-ldl"], check=True, capture_output=True)

    def environment(self, state: ShimState) -> dict[str, str]:
        """The variables that put it under a process."""
        return {"LD_PRELOAD": str(self.library), _VARIABLE: str(state.path)}


class ShimState:
    """What the shim does to one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset_ms = 0
        self._fails = 0
        path.write_bytes(_STATE.pack(0, 0))

    def jump(self, offset_ms: int) -> None:
        """Move the wall clock; 0 puts it right."""
        self._offset_ms = offset_ms
        self._write()

    def fail_syncs(self, fails: bool) -> None:
        """Let syncs fail, or no longer."""
        self._fails = int(fails)
        self._write()

    def _write(self) -> None:
        # In place: the process has this very file mapped.
        with self.path.open("r+b") as file:
            file.write(_STATE.pack(self._offset_ms, self._fails))


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
