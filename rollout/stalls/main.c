// SPDX-License-Identifier: GPL-2.0-only
/*
 * faultline-stalls: the waits for locks of the memory manager on this host, who
 * causes them, and the switch that removes them; see faultline-stalls(8).
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

static const char usage[] =
	"usage: " PROGRAM " [OPTION...]\n"
	"       " PROGRAM " show FILE [--json] [--textfile FILE] [--anonymous] [--record OTHER]\n"
	"\n"
	"Watch the waits for mmap_lock, the locks of mappings and those of hugetlb, and say\n"
	"which program and which call held the lock, and which switch of Faultline kernels\n"
	"removes that.  It runs on any kernel from 5.19 on, as root, and changes nothing.\n"
	"\n"
	"  --seconds N      how long to watch (default: 60)\n"
	"  --pid PID        only waits of this process, or for it\n"
	"  --cgroup GROUP   only waits in this control group, a folder below /sys/fs/cgroup\n"
	"  --min TIME       the shortest wait to count, such as 1ms, 200us, 2s (default: 1ms)\n"
	"  --json           JSON on standard output, not a table\n"
	"  --textfile FILE  also metrics for node_exporter; the name of FILE ends in .prom\n"
	"  --record FILE    also a record, for '" PROGRAM " show FILE' without root\n"
	"  --anonymous      numbers for the names of programs\n"
	"  --verbose        what libbpf says\n";

static void __attribute__((noreturn)) wrong_usage(const char *format, ...)
{
	va_list arguments;

	fputs(PROGRAM ": error: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputs("; see " PROGRAM " --help\n", stderr);
	exit(2);
}

static double number(const char *text, const char *option, double least,
		     double most)
{
	double value;
	char *end;

	errno = 0;
	value = strtod(text, &end);
	if (errno || end == text || *end || !(value >= least && value <= most))
		wrong_usage("%s '%s' is not a number from %g to %g", option,
			    text, least, most);
	return value;
}

static unsigned int pid_of(const char *text)
{
	unsigned long value;
	char *end;

	value = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || !value || value > 1 << 22)
		wrong_usage("--pid '%s' is not the number of a process", text);
	return value;
}

static u64 time_of(const char *text)
{
	static const struct {
		const char *unit;
		double ns;
	} units[] = { { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
	double value;
	char *unit;
	size_t i;

	value = strtod(text, &unit);
	for (i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (unit != text && !strcmp(unit, units[i].unit) &&
		    value * units[i].ns >= 1e3 && value * units[i].ns <= 1e11)
			return value * units[i].ns;
	wrong_usage("--min '%s' is not a time from 1us to 100s", text);
}

/* A bad path is refused before watching begins. */
static void check_place(const char *option, const char *path)
{
	char *temporary;
	FILE *file;

	if (!path)
		return;
	if (!*path || path[strlen(path) - 1] == '/')
		wrong_usage("%s '%s' is not the name of a file", option, path);
	file = begin_file(path, &temporary);
	cancel_file(file, temporary);
}

int main(int argc, char **argv)
{
	enum { SECONDS = 256, PID, CGROUP, MIN, JSON, TEXTFILE, RECORD,
	       ANONYMOUS, VERBOSE, HELP };
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, SECONDS },
		{ "pid", required_argument, NULL, PID },
		{ "cgroup", required_argument, NULL, CGROUP },
		{ "min", required_argument, NULL, MIN },
		{ "json", no_argument, NULL, JSON },
		{ "textfile", required_argument, NULL, TEXTFILE },
		{ "record", required_argument, NULL, RECORD },
		{ "anonymous", no_argument, NULL, ANONYMOUS },
		{ "verbose", no_argument, NULL, VERBOSE },
		{ "help", no_argument, NULL, HELP },
		{}
	};
	struct wish wish = { .seconds = 60, .min_ns = 1000000 };
	const char *textfile = NULL, *record = NULL, *file = NULL, *watching = NULL;
	bool json = false, anonymous = false, show = false, unprinted;
	static struct report report;
	const char *end;
	int option, error;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option >= SECONDS && option <= MIN)
			watching = "--seconds, --pid, --cgroup and --min";
		switch (option) {
		case SECONDS:
			wish.seconds = number(optarg, "--seconds", 0.1, 86400);
			break;
		case PID:
			wish.tgid = pid_of(optarg);
			break;
		case CGROUP:
			wish.cgroup = optarg;
			break;
		case MIN:
			wish.min_ns = time_of(optarg);
			break;
		case JSON:
			json = true;
			break;
		case TEXTFILE:
			textfile = optarg;
			break;
		case RECORD:
			record = optarg;
			break;
		case ANONYMOUS:
			anonymous = true;
			break;
		case VERBOSE:
			wish.verbose = true;
			break;
		case HELP:
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			/* getopt has said it. */
			return 2;
		}
	}
	if (optind < argc && !strcmp(argv[optind], "show")) {
		show = true;
		if (argc - optind != 2)
			wrong_usage("show takes one file");
		file = argv[optind + 1];
	} else if (optind < argc) {
		wrong_usage("'%s' is not a command: there is only show",
			    argv[optind]);
	}
	if (show && watching)
		wrong_usage("%s are for watching, not for show", watching);
	if (wish.tgid && wish.cgroup)
		wrong_usage("--pid and --cgroup exclude each other");
	end = textfile ? strrchr(textfile, '.') : NULL;
	if (textfile && (!end || strcmp(end, ".prom")))
		wrong_usage("--textfile '%s' does not end in .prom, so node_exporter would ignore it",
			    textfile);
	check_place("--textfile", textfile);
	check_place("--record", record);

	if (show)
		read_record(&report, file);
	else
		watch(&report, &wish);
	merge_threads(&report);
	sort_rows(&report);
	if (anonymous)
		anonymize(&report);
	/* The table comes first, as a file may fail; a closed pipe does not prevent the files. */
	signal(SIGPIPE, SIG_IGN);
	if (json)
		print_json(&report, stdout);
	else
		print_table(&report, stdout);
	unprinted = fflush(stdout) || ferror(stdout);
	error = errno;
	if (record)
		write_record(&report, record);
	if (textfile)
		write_textfile(&report, textfile);
	if (unprinted)
		fail("cannot write to standard output: %s", strerror(error));
	return 0;
}
