/*
 * loadgen: asks a server the same questions over and over, and counts and checks the answers.
 *
 *   loadgen HOST PORT CONNECTIONS DEPTH SECONDS FRAMES CODE
 *
 * Every connection keeps DEPTH questions under way. FRAMES holds them encoded, one after the other:
 *
 *   size of the frame (4, big-endian) | place of the opaque in it (4) | the frame
 *
 * The opaque stands in the JSON header as nine digits, which are overwritten before each use: 10^8 plus a
 * sequence number whose remainder by DEPTH is the question's slot. An answer must name a slot's own number
 * and have the response code CODE. All questions that one read makes room for go out in one write.
 *
 * One line of JSON on standard output: seconds, answers, wrong (answers with another code or opaque), bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OPAQUE_BASE 100000000u
#define SEQUENCE_MAX 800000000u
#define READ_BYTES (1 << 20)

struct question {
    uint32_t size, opaque_at;
    const uint8_t *frame;
};

struct connection {
    int fd;
    uint32_t *slots;     /* the sequence number under way in each slot, 0 when free */
    uint32_t round;      /* so that numbers do not come again soon */
    uint32_t under_way;
    uint8_t *in, *out;
    size_t in_used, in_room, out_used, out_done, out_room;
};

static struct question *questions;
static size_t question_count, next_question;
static uint64_t answers, wrong, bytes;
static long wanted_code;
static int depth, stopping;

static void fail(const char *what)
{
    fprintf(stderr, "loadgen: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint32_t word(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc((size_t)size);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size)
        fail(path);
    fclose(file);
    size_t room = 1024;
    questions = malloc(room * sizeof *questions);
    for (long at = 0; at + 8 <= size;) {
        uint32_t length = word(data + at), opaque_at = word(data + at + 4);
        if (at + 8 + (long)length > size || opaque_at + 9 > length) {
            errno = 0;
            fail("the file of frames is cut short");
        }
        if (question_count == room)
            questions = realloc(questions, (room *= 2) * sizeof *questions);
        questions[question_count++] = (struct question){length, opaque_at, data + at + 8};
        at += 8 + (long)length;
    }
    if (!question_count) {
        errno = 0;
        fail("no frames");
    }
}

static void ask(struct connection *c, int slot)
{
    const struct question *q = &questions[next_question];
    next_question = (next_question + 1) % question_count;
    if (c->out_used + q->size > c->out_room) {
        c->out_room = (c->out_used + q->size) * 2;
        c->out = realloc(c->out, c->out_room);
        if (!c->out)
            fail("memory");
    }
    uint32_t sequence = (c->round++ % (SEQUENCE_MAX / (uint32_t)depth)) * (uint32_t)depth + (uint32_t)slot;
    uint8_t *frame = c->out + c->out_used;
    memcpy(frame, q->frame, q->size);
    uint32_t number = OPAQUE_BASE + sequence;
    for (int digit = 8; digit >= 0; digit--, number /= 10)
        frame[q->opaque_at + (uint32_t)digit] = (uint8_t)('0' + number % 10);
    c->slots[slot] = OPAQUE_BASE + sequence;
    c->out_used += q->size;
    c->under_way++;
}

static int flush(struct connection *c)
{
    while (c->out_done < c->out_used) {
        ssize_t n = write(c->fd, c->out + c->out_done, c->out_used - c->out_done);
        if (n < 0) {
            if (errno == EAGAIN)
                return 0;
            fail("write");
        }
        c->out_done += (size_t)n;
    }
    c->out_done = c->out_used = 0;
    return 1;
}

static long member(const uint8_t *header, size_t size, const char *name)
{
    const uint8_t *found = memmem(header, size, name, strlen(name));
    return found ? strtol((const char *)found + strlen(name), NULL, 10) : -1;
}

static void answered(struct connection *c, const uint8_t *frame, size_t size)
{
    /* A JSON header has its closing brace, at which strtol stops before the frame's end. */
    size_t header = word(frame + 4) & 0xffffff;
    if (header + 8 > size || frame[4] != 0) {
        errno = 0;
        fail("an answer without a JSON header");
    }
    long opaque = member(frame + 8, header, "\"opaque\":");
    long code = member(frame + 8, header, "\"code\":");
    int slot = opaque < (long)OPAQUE_BASE ? -1 : (int)((opaque - (long)OPAQUE_BASE) % depth);
    if (slot < 0 || c->slots[slot] != (uint32_t)opaque) {
        errno = 0;
        fail("an answer to no question");
    }
    answers++;
    wrong += code != wanted_code;
    bytes += size;
    c->slots[slot] = 0;
    c->under_way--;
    if (!stopping)
        ask(c, slot);
}

static void readable(struct connection *c)
{
    ssize_t n = read(c->fd, c->in + c->in_used, c->in_room - c->in_used);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        fail("the server hung up");
    c->in_used += (size_t)n;
    size_t at = 0;
    while (c->in_used - at >= 8) {
        size_t size = 4 + (size_t)word(c->in + at);
        if (size > c->in_room) {
            errno = 0;
            fail("an answer larger than the buffer");
        }
        if (c->in_used - at < size)
            break;
        answered(c, c->in + at, size);
        at += size;
    }
    memmove(c->in, c->in + at, c->in_used - at);
    c->in_used -= at;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: loadgen HOST PORT CONNECTIONS DEPTH SECONDS FRAMES CODE\n");
        return 2;
    }
    int count = atoi(argv[3]);
    depth = atoi(argv[4]);
    double seconds = atof(argv[5]);
    load(argv[6]);
    wanted_code = atol(argv[7]);

    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        fail("HOST must be an IPv4 address");
    int poll = epoll_create1(0);
    struct connection *connections = calloc((size_t)count, sizeof *connections);
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
            fail("connect");
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->in_room = READ_BYTES;
        c->in = malloc(c->in_room);
        c->slots = calloc((size_t)depth, sizeof *c->slots);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }

    double start = now();
    for (int i = 0; i < count; i++) {
        for (int slot = 0; slot < depth; slot++)
            ask(&connections[i], slot);
        flush(&connections[i]);
    }
    uint32_t under_way = 1;
    while (under_way) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 10000);
        if (ready == 0) {
            errno = 0;
            fail("no answer for 10 s");
        }
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                readable(c);
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
            if (!flush(c))
                event.events |= EPOLLOUT;
            if (event.events & EPOLLOUT || events[i].events & EPOLLOUT)
                epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &event);
        }
        stopping = now() - start >= seconds;
        if (stopping) {
            under_way = 0;
            for (int i = 0; i < count; i++)
                under_way += connections[i].under_way;
        }
    }
    printf("{\"seconds\": %.6f, \"answers\": %lu, \"wrong\": %lu, \"bytes\": %lu}\n", now() - start,
           (unsigned long)answers, (unsigned long)wrong, (unsigned long)bytes);
    return 0;
}
