// SPDX-License-Identifier: GPL-2.0-only
/*
 * Common code of the measuring programs.
 */
#include <err.h>
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

/* --- arms */

#define ARMS_MAX	8

struct arm {
	const char *name;
	long value;		/* for the knob; -1: leave it alone */
};

static struct arm arms[ARMS_MAX];
static int nr_arms;
long rounds = 5;

static const struct bench *program;
static bool quiet;

/* Parses names and values, separated by commas. */
static void parse_arms(char *list)
{
	char *name, *end;

	for (name = strtok(list, ","); name; name = strtok(NULL, ",")) {
		if (nr_arms == ARMS_MAX)
			errx(1, "--arms: at most %d", ARMS_MAX);
		arms[nr_arms].name = name;
		arms[nr_arms].value = strtol(name, &end, 10);
		if (*end)
			arms[nr_arms].value = -1;
		nr_arms++;
	}
	if (!nr_arms)
		errx(1, "--arms: no names given");
}

static void set_arm(const struct arm *arm)
{
	const char *knob = program->knob;
	int ret = 0;

	if (program->prepare && arm->value < 0)
		program->prepare(arm->name);
	if (knob && arm->value >= 0)
		ret = vm_sysctl_write(knob, arm->value);
	if (ret)
		errx(1, "vm.%s: %ld: %s; use --arms NAME on a kernel without it",
		     knob, arm->value, strerror(-ret));
}

static void run_round(bool odd, void (*turn)(int arm, void *arg), void *arg)
{
	int i;

	for (i = 0; i < nr_arms; i++) {
		int arm = odd ? nr_arms - 1 - i : i;

		set_arm(&arms[arm]);
		turn(arm, arg);
	}
}

void run_turns(long n, void (*turn)(int arm, void *arg), void *arg)
{
	long round;

	for (round = 0; round < n; round++)
		run_round(round % 2, turn, arg);
}

void warm_up(void (*turn)(int arm, void *arg), void *arg)
{
	quiet = true;
	run_round(false, turn, arg);
	quiet = false;
}

/* --- samples */

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

/* --- CPUs and threads */

void pin_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		err(1, "CPU %d", cpu);
}

void start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
	if (pthread_create(thread, NULL, run, arg))
		errx(1, "cannot start a thread");
}

/* --- processes, memory */

void end_with(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		err(1, "prctl");
	/* There is no signal if it has ended before that. */
	if (getppid() != parent)
		errx(1, "the process that started this one has ended");
}

bool huge_pool(long pages)
{
	long n = 0;

	return !vm_sysctl_write("nr_hugepages", pages) &&
	       !vm_sysctl_read("nr_hugepages", &n) && n >= pages;
}

/* --- command line */

static const struct bench_option rounds_option = {
	"rounds", "how often each arm has its turn", .number = &rounds,
};

static void usage(FILE *to, const struct bench *bench)
{
	const struct bench_option *option;
	const struct bench_scene *scene;

	fprintf(to, "Usage: %s --arms ARM,... [--OPTION VALUE]... %s...\n",
		program_invocation_short_name,
		bench->scenes ? "SCENE" : "all|TEST");
	if (bench->knob)
		fprintf(to, "  %-18s  a value of vm.%s, or a name: nothing is set\n",
			"ARM", bench->knob);
	else
		fprintf(to, "  %-18s  a name for the switches as they are\n",
			"ARM");
	fprintf(to, "  --%-16s  %s\n", rounds_option.name, rounds_option.about);
	for (option = bench->options; option->name; option++)
		fprintf(to, "  --%-16s  %s\n", option->name, option->about);
	for (scene = bench->scenes; scene && scene->name; scene++)
		fprintf(to, "  %-18s  %s\n", scene->name, scene->about);
	if (bench->help)
		bench->help(to);
}

static void parse_option(const struct bench_option *option, const char *text)
{
	long max = option->max ? option->max : OPTION_MAX, n;
	char *end;

	if (option->text) {
		*option->text = text;
		return;
	}
	n = strtol(text, &end, 10);
	if (end == text || *end || n < 1 || n > max)
		errx(1, "--%s %s: must be a number from 1 to %ld",
		     option->name, text, max);
	*option->number = n;
}

int bench_parse(int argc, char **argv, const struct bench *bench)
{
	static const struct option common[] = {
		{ "arms", required_argument, NULL, 'a' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
	};
	struct option known[32] = { };
	size_t i, n = 0;
	int c, nr = 0;

	for (; bench->options[n].name; n++)
		known[n] = (struct option){ bench->options[n].name,
					    required_argument, NULL, 'o' };
	for (i = 0; i < ARRAY_SIZE(common); i++)
		known[n + i] = common[i];
	while ((c = getopt_long(argc, argv, "", known, &nr)) != -1) {
		switch (c) {
		case 'o':
			parse_option(&bench->options[nr], optarg);
			break;
		case 'r':
			parse_option(&rounds_option, optarg);
			break;
		case 'a':
			parse_arms(optarg);
			break;
		case 'h':
			usage(stdout, bench);
			exit(0);
		default:
			usage(stderr, bench);
			exit(1);
		}
	}
	if (!nr_arms || optind == argc) {
		usage(stderr, bench);
		exit(1);
	}
	program = bench;
	return optind;
}

int find_in_array(const char *what, const char *text, const void *array, int n,
		  size_t size)
{
	const char *element = array;
	int i;

	for (i = 0; i < n; i++, element += size)
		if (!strcmp(text, *(const char * const *)element))
			return i;
	errx(1, "no %s '%s'; see --help", what, text);
}

static void run_scene(const struct bench_scene *scene)
{
	if (scene->run) {
		scene->run(scene->arg);
		return;
	}
	warm_up(scene->turn, scene->arg);
	run_turns(rounds, scene->turn, scene->arg);
}

void bench_scenes(int argc, char **argv, int first, const struct bench *bench)
{
	const struct bench_scene *scene;
	int n = 0, i;

	while (bench->scenes[n].name)
		n++;
	/* Check all names first, to detect a typo early. */
	for (i = first; i < argc; i++)
		find_in_array("scene", argv[i], bench->scenes, n,
			      sizeof(*bench->scenes));
	for (scene = bench->scenes; scene->name; scene++)
		for (i = first; i < argc; i++)
			if (!strcmp(argv[i], scene->name))
				run_scene(scene);
}
