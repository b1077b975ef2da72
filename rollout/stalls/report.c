// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows of a report: find, add, sort, sum up.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Made from sysctl/switches. */
const struct a_switch switches[NR_SWITCHES] = {
#include "switches.inc"
};

const char * const counter_names[NR_COUNTERS] = {
	[SHORT_WAITS]	= "shorter_waits",
	[SHORT_NS]	= "shorter_ns",
	[LOST_WAITERS]	= "lost_waiters",
	[LOST_GROUPS]	= "lost_waits",
	[LOST_GROUP_NS]	= "lost_ns",
	[LOST_STACKS]	= "lost_stacks",
	[LOST_SENDERS]	= "lost_broadcasts",
	[LOST_EXITS]	= "lost_exits",
	[LOST_ENDS]	= "lost_ends",
	[LOST_CALLS]	= "lost_calls",
	[UNENDED_WAITS]	= "unended_waits",
	[UNENDED_LONGEST_NS] = "unended_longest_ns",
};

const char * const lock_names[LOCK_KINDS] = {
	[LOCK_NONE]	= "none",
	[LOCK_MMAP]	= "mmap_lock",
	[LOCK_VMA]	= "vma",
	[LOCK_HUGE_FILE] = "hugetlb-file",
	[LOCK_HUGE_VMA]	= "hugetlb-vma",
	[LOCK_HUGE_FAULT] = "hugetlb-fault",
	[LOCK_EXIT]	= "exit",
};

void fail(const char *format, ...)
{
	va_list arguments;

	fputs(PROGRAM ": error: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

void *grow(void *array, size_t nr, size_t size)
{
	/* Powers of two: an allocation for each doubling. */
	if (nr & (nr - 1))
		return array;
	array = reallocarray(array, nr ? nr * 2 : 1, size);
	if (!array)
		fail("out of memory");
	return array;
}

/* A row of the same group, without a wait. */
static struct row emptied(const struct row *like)
{
	struct row row = *like;

	row.waits = 0;
	row.total = 0;
	row.max = 0;
	memset(row.slots, 0, sizeof(row.slots));
	return row;
}

/* NULL: there are as many as the BPF programs can make. */
static struct row *find_row(struct report *report, const struct row *like)
{
	struct row *row;
	size_t i;

	for (i = 0; i < report->nr_rows; i++) {
		row = &report->rows[i];
		if (row->lock == like->lock && row->write == like->write &&
		    row->which == like->which && row->mib == like->mib &&
		    !strcmp(row->holder, like->holder) &&
		    !strcmp(row->call, like->call) &&
		    !strcmp(row->waiter, like->waiter))
			return row;
	}
	if (report->nr_rows == MAX_GROUPS)
		return NULL;
	report->rows = grow(report->rows, report->nr_rows, sizeof(*row));
	row = &report->rows[report->nr_rows++];
	*row = emptied(like);
	return row;
}

void add_slots(struct row *to, const struct row *from)
{
	size_t i;

	to->waits += from->waits;
	to->total += from->total;
	if (from->max > to->max)
		to->max = from->max;
	for (i = 0; i < SLOTS; i++)
		to->slots[i] += from->slots[i];
}

bool add_row(struct report *report, const struct row *row)
{
	struct row *sum = find_row(report, row);

	if (sum)
		add_slots(sum, row);
	return sum;
}

static int longer(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->total < y->total ? 1 : x->total > y->total ? -1 :
		strcmp(x->holder, y->holder);
}

void sort_rows(struct report *report)
{
	if (report->nr_rows)
		qsort(report->rows, report->nr_rows, sizeof(*report->rows),
		      longer);
}

/* --- Names of programs */

#define ANONYMOUS "program-"
/* A number that differs is a star. */
#define DIGITS "0123456789*"

struct names {
	char (*known)[NAME_LEN];
	size_t nr;
};

/*
 * WHOLE gets the common form of two names, with a star for each number that differs,
 * and is no longer than either.  NULL: they differ elsewhere.
 */
static char *common_name(const char *a, const char *b, char *whole)
{
	char *to = whole;
	size_t m, n;

	for (; *a || *b; a += m, b += n) {
		m = strspn(a, DIGITS);
		n = strspn(b, DIGITS);
		if (!m && !n && *a == *b) {
			*to++ = *a;
			m = n = 1;
		} else if (!m || !n) {
			return NULL;
		} else if (m == n && !memcmp(a, b, n) && !memchr(a, '*', n)) {
			memcpy(to, a, n);
			to += n;
		} else {
			*to++ = '*';
		}
	}
	*to = 0;
	return whole;
}

/* The entry that a name has in common with earlier ones; a new one, if there is none. */
static char *find_common(struct names *names, const char *name)
{
	char whole[NAME_LEN];
	size_t i;

	for (i = 0; i < names->nr; i++)
		if (common_name(names->known[i], name, whole))
			break;
	if (i == names->nr) {
		common_name(name, name, whole);
		names->known = grow(names->known, names->nr,
				    sizeof(*names->known));
		names->nr++;
	}
	return strcpy(names->known[i], whole);
}

/* Numbers of anonymous programs tell different ones apart. */
static bool is_of_pool(const char *name)
{
	return strpbrk(name, DIGITS) &&
		strncmp(name, ANONYMOUS, strlen(ANONYMOUS));
}

static void visit_names(struct report *report, struct names *names, bool rename)
{
	size_t nr = 2 * report->nr_rows + report->nr_senders, i;
	char *name, *common;

	for (i = 0; i < nr; i++) {
		name = i >= 2 * report->nr_rows ?
			report->senders[i - 2 * report->nr_rows].program :
			i % 2 ? report->rows[i / 2].waiter :
			report->rows[i / 2].holder;
		if (!is_of_pool(name))
			continue;
		common = find_common(names, name);
		if (rename)
			strcpy(name, common);
	}
}

/* Threads whose names differ in numbers only are one program. */
void merge_threads(struct report *report)
{
	struct broadcaster *sender, *same;
	struct row *rows = report->rows;
	size_t nr = report->nr_rows, i;
	struct names names = {};

	visit_names(report, &names, false);
	visit_names(report, &names, true);
	free(names.known);
	report->rows = NULL;
	report->nr_rows = 0;
	for (i = 0; i < nr; i++)
		add_row(report, &rows[i]);
	free(rows);
	nr = report->nr_senders;
	report->nr_senders = 0;
	for (i = 0; i < nr; i++) {
		sender = &report->senders[i];
		for (same = report->senders;
		     same < report->senders + report->nr_senders; same++)
			if (same->kthread == sender->kthread &&
			    !strcmp(same->program, sender->program))
				break;
		if (same == report->senders + report->nr_senders) {
			report->nr_senders++;
			*same = *sender;
		} else {
			same->count += sender->count;
		}
	}
}

static void number(struct names *names, char *name)
{
	size_t i;

	/* "-" is nobody. */
	if (!strcmp(name, "-"))
		return;
	for (i = 0; i < names->nr; i++)
		if (!strcmp(names->known[i], name))
			break;
	if (i == names->nr) {
		names->known = grow(names->known, names->nr,
				    sizeof(*names->known));
		memcpy(names->known[names->nr++], name, NAME_LEN);
	}
	snprintf(name, NAME_LEN, ANONYMOUS "%zu", i + 1);
}

void anonymize(struct report *report)
{
	struct names names = {};
	size_t i;

	for (i = 0; i < report->nr_rows; i++) {
		if (!report->rows[i].kthread)
			number(&names, report->rows[i].holder);
		number(&names, report->rows[i].waiter);
	}
	for (i = 0; i < report->nr_senders; i++)
		if (!report->senders[i].kthread)
			number(&names, report->senders[i].program);
	free(names.known);
}

/* --- Sums */

static int longer_sum(const void *a, const void *b)
{
	return longer(&((const struct summary *)a)->sum,
		      &((const struct summary *)b)->sum);
}

struct summary *summarize(const struct report *report, size_t *nr)
{
	struct summary *sums = NULL, *sum;
	const struct row *row;
	size_t i, j;

	*nr = 0;
	for (i = 0; i < report->nr_rows; i++) {
		row = &report->rows[i];
		for (j = 0; j < *nr; j++) {
			sum = &sums[j];
			if (sum->sum.lock == row->lock &&
			    sum->sum.which == row->which &&
			    !strcmp(sum->sum.holder, row->holder) &&
			    !strcmp(sum->sum.call, row->call))
				break;
		}
		if (j == *nr) {
			sums = grow(sums, *nr, sizeof(*sums));
			sum = &sums[(*nr)++];
			*sum = (struct summary){ .sum = emptied(row) };
		}
		sum = &sums[j];
		add_slots(&sum->sum, row);
		sum->rows = grow(sum->rows, sum->nr_rows, sizeof(*sum->rows));
		sum->rows[sum->nr_rows++] = row;
	}
	if (*nr)
		qsort(sums, *nr, sizeof(*sums), longer_sum);
	return sums;
}

/* The end of what slot_of() puts in a slot: whole units, of which the last slot has all others. */
static u64 slot_end(unsigned int slot)
{
	unsigned int power = slot / 4, quarter = slot % 4;

	if (slot == SLOTS - 1)
		return ~0ULL;
	return (((4ULL + quarter + 1) << power) + 3) / 4 * SLOT_UNIT;
}

/* Its beginning, in units. */
u64 slot_start(unsigned int slot)
{
	return ((4ULL + slot % 4) << slot / 4) / 4;
}

u64 percentile(const struct row *row, double part)
{
	u64 seen = 0;
	unsigned int i;

	for (i = 0; i < SLOTS; i++) {
		seen += row->slots[i];
		if (seen && seen >= part * row->waits)
			return slot_end(i) < row->max ? slot_end(i) : row->max;
	}
	return row->max;
}

/* --- Switches */

int switch_named(const char *name)
{
	int i;

	for (i = 0; i < NR_SWITCHES; i++)
		if (!strcmp(switches[i].name, name))
			return i;
	return -1;
}

bool is_section_switch(int which)
{
	return which >= 0 && strstr(switches[which].name, "_section_");
}

void read_switches(struct report *report)
{
	char path[128], *dot;
	FILE *file;
	int i;

	for (i = 0; i < NR_SWITCHES; i++) {
		snprintf(path, sizeof(path), "/proc/sys/%s", switches[i].name);
		for (dot = path; (dot = strchr(dot, '.')); )
			*dot = '/';
		report->values[i] = ABSENT;
		file = fopen(path, "re");
		if (!file)
			continue;
		if (fscanf(file, "%ld", &report->values[i]) != 1)
			report->values[i] = ABSENT;
		fclose(file);
	}
}

bool is_on(const struct report *report, int which)
{
	return report->values[which] != ABSENT &&
		report->values[which] != switches[which].stock;
}

/*
 * With a section switch, the lock is let go of after a section, if somebody waits.
 * The longest wait is taken for the time of the whole call, so a section takes its
 * share of that, and no wait is longer.
 */
static u64 left_of(const struct row *row)
{
	u64 bound, from, end, left = 0;
	unsigned int i;

	if (!is_section_switch(row->which))
		return 0;
	if (row->mib <= SECTION_MIB)
		return row->total;
	bound = (double)row->max * SECTION_MIB / row->mib;
	for (i = 0; i < SLOTS; i++) {
		if (!row->slots[i])
			continue;
		from = i ? slot_end(i - 1) : 0;
		end = slot_end(i) < row->max ? slot_end(i) : row->max;
		if (from > end)
			from = end;
		/* The middle, as only the number of waits in a slot is known. */
		from += (end - from) / 2;
		left += row->slots[i] * (from < bound ? from : bound);
	}
	return left < row->total ? left : row->total;
}

bool switched_by(const struct report *report, int which, u64 *total, u64 *left)
{
	size_t i;

	*total = *left = 0;
	for (i = 0; i < report->nr_rows; i++) {
		if (report->rows[i].which != which ||
		    report->rows[i].lock == LOCK_EXIT)
			continue;
		*total += report->rows[i].total;
		*left += left_of(&report->rows[i]);
	}
	if (is_on(report, which))
		*left = *total;
	return *total > 0;
}

u64 waited(const struct report *report, u64 *waits)
{
	u64 total = 0;
	size_t i;

	*waits = 0;
	for (i = 0; i < report->nr_rows; i++) {
		/* Nobody waits for an exit, as far as we know. */
		if (report->rows[i].lock == LOCK_EXIT)
			continue;
		total += report->rows[i].total;
		*waits += report->rows[i].waits;
	}
	return total;
}
