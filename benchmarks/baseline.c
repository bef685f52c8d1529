/* What the machine can do at best, for the store's figures to stand beside.
 *
 *   baseline memcpy PATH SIZE COUNT          copies into a mapped, preallocated file
 *   baseline write  PATH SIZE COUNT BATCH    write(2) of BATCH pieces at a time
 *   baseline sync   PATH SIZE COUNT          a piece, then fdatasync, again and again
 *   baseline read   PATH                     read(2) of a whole file
 *
 * Prints seconds and CPU seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: baseline memcpy|write|sync|read PATH [SIZE COUNT [BATCH]]\n");
        return 2;
    }
    const char *mode = argv[1], *path = argv[2];
    size_t size = argc > 3 ? strtoull(argv[3], NULL, 10) : 1 << 20;
    size_t count = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    size_t batch = argc > 5 ? strtoull(argv[5], NULL, 10) : 1;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        fail(path);
    char *piece = malloc(size * batch);
    if (!piece)
        fail("malloc");
    memset(piece, 'x', size * batch);
    char *map = NULL;
    if (strcmp(mode, "read") && posix_fallocate(fd, 0, size * count))
        fail("posix_fallocate");
    if (!strcmp(mode, "memcpy")) {
        map = mmap(NULL, size * count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            fail("mmap");
    }
    double begin = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    if (map) {
        for (size_t i = 0; i < count; i++)
            memcpy(map + i * size, piece, size);
    } else if (!strcmp(mode, "write")) {
        for (size_t i = 0; i < count; i += batch)
            if (write(fd, piece, size * batch) != (ssize_t)(size * batch))
                fail("write");
    } else if (!strcmp(mode, "sync")) {
        for (size_t i = 0; i < count; i++)
            if (write(fd, piece, size) != (ssize_t)size || fdatasync(fd))
                fail("fdatasync");
    } else {
        while (read(fd, piece, size) > 0)
            count++;
    }
    printf("%.9f %.9f\n", now(CLOCK_MONOTONIC) - begin, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}
