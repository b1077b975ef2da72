// SPDX-License-Identifier: GPL-2.0-only
/*
 * A client that writes down how long the server takes for each request.
 *
 *	client SOCKET MS OUT KEYS SIZE
 *
 * It talks to Redis over one connection: every second request sets one of KEYS
 * values of SIZE bytes, the others get one.  Afterwards OUT.latency has the
 * microseconds of each request, and OUT.work their number and the seconds that
 * all of them took.
 */
#include <err.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench_util.h"

#define REQUESTS_MAX	(4 << 20)
#define VALUE_MAX	(1 << 20)


static const char *path;
static uint64_t deadline;
static unsigned long keys;
static size_t value_size;
static uint32_t us[REQUESTS_MAX];
static size_t done;

static int dial(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (fd < 0)
		err(1, "socket");
	if (strlen(path) >= sizeof(addr.sun_path))
		errx(1, "the path %s is too long", path);
	strcpy(addr.sun_path, path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
		err(1, "cannot connect to %s", path);
	return fd;
}

static void send_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t sent = write(fd, data, size);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			err(1, "the server does not read");
		data += sent;
		size -= sent;
	}
}

static void receive(int fd, char *data, size_t size)
{
	while (size) {
		ssize_t got = read(fd, data, size);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			err(1, "the server does not answer");
		if (!got)
			errx(1, "the server closed the connection");
		data += got;
		size -= got;
	}
}

static bool record(uint64_t start)
{
	uint64_t end = now_ns();

	if (done == REQUESTS_MAX)
		errx(1, "more than %d requests", REQUESTS_MAX);
	us[done++] = (end - start) / 1000;
	return end < deadline;
}

/* Reads a line without its CR LF. */
static void receive_line(int fd, char *line, size_t size)
{
	size_t used = 0;

	do {
		if (used == size)
			errx(1, "an answer is too long");
		receive(fd, &line[used++], 1);
	} while (used < 2 || line[used - 2] != '\r' || line[used - 1] != '\n');
	line[used - 2] = '\0';
}

static void redis(void)
{
	static char request[VALUE_MAX + 256], answer[VALUE_MAX + 2];
	unsigned int seed = 1;
	uint64_t start;
	int fd = dial();

	do {
		unsigned long key = rand_r(&seed) % keys;
		bool set = done % 2;
		char name[32], line[256];
		int used;

		snprintf(name, sizeof(name), "key:%lu", key);
		used = snprintf(request, sizeof(request),
				"*%d\r\n$3\r\n%s\r\n$%zu\r\n%s\r\n",
				set ? 3 : 2, set ? "SET" : "GET",
				strlen(name), name);
		if (set) {
			used += sprintf(request + used, "$%zu\r\n", value_size);
			memset(request + used, 'v', value_size);
			used += value_size;
			used += sprintf(request + used, "\r\n");
		}
		start = now_ns();
		send_all(fd, request, used);
		receive_line(fd, line, sizeof(line));
		if (set && strcmp(line, "+OK"))
			errx(1, "SET: %s", line);
		if (!set && line[0] != '$')
			errx(1, "GET: %s", line);
		if (!set && line[1] != '-') {
			size_t size = strtoul(line + 1, NULL, 10);

			if (size > VALUE_MAX)
				errx(1, "a value has %zu bytes", size);
			receive(fd, answer, size + 2);
		}
	} while (record(start));
	close(fd);
}

static FILE *create(const char *base, const char *suffix)
{
	char name[4096];
	FILE *file;

	snprintf(name, sizeof(name), "%s.%s", base, suffix);
	file = fopen(name, "w");
	if (!file)
		err(1, "cannot create %s", name);
	return file;
}

static void finish(FILE *file)
{
	if (ferror(file) | fclose(file))
		err(1, "cannot write the results");
}

int main(int argc, char **argv)
{
	uint64_t start = now_ns(), end;
	FILE *file;

	if (argc != 6)
		errx(2, "usage: client SOCKET MS OUT KEYS SIZE");
	path = argv[1];
	deadline = start + strtoull(argv[2], NULL, 10) * 1000000;
	keys = strtoul(argv[4], NULL, 10);
	value_size = strtoul(argv[5], NULL, 10);
	if (!keys || value_size > VALUE_MAX)
		errx(2, "no keys, or a value that is too large");
	redis();
	end = now_ns();

	file = create(argv[3], "latency");
	for (size_t i = 0; i < done; i++)
		fprintf(file, "%u\n", us[i]);
	finish(file);
	file = create(argv[3], "work");
	fprintf(file, "%zu %.3f\n", done, (end - start) / 1e9);
	finish(file);
	return 0;
}
