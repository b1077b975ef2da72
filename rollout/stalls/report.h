/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A report: what was seen in a window of time, from the kernel or from a file.
 */
#ifndef FAULTLINE_REPORT_H
#define FAULTLINE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "stalls.h"

#define PROGRAM "faultline-stalls"
#define NAME_LEN 24
#define CALL_LEN 64
#define MAX_NOTES 8

/* A row of sysctl/switches; build.sh counts NR_SWITCHES of them. */
struct a_switch {
	const char *name;
	long stock;
	long on;
};

extern const struct a_switch switches[NR_SWITCHES];

/* The values of this host; ABSENT on other kernels. */
#define ABSENT (-1)

/* All waits for a kind of lock by one program, while one call held it. */
struct row {
	char holder[NAME_LEN];
	char call[CALL_LEN];
	char waiter[NAME_LEN];
	/* An index of switches, or -1. */
	int which;
	int lock;
	/* Of the memory that the call works on, if more than a section; or 0. */
	u64 mib;
	bool write;
	bool kthread;
	u64 waits;
	u64 total;
	u64 max;
	u64 slots[SLOTS];
};

struct broadcaster {
	char program[NAME_LEN];
	bool kthread;
	u64 count;
};

enum counter {
	SHORT_WAITS, SHORT_NS, LOST_WAITERS, LOST_GROUPS, LOST_GROUP_NS,
	LOST_STACKS, LOST_SENDERS, LOST_EXITS, LOST_ENDS, LOST_CALLS,
	/* Waits that had not ended with the window; they are in the rows. */
	UNENDED_WAITS, UNENDED_LONGEST_NS,
	NR_COUNTERS
};

extern const char * const counter_names[NR_COUNTERS];
extern const char * const lock_names[LOCK_KINDS];

struct report {
	char kernel[96];
	double seconds;
	u64 min_ns;
	long values[NR_SWITCHES];
	u64 counters[NR_COUNTERS];
	/* Kinds of waits that this kernel does not show. */
	char notes[MAX_NOTES][160];
	size_t nr_notes;
	struct row *rows;
	size_t nr_rows;
	struct broadcaster *senders;
	size_t nr_senders;
};

/* A row of output: the rows of all waiters of a holder. */
struct summary {
	struct row sum;
	const struct row **rows;
	size_t nr_rows;
};

/* report.c */
void fail(const char *format, ...)
	__attribute__((format(printf, 1, 2), noreturn));
void *grow(void *array, size_t nr, size_t size);
bool add_row(struct report *report, const struct row *row);
void add_slots(struct row *to, const struct row *from);
void merge_threads(struct report *report);
void sort_rows(struct report *report);
void anonymize(struct report *report);
struct summary *summarize(const struct report *report, size_t *nr);
u64 slot_start(unsigned int slot);
u64 percentile(const struct row *row, double part);
int switch_named(const char *name);
bool is_section_switch(int which);
void read_switches(struct report *report);
bool is_on(const struct report *report, int which);
/* The waits that a switch acts on, and what it leaves of them, at a guess. */
bool switched_by(const struct report *report, int which, u64 *total, u64 *left);
u64 waited(const struct report *report, u64 *waits);

/* causes.c */
void name_cause(struct row *row, const struct cause *cause, int lock,
		const char *const *symbols, size_t nr);

/* record.c */
void write_record(const struct report *report, const char *path);
void read_record(struct report *report, const char *path);

/* A file that is there as a whole or not at all. */
FILE *begin_file(const char *path, char **temporary);
void finish_file(FILE *file, const char *path, char *temporary);
void cancel_file(FILE *file, char *temporary);

/* output.c */
void print_table(const struct report *report, FILE *out);
void print_json(const struct report *report, FILE *out);
void write_textfile(const struct report *report, const char *path);

/* watch.c */
struct wish {
	double seconds;
	u64 min_ns;
	unsigned int tgid;
	const char *cgroup;
	bool verbose;
};

void watch(struct report *report, const struct wish *wish);

#endif
