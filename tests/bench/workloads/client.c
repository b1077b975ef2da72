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

static uint32_t us[REQUESTS_MAX];
static size_t done;

static int dial(const char *path)
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

/* Returns the number of bytes. */
static int compose(char *request, bool set, unsigned long key, size_t size)
{
	char name[32];
	int used;

	snprintf(name, sizeof(name), "key:%lu", key);
	used = sprintf(request, "*%d\r\n$3\r\n%s\r\n$%zu\r\n%s\r\n",
		       set ? 3 : 2, set ? "SET" : "GET", strlen(name), name);
	if (!set)
		return used;
	used += sprintf(request + used, "$%zu\r\n", size);
	memset(request + used, 'v', size);
	used += size;
	return used + sprintf(request + used, "\r\n");
}

static void receive_answer(FILE *server, bool set)
{
	static char value[VALUE_MAX + 2];
	char line[256];
	long size;

	if (!fgets(line, sizeof(line), server))
		errx(1, "the server does not answer");
	if (set ? strcmp(line, "+OK\r\n") : line[0] != '$')
		errx(1, "%s: %s", set ? "SET" : "GET", line);
	/* -1: there is no such key. */
	size = set ? -1 : strtol(line + 1, NULL, 10);
	if (size > VALUE_MAX)
		errx(1, "a value has %ld bytes", size);
	if (size >= 0 && fread(value, size + 2, 1, server) != 1)
		errx(1, "the server closed the connection");
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
	static char request[VALUE_MAX + 256];
	__u64 start = now_ns(), from, now = start, end;
	unsigned long keys;
	unsigned int seed = 1;
	size_t size, i;
	FILE *file;
	int fd;

	if (argc != 6)
		errx(2, "usage: client SOCKET MS OUT KEYS SIZE");
	end = start + strtoull(argv[2], NULL, 10) * 1000000;
	keys = strtoul(argv[4], NULL, 10);
	size = strtoul(argv[5], NULL, 10);
	if (!keys || size > VALUE_MAX)
		errx(2, "no keys, or a value that is too large");
	fd = dial(argv[1]);
	file = fdopen(fd, "r");
	if (!file)
		err(1, "fdopen");
	do {
		bool set = done % 2;
		int used = compose(request, set, rand_r(&seed) % keys, size);

		from = now_ns();
		/* A socket that blocks takes all of it. */
		if (write(fd, request, used) != used)
			err(1, "the server does not read");
		receive_answer(file, set);
		now = now_ns();
		if (done == REQUESTS_MAX)
			errx(1, "more than %d requests", REQUESTS_MAX);
		us[done++] = (now - from) / 1000;
	} while (now < end);
	fclose(file);

	file = create(argv[3], "latency");
	for (i = 0; i < done; i++)
		fprintf(file, "%u\n", us[i]);
	finish(file);
	file = create(argv[3], "work");
	fprintf(file, "%zu %.3f\n", done, (now - start) / 1e9);
	finish(file);
	return 0;
}
