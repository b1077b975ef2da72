// SPDX-License-Identifier: GPL-2.0-only
/*
 * Common code of the guest programs of the benchmarks.
 */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_util.h"

#define TRACING		"/sys/kernel/tracing"

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
		die("--arms: no names given");
}

void set_arm(int arm)
{
	char text[32];

	if (arms[arm].value < 0)
		return;
	snprintf(text, sizeof(text), "%ld", arms[arm].value);
	if (write_text(bench_knob, text))
		die("%s: %s: %s; use --arms NAME on a kernel without it",
		    bench_knob, text, strerror(errno));
}

int arm_of_turn(long round, int turn)
{
	return round % 2 ? nr_arms - 1 - turn : turn;
}

/* --- samples */

static bool quiet;

void report_quietly(bool on)
{
	quiet = on;
}

void report(int arm, const char *unit, double value, const char *metric, ...)
{
	va_list args;

	if (quiet)
		return;
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

/* --- kernel counters */

void report_counters(const char *what, int arm, const struct counters *before)
{
	struct counters grown = counters_since(before);
	int i;

	for (i = 0; i < grown.n; i++)
		report(arm, "events", grown.list[i].value, "%s_vmstat_%s",
		       what, grown.list[i].name);
}

/* Each event has its own trace instance, so that filters can differ. */
static bool event_write(const struct event_count *event, const char *file,
			const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), TRACING "/instances/%s/%s", event->name,
		 file);
	return !write_text(path, text);
}

static bool event_open(const struct event_count *event)
{
	char path[128], filter[128], enable[128];

	snprintf(path, sizeof(path), TRACING "/instances/%s", event->name);
	snprintf(filter, sizeof(filter), "events/%s/filter", event->event);
	snprintf(enable, sizeof(enable), "events/%s/enable", event->event);
	return (!mkdir(path, 0700) || errno == EEXIST) &&
	       /* Only the count matters, so old events may be overwritten. */
	       event_write(event, "buffer_size_kb", "16") &&
	       /* Recording task names would cost two scheduler events. */
	       event_write(event, "trace_options", "norecord-cmd") &&
	       event_write(event, filter, event->filter) &&
	       event_write(event, enable, "1");
}

bool events_open(const struct event_count *events, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		if (!event_open(&events[i])) {
			events_close(events, n);
			return false;
		}
	}
	return true;
}

unsigned long events_counted(const struct event_count *event)
{
	unsigned long sum = 0, n;
	char path[160], line[128];
	long cpu;

	for (cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); cpu++) {
		FILE *f;

		snprintf(path, sizeof(path),
			 TRACING "/instances/%s/per_cpu/cpu%ld/stats",
			 event->name, cpu);
		f = fopen(path, "r");
		while (f && fgets(line, sizeof(line), f))
			if (sscanf(line, "entries: %lu", &n) == 1 ||
			    sscanf(line, "overrun: %lu", &n) == 1)
				sum += n;
		if (f)
			fclose(f);
	}
	return sum;
}

void events_close(const struct event_count *events, int n)
{
	char path[128];
	int i;

	for (i = 0; i < n; i++) {
		snprintf(path, sizeof(path), TRACING "/instances/%s",
			 events[i].name);
		rmdir(path);
	}
}

/* --- CPUs */

void pin_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("CPU %d: %s", cpu, strerror(errno));
}

/* --- processes */

void end_with(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		die("prctl: %s", strerror(errno));
	/* There is no signal if it has ended before that. */
	if (getppid() != parent)
		die("the process that started this one has ended");
}

/* --- command line */

static long parse_number(const struct bench_option *option, const char *text)
{
	long max = option->max ? option->max : OPTION_MAX;
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > max)
		die("--%s %s: must be a number from 1 to %ld", option->name,
		    text, max);
	return n;
}

int parse_options(int argc, char **argv, const struct bench_option *options,
		  int n, bool scenes, void (*usage)(FILE *to))
{
	struct option known[n + 3];
	int c, i, nr = 0;
	bool more;

	for (i = 0; i < n; i++)
		known[i] = (struct option){ options[i].name, required_argument,
					    NULL, 'o' };
	known[n] = (struct option){ "arms", required_argument, NULL, 'a' };
	known[n + 1] = (struct option){ "help", no_argument, NULL, 'h' };
	known[n + 2] = (struct option){ };

	while ((c = getopt_long(argc, argv, "", known, &nr)) != -1) {
		switch (c) {
		case 'o':
			if (options[nr].text)
				*options[nr].text = optarg;
			else
				*options[nr].number = parse_number(&options[nr],
								   optarg);
			break;
		case 'a':
			parse_arms(optarg);
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(1);
		}
	}
	more = optind < argc;
	if (!nr_arms || more != scenes) {
		usage(stderr);
		exit(1);
	}
	return optind;
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
