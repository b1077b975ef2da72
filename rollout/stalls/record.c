// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports in a file: lines with tabs, of which the last one is "end".
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

#define FIRST_LINE PROGRAM " 1"
#define MAX_FIELDS 13
/* Of MAX_GROUPS rows with all their slots. */
#define MAX_RECORD (16 << 20)

/* A file that is being written; it goes if a signal ends the program. */
static const char *volatile unfinished;

static void remove_unfinished(int signal)
{
	if (unfinished)
		unlink(unfinished);
	/* The handler is reset: this ends the program. */
	raise(signal);
}

static void remove_when_ended(const char *temporary)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action = { .sa_handler = remove_unfinished,
				    .sa_flags = SA_RESETHAND | SA_NODEFER };
	struct sigaction old;
	size_t i;

	unfinished = temporary;
	for (i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		/* nohup(1) ignores signals on purpose. */
		if (!sigaction(signals[i], NULL, &old) &&
		    old.sa_handler != SIG_IGN)
			sigaction(signals[i], &action, NULL);
}

FILE *begin_file(const char *path, char **temporary)
{
	mode_t mask = umask(0);
	struct stat status;
	FILE *file;
	int fd;

	umask(mask);
	if (!lstat(path, &status) && !S_ISREG(status.st_mode))
		fail("%s exists and is not a regular file: give another name",
		     path);
	if (asprintf(temporary, "%s.XXXXXX", path) < 0)
		fail("out of memory");
	fd = mkstemp(*temporary);
	if (fd < 0)
		fail("cannot write to the folder of %s: %s", path,
		     strerror(errno));
	remove_when_ended(*temporary);
	if (fchmod(fd, 0666 & ~mask))
		fail("cannot write %s: %s", *temporary, strerror(errno));
	file = fdopen(fd, "w");
	if (!file)
		fail("cannot write %s: %s", *temporary, strerror(errno));
	return file;
}

void cancel_file(FILE *file, char *temporary)
{
	fclose(file);
	unlink(temporary);
	unfinished = NULL;
	free(temporary);
}

void finish_file(FILE *file, const char *path, char *temporary)
{
	bool bad = ferror(file) || fflush(file) || fsync(fileno(file));

	if (fclose(file) || bad || rename(temporary, path)) {
		int error = errno;

		unlink(temporary);
		fail("cannot write %s: %s", path, strerror(error));
	}
	unfinished = NULL;
	free(temporary);
}

void write_record(const struct report *report, const char *path)
{
	const struct row *row;
	char *temporary;
	FILE *file = begin_file(path, &temporary);
	const char *comma;
	size_t i, j;

	fprintf(file, "%s\nkernel\t%s\nseconds\t%.3f\nmin_ns\t%llu\n", FIRST_LINE,
		report->kernel, report->seconds,
		(unsigned long long)report->min_ns);
	for (i = 0; i < NR_SWITCHES; i++)
		fprintf(file, "switch\t%s\t%ld\n", switches[i].name,
			report->values[i]);
	for (i = 0; i < NR_COUNTERS; i++)
		fprintf(file, "count\t%s\t%llu\n", counter_names[i],
			(unsigned long long)report->counters[i]);
	for (i = 0; i < report->nr_notes; i++)
		fprintf(file, "note\t%s\n", report->notes[i]);
	for (i = 0; i < report->nr_senders; i++)
		fprintf(file, "broadcasts\t%s\t%d\t%llu\n",
			report->senders[i].program, report->senders[i].kthread,
			(unsigned long long)report->senders[i].count);
	for (i = 0; i < report->nr_rows; i++) {
		row = &report->rows[i];
		fprintf(file, "waits\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%llu\t%llu\t%llu\t%llu\t",
			lock_names[row->lock], row->write, row->holder,
			row->kthread, row->call, row->waiter,
			row->which < 0 ? "-" : switches[row->which].name,
			(unsigned long long)row->mib,
			(unsigned long long)row->waits,
			(unsigned long long)row->total,
			(unsigned long long)row->max);
		for (comma = "", j = 0; j < SLOTS; j++) {
			if (!row->slots[j])
				continue;
			fprintf(file, "%s%zu:%llu", comma, j,
				(unsigned long long)row->slots[j]);
			comma = ",";
		}
		fputc('\n', file);
	}
	fputs("end\n", file);
	finish_file(file, path, temporary);
}

/* --- Reading */

struct input {
	const char *path;
	unsigned int line;
};

static void __attribute__((noreturn)) wrong(const struct input *input,
					    const char *text)
{
	fail("%s, line %u: %s; record it again", input->path, input->line, text);
}

static u64 number_in(const struct input *input, const char *text)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-')
		wrong(input, "not a number");
	return value;
}

static void copy(const struct input *input, char *to, size_t size,
		 const char *from)
{
	const char *c;

	if (strlen(from) >= size || !*from)
		wrong(input, "a name is empty or too long");
	/* It goes to terminals, JSON and metrics. */
	for (c = from; *c; c++)
		if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')
			wrong(input, "a name has a character that it cannot have");
	strcpy(to, from);
}

static bool flag_in(const struct input *input, const char *text)
{
	if (strcmp(text, "0") && strcmp(text, "1"))
		wrong(input, "neither 0 nor 1");
	return *text == '1';
}

static void read_slots(const struct input *input, struct row *row, char *text)
{
	u64 sum = 0, slot;
	char *part, *colon;

	while ((part = strsep(&text, ","))) {
		colon = strchr(part, ':');
		if (!colon)
			wrong(input, "not a distribution");
		*colon = 0;
		slot = number_in(input, part);
		if (slot >= SLOTS)
			wrong(input, "not a distribution");
		row->slots[slot] = number_in(input, colon + 1);
		sum += row->slots[slot];
	}
	if (sum != row->waits)
		wrong(input, "a distribution that does not add up");
}

static void read_waits(const struct input *input, struct report *report,
		       char **field)
{
	struct row row = { .lock = -1, .which = -1 };
	int i;

	for (i = 1; i < LOCK_KINDS; i++)
		if (!strcmp(field[1], lock_names[i]))
			row.lock = i;
	if (row.lock < 0)
		wrong(input, "an unknown lock");
	row.write = flag_in(input, field[2]);
	copy(input, row.holder, sizeof(row.holder), field[3]);
	row.kthread = flag_in(input, field[4]);
	copy(input, row.call, sizeof(row.call), field[5]);
	copy(input, row.waiter, sizeof(row.waiter), field[6]);
	if (strcmp(field[7], "-")) {
		row.which = switch_named(field[7]);
		if (row.which < 0)
			wrong(input, "an unknown switch");
	}
	row.mib = number_in(input, field[8]);
	row.waits = number_in(input, field[9]);
	row.total = number_in(input, field[10]);
	row.max = number_in(input, field[11]);
	read_slots(input, &row, field[12]);
	if (!add_row(report, &row))
		wrong(input, "more groups than a record can have");
}

static void read_line(const struct input *input, struct report *report,
		      char **field, int nr)
{
	struct broadcaster *sender;
	char *end;
	int i;

	if (!strcmp(field[0], "kernel") && nr == 2) {
		copy(input, report->kernel, sizeof(report->kernel), field[1]);
	} else if (!strcmp(field[0], "seconds") && nr == 2) {
		report->seconds = strtod(field[1], &end);
		if (*end || !(report->seconds > 0 && report->seconds < 1e9))
			wrong(input, "not a number of seconds");
	} else if (!strcmp(field[0], "min_ns") && nr == 2) {
		report->min_ns = number_in(input, field[1]);
	} else if (!strcmp(field[0], "switch") && nr == 3) {
		i = switch_named(field[1]);
		if (i < 0)
			wrong(input, "an unknown switch");
		report->values[i] = strcmp(field[2], "-1") ?
			(long)number_in(input, field[2]) : ABSENT;
	} else if (!strcmp(field[0], "count") && nr == 3) {
		for (i = 0; i < NR_COUNTERS; i++)
			if (!strcmp(field[1], counter_names[i]))
				break;
		if (i == NR_COUNTERS)
			wrong(input, "an unknown counter");
		report->counters[i] = number_in(input, field[2]);
	} else if (!strcmp(field[0], "note") && nr == 2) {
		if (report->nr_notes == MAX_NOTES)
			wrong(input, "too many notes");
		copy(input, report->notes[report->nr_notes++],
		     sizeof(report->notes[0]), field[1]);
	} else if (!strcmp(field[0], "broadcasts") && nr == 4) {
		if (report->nr_senders == MAX_SENDERS)
			wrong(input, "more broadcasts than a record can have");
		report->senders = grow(report->senders, report->nr_senders,
				       sizeof(*sender));
		sender = &report->senders[report->nr_senders++];
		copy(input, sender->program, sizeof(sender->program), field[1]);
		sender->kthread = flag_in(input, field[2]);
		sender->count = number_in(input, field[3]);
	} else if (!strcmp(field[0], "waits") && nr == 13) {
		read_waits(input, report, field);
	} else {
		wrong(input, "not a line of this format");
	}
}

void read_record(struct report *report, const char *path)
{
	struct input input = { .path = path };
	char *line = NULL, *rest, *field[MAX_FIELDS];
	bool ended = false;
	size_t size = 0;
	ssize_t length;
	struct stat status;
	int i, fd;
	FILE *file;

	/* A FIFO would wait for a writer. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	file = fd < 0 ? NULL : fdopen(fd, "r");
	if (!file || fstat(fd, &status))
		fail("cannot read %s: %s", path, strerror(errno));
	if (!S_ISREG(status.st_mode))
		fail("%s is not a regular file: copy the record to one", path);
	if (status.st_size > MAX_RECORD)
		fail("%s is larger than %d MiB, which no record is", path,
		     MAX_RECORD >> 20);
	for (i = 0; i < NR_SWITCHES; i++)
		report->values[i] = ABSENT;
	while ((length = getline(&line, &size, file)) > 0) {
		input.line++;
		if (line[length - 1] == '\n')
			line[--length] = 0;
		if (strlen(line) != (size_t)length)
			wrong(&input, "not a line of this format");
		if (input.line == 1) {
			if (strcmp(line, FIRST_LINE))
				fail("%s is not a record of this version of "
				     PROGRAM ": make one with --record", path);
			continue;
		}
		if (ended)
			wrong(&input, "something after the end");
		if (!strcmp(line, "end")) {
			ended = true;
			continue;
		}
		rest = line;
		for (i = 0; i < MAX_FIELDS && rest; i++)
			field[i] = strsep(&rest, "\t");
		if (rest)
			wrong(&input, "not a line of this format");
		read_line(&input, report, field, i);
	}
	if (ferror(file))
		fail("cannot read %s: %s", path, strerror(errno));
	if (!input.line)
		fail("%s is not a record of this version of " PROGRAM
		     ": make one with --record", path);
	if (!ended)
		fail("%s has no end: it was not copied as a whole", path);
	if (!report->seconds || !*report->kernel)
		fail("%s says nothing of its kernel or its time: record it again",
		     path);
	fclose(file);
	free(line);
}
