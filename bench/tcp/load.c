/* Load on a server over TCP, at as little cost as possible: what is sent was prepared by whoever starts it, and comes
   in through standard input. load.py does the same, slower, where there is no compiler.

   load publish WIRE PORT COUNT HELLO CONNECTIONS WINDOW SIZE
       For each connection, input has HELLO bytes that begin it, and requests of SIZE bytes each, all as many. They are
       sent in turn, with WINDOW of them unanswered at a time, until COUNT of all connections together are answered: at
       least the windows.
   load deliver WIRE PORT COUNT HELLO EVERY
       Input has HELLO bytes, which have COUNT events sent, and the frame that acknowledges, whose last field is a seqNo.
       It is sent for EVERY so many events.

   WIRE is "frames" (those of Headwater) or "nats". Prints the seconds that it took. Ends with 1 if anything is refused,
   comes out of order, or not at all. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum { BUFFER_BYTES = 1 << 18, INPUT_BYTES_MAX = 1 << 26, READY_MAX = 256, PATIENCE_S = 30 };
enum kind { NOTHING, ANSWER, EVENT };

struct connection {
    int fd;
    const char *requests;
    size_t position; /* of the next request */
    char *buffer;
    size_t begin, end; /* of what was received and not looked at */
};

/* How to find one message: returns how many bytes it has, 0 if it is not whole. */
typedef size_t (*wire)(const char *data, size_t size, enum kind *kind);

static void fail(const char *why, const char *data, size_t size) {
    fprintf(stderr, "%s: ", why);
    fwrite(data, 1, size, stderr);
    fputc('\n', stderr);
    exit(1);
}

static size_t frame(const char *data, size_t size, enum kind *kind) {
    enum { TYPE_AT = 4 + 4 + 6 + 4, FIELDS_AT = 7 + 4 }; /* the second is counted from the end of the type */
    uint32_t length;
    if (size < 4 || (length = ntohl(*(const uint32_t *)data)) + 4 > size) return 0;
    const char *type = data + TYPE_AT;
    *kind = strcmp(type, "RECEV") == 0 ? EVENT : ANSWER;
    if (*kind == ANSWER && (!strstr(type, "RESPONSE") || memcmp(type + strlen(type) + 1 + FIELDS_AT, "\10ok\0\1", 5)))
        fail("refused", data, length + 4);
    return length + 4;
}

static size_t nats(const char *data, size_t size, enum kind *kind) {
    const char *end = memchr(data, '\n', size), *last = data;
    if (!end) return 0;
    size_t line = end + 1 - data;
    *kind = memcmp(data, "PONG", 4) == 0 ? ANSWER : NOTHING;
    if (data[0] == '-') fail("refused", data, line);
    if (data[0] != 'M') return line;
    int words = 1; /* MSG subject number [where acknowledgements go] bytes */
    for (const char *at = data; at < end; at++)
        if (at[0] == ' ' && at[1] != ' ') words++, last = at;
    size_t body = strtoul(last, NULL, 10);
    if (line + body + 2 > size) return 0;
    *kind = words == 5 ? EVENT : ANSWER;
    if (*kind == ANSWER && memmem(end, body, "\"error\"", 7)) fail("refused", data, line + body);
    return line + body + 2;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct connection dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    struct connection made = {.fd = socket(AF_INET, SOCK_STREAM, 0), .buffer = malloc(BUFFER_BYTES)};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(made.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(made.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(made.fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect", "", 0);
    return made;
}

/* Blocks if need be: a window of answers fits into the buffers of the system, so the server goes on reading. */
static void put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0) fail("the connection broke", "", 0);
        data += sent, size -= sent;
    }
}

static void receive(struct connection *from) {
    memmove(from->buffer, from->buffer + from->begin, from->end - from->begin);
    from->end -= from->begin, from->begin = 0;
    ssize_t got = recv(from->fd, from->buffer + from->end, BUFFER_BYTES - from->end, 0);
    if (got <= 0) fail(got ? "nothing comes any more" : "the server closed the connection", "", 0);
    from->end += got;
}

static size_t next(struct connection *from, wire wire, enum kind *kind) {
    size_t size = wire(from->buffer + from->begin, from->end - from->begin, kind);
    from->begin += size;
    return size;
}

/* Sends so many bytes of the requests of a connection, which go round. */
static void request(struct connection *to, size_t all, size_t bytes) {
    while (bytes) {
        size_t piece = bytes < all - to->position ? bytes : all - to->position;
        put(to->fd, to->requests + to->position, piece);
        to->position = (to->position + piece) % all;
        bytes -= piece;
    }
}

static double publish(wire wire, int port, long count, size_t hello, char *input, size_t input_bytes, char **rest) {
    int crowd = atoi(rest[0]), window = atoi(rest[1]), poll = epoll_create1(0);
    size_t size = atol(rest[2]), all = input_bytes / crowd - hello; /* bytes of a request, and of a connection's */
    struct connection *connections = calloc(crowd, sizeof *connections);
    for (int i = 0; i < crowd; i++) {
        struct connection *each = &connections[i];
        *each = dial(port);
        each->requests = input + i * (hello + all) + hello;
        put(each->fd, each->requests - hello, hello);
        for (enum kind kind = NOTHING; kind != ANSWER;)
            if (!next(each, wire, &kind)) receive(each);
        epoll_ctl(poll, EPOLL_CTL_ADD, each->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = each});
    }
    double began = now();
    long left = count; /* to be sent */
    for (int i = 0; i < crowd; left -= window, i++) request(&connections[i], all, window * size);
    while (count > 0) {
        struct epoll_event ready[READY_MAX];
        int found = epoll_wait(poll, ready, READY_MAX, PATIENCE_S * 1000);
        if (found <= 0) fail("nothing comes any more", "", 0);
        for (int i = 0; i < found; i++) {
            struct connection *each = ready[i].data.ptr;
            long answers = 0;
            receive(each);
            for (enum kind kind; next(each, wire, &kind);) answers += kind == ANSWER;
            count -= answers;
            if (answers > left) answers = left;
            left -= answers;
            request(each, all, answers * size);
        }
    }
    return now() - began;
}

static double deliver(wire wire, int port, long count, size_t hello, char *input, size_t input_bytes, char **rest) {
    long every = atol(rest[0]);
    struct connection from = dial(port);
    double began = now();
    put(from.fd, input, hello);
    for (int64_t seen = 0; seen < count;) {
        enum kind kind;
        size_t size = next(&from, wire, &kind);
        if (!size) receive(&from);
        if (!size || kind != EVENT) continue;
        const char *message = from.buffer + from.begin - size;
        if (wire == frame) {
            const char *place = memmem(message, size, "\x12seqNo", 7);
            if (!place || memcmp(place + 7, &seen, 8)) fail("out of order", message, size);
        }
        if (++seen % every) continue;
        if (wire == frame) {
            int64_t last = seen - 1;
            memcpy(input + input_bytes - 10, &last, 8); /* two documents end behind it */
            put(from.fd, input + hello, input_bytes - hello);
        } else {
            char place[1000], line[1024];
            sscanf(message, "MSG %*s %*s %999s", place);
            put(from.fd, line, sprintf(line, "PUB %s 0\r\n\r\n", place));
        }
    }
    return now() - began;
}

int main(int count, char **words) {
    if (count < 7) fail("usage", "see load.c", 10);
    char *input = malloc(INPUT_BYTES_MAX);
    size_t size = fread(input, 1, INPUT_BYTES_MAX, stdin);
    wire wire = strcmp(words[2], "nats") ? frame : nats;
    int port = atoi(words[3]), publishes = strcmp(words[1], "publish") == 0;
    long events = atol(words[4]), hello = atol(words[5]);
    printf("%f\n", (publishes ? publish : deliver)(wire, port, events, hello, input, size, words + 6));
}
