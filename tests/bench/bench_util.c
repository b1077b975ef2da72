// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the guest programs of the benchmarks share.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_util.h"

void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fprintf(stderr, "%s: ", bench_name);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

/* --- arms */

struct arm arms[ARMS_MAX];
int nr_arms;

void parse_arms(char *list)
{
	char *name, *end;

	for (name = strtok(list, ","); name; name = strtok(NULL, ",")) {
		if (nr_arms == ARMS_MAX)
			die("--arms: at most %d", ARMS_MAX);
		arms[nr_arms].name = name;
		arms[nr_arms].value = strtol(name, &end, 10);
		if (*end)
			arms[nr_arms].value = -1;
		nr_arms++;
	}
	if (!nr_arms)
		die("--arms: names none");
}

int arm_of_turn(long round, int turn)
{
	return round % 2 ? nr_arms - 1 - turn : turn;
}

/* --- samples */

void report(int arm, const char *unit, double value, const char *metric, ...)
{
	va_list args;

	fputs("sample ", stdout);
	va_start(args, metric);
	vprintf(metric, args);
	va_end(args);
	printf(" %s %s %.9g\n", unit, arms[arm].name, value);
	fflush(stdout);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void sort_samples(double *samples, size_t n)
{
	qsort(samples, n, sizeof(*samples), compare);
}

double p99(const double *samples, size_t n)
{
	return samples[(n - 1) * 99 / 100];
}

/* --- command line */

long count_option(const char *option, const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > 1 << 20)
		die("--%s %s: must be a number above 0", option, text);
	return n;
}

int find_name(const char *what, const char *text, const char * const *names,
	      int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (!strcmp(text, names[i]))
			return i;
	die("no %s '%s'; see --help", what, text);
}
