# cython: language_level=3, boundscheck=True, wraparound=False
"""The compiled twin of sync_thread.py: a thread that runs without the interpreter."""

import asyncio
import os
import threading

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t

cdef extern from "unistd.h" nogil:
    int fdatasync(int descriptor)
    ssize_t read(int descriptor, void *buffer, size_t count)
    ssize_t write(int descriptor, const void *buffer, size_t count)

cdef enum:
    DESCRIPTORS_MAX = 64


cdef class SyncThread:
    """Syncs descriptors beside the loop that it was made on."""

    # Written by the loop before it rings, by the thread before it answers: the eventfds order them.
    cdef int _descriptors[DESCRIPTORS_MAX]
    cdef int _count  # 0 asks the thread to end.
    cdef int _error
    cdef int _failed
    cdef int _bell
    cdef int _answer
    cdef bint _is_busy
    cdef object _on_done
    cdef object _loop
    cdef object _thread

    def __init__(self, on_done):
        self._on_done = on_done
        self._is_busy = False
        self._loop = asyncio.get_running_loop()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._answer = os.eventfd(0, os.EFD_CLOEXEC)
        self._loop.add_reader(self._answer, self._done)
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def submit(self, descriptors):
        """Sync these; on_done is called on the loop when they are, or one has failed."""
        cdef int at = 0
        assert not self._is_busy
        assert self._thread is not None
        assert 0 < len(descriptors) <= DESCRIPTORS_MAX
        for descriptor in descriptors:
            self._descriptors[at] = descriptor
            at += 1
        self._count = at
        self._is_busy = True
        os.eventfd_write(self._bell, 1)

    def _done(self):
        os.eventfd_read(self._answer)
        self._is_busy = False
        self._on_done(self._error, self._failed)

    def _run(self):
        with nogil:
            self._serve()

    cdef void _serve(self) noexcept nogil:
        cdef uint64_t count
        cdef uint64_t one = 1
        cdef int at
        while True:
            while read(self._bell, &count, sizeof(count)) < 0:
                if errno != EINTR:
                    return
            if self._count == 0:
                return
            self._error = 0
            self._failed = -1
            for at in range(self._count):
                while fdatasync(self._descriptors[at]) != 0:
                    if errno == EINTR:  # Interrupted before it began: as os.fdatasync, again.
                        continue
                    self._error = errno if errno != 0 else -1
                    self._failed = self._descriptors[at]
                    break
                if self._error != 0:
                    break
            write(self._answer, &one, sizeof(one))

    def close(self):
        """Wait for the sync under way, if any, and end the thread; on_done is not called again."""
        if self._thread is None:
            return
        self._loop.remove_reader(self._answer)
        if self._is_busy:
            os.eventfd_read(self._answer)  # Blocks until the sync has ended.
            self._is_busy = False
        self._count = 0
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._thread = None
        os.close(self._bell)
        os.close(self._answer)
