// SPDX-License-Identifier: GPL-2.0-only
/*
 * A report as a table, as JSON (see schema.json) and as metrics.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

static const char *duration(char *text, size_t size, double ns)
{
	if (ns >= 1e9)
		snprintf(text, size, "%.1f s", ns / 1e9);
	else if (ns >= 1e6)
		snprintf(text, size, "%.1f ms", ns / 1e6);
	else
		snprintf(text, size, "%.0f us", ns / 1e3);
	return text;
}

static void list_waiters(const struct summary *sum, char *text, size_t size)
{
	const char *first = sum->rows[0]->waiter, *second = NULL, *name;
	bool others = false;
	size_t i;

	/* Readers and writers of one program are two rows. */
	for (i = 1; i < sum->nr_rows && !others; i++) {
		name = sum->rows[i]->waiter;
		if (!strcmp(name, first) || (second && !strcmp(name, second)))
			continue;
		others = second;
		if (!second)
			second = name;
	}
	snprintf(text, size, "%s%s%s%s", first, second ? ", " : "",
		 second ?: "", others ? ", ..." : "");
}

static void print_lost(const struct report *report, FILE *out)
{
	const u64 *lost = report->counters;
	char text[32];

	if (lost[UNENDED_WAITS])
		fprintf(out, "%llu of these waits had not ended when watching did, the longest after %s.\n",
			(unsigned long long)lost[UNENDED_WAITS],
			duration(text, sizeof(text), lost[UNENDED_LONGEST_NS]));
	if (lost[LOST_GROUPS])
		fprintf(out, "Lost: %llu waits (%s), as there were too many different ones.\n",
			(unsigned long long)lost[LOST_GROUPS],
			duration(text, sizeof(text), lost[LOST_GROUP_NS]));
	if (lost[LOST_WAITERS])
		fprintf(out, "Lost: %llu waits, as more than %u tasks waited at once.\n",
			(unsigned long long)lost[LOST_WAITERS], MAX_WAITERS);
	if (lost[LOST_ENDS])
		fprintf(out, "Lost: %llu waits, whose end was not seen.\n",
			(unsigned long long)lost[LOST_ENDS]);
	if (lost[LOST_CALLS])
		fprintf(out, "Lost: %llu events, at which the kernel did not run a BPF program, as it ran already.\n",
			(unsigned long long)lost[LOST_CALLS]);
	if (lost[LOST_STACKS])
		fprintf(out, "Lost: %llu stacks of holders; their rows have the system call only.\n",
			(unsigned long long)lost[LOST_STACKS]);
	if (lost[LOST_EXITS])
		fprintf(out, "Lost: %llu exits, as there were too many at once.\n",
			(unsigned long long)lost[LOST_EXITS]);
	if (lost[LOST_SENDERS])
		fprintf(out, "Lost: %llu broadcasts of further programs.\n",
			(unsigned long long)lost[LOST_SENDERS]);
}

static void print_senders(const struct report *report, FILE *out)
{
	u64 total = 0;
	size_t i, most = 0;
	int which = switch_named("vm.pmd_clear_ipi_free");

	for (i = 0; i < report->nr_senders; i++) {
		total += report->senders[i].count;
		if (report->senders[i].count > report->senders[most].count)
			most = i;
	}
	if (!total)
		return;
	fprintf(out, "%.1f interrupts per second of every CPU for page tables (most by %s): ",
		total / report->seconds, report->senders[most].program);
	if (is_on(report, which))
		fprintf(out, "left with %s=%ld.\n", switches[which].name,
			report->values[which]);
	else
		fprintf(out, "%s=%ld avoids them, unless memory is short.\n",
			switches[which].name,
			switches[which].on);
}

static void print_summary(const struct report *report, FILE *out)
{
	u64 total, waits, removable, left;
	char a[32], b[32], c[32];
	bool any = false, sections = false;
	int i;

	total = waited(report, &waits);
	if (!waits) {
		fprintf(out, "No wait of %s or longer in %.0f s.\n",
			duration(a, sizeof(a), report->min_ns), report->seconds);
		return;
	}
	duration(b, sizeof(b), total);
	for (i = 0; i < NR_SWITCHES; i++) {
		if (!switched_by(report, i, &removable, &left))
			continue;
		any = true;
		sections |= !is_on(report, i) && left;
		duration(c, sizeof(c), left);
		duration(a, sizeof(a), is_on(report, i) ? left :
			 removable - left);
		if (is_on(report, i))
			fprintf(out, "%s=%ld is on, and leaves %s of %s of waiting.\n",
				switches[i].name, report->values[i], a, b);
		else if (left)
			fprintf(out, "%s=%ld would have removed about %s of %s of waiting, and left %s.\n",
				switches[i].name, switches[i].on, a, b, c);
		else
			fprintf(out, "%s=%ld would have removed up to %s of %s of waiting.\n",
				switches[i].name, switches[i].on, a, b);
	}
	if (sections)
		fputs("A thread that maps memory all the time would wait as shortly, but more often.\n",
		      out);
	if (!any)
		fprintf(out, "No switch would have removed any of %s of waiting.\n", b);
}

void print_table(const struct report *report, FILE *out)
{
	char waiters[64], total[32], p50[32], p99[32], max[32], shorter[32];
	const struct row *row;
	struct summary *sums;
	size_t i, nr;

	fprintf(out, "Linux %s, %.0f s, waits of %s or longer\n", report->kernel,
		report->seconds, duration(total, sizeof(total), report->min_ns));
	sums = summarize(report, &nr);
	if (nr)
		fprintf(out, "\n%-16s %-31s %-13s %-22s %7s %9s %9s %9s %9s  %s\n",
			"HOLDER", "CALL", "LOCK", "WAITERS", "WAITS", "TOTAL",
			"P50", "P99", "LONGEST", "SWITCH");
	for (i = 0; i < nr; i++) {
		row = &sums[i].sum;
		list_waiters(&sums[i], waiters, sizeof(waiters));
		fprintf(out, "%-16s %-31s %-13s %-22s %7llu %9s %9s %9s %9s  %s\n",
			row->holder, row->call, lock_names[row->lock], waiters,
			(unsigned long long)row->waits,
			duration(total, sizeof(total), row->total),
			duration(p50, sizeof(p50), percentile(row, 0.5)),
			duration(p99, sizeof(p99), percentile(row, 0.99)),
			duration(max, sizeof(max), row->max),
			row->which < 0 ? "none" : switches[row->which].name);
		free(sums[i].rows);
	}
	free(sums);
	fputc('\n', out);
	if (report->counters[SHORT_WAITS])
		fprintf(out, "%llu shorter waits, %s in all.\n",
			(unsigned long long)report->counters[SHORT_WAITS],
			duration(shorter, sizeof(shorter),
				 report->counters[SHORT_NS]));
	for (i = 0; i < report->nr_notes; i++)
		fprintf(out, "Not watched: %s.\n", report->notes[i]);
	print_lost(report, out);
	print_senders(report, out);
	print_summary(report, out);
}

/* --- JSON: names have no characters to escape, see clean() and copy(). */

static void json_times(const struct row *row, FILE *out)
{
	fprintf(out, "\"waits\": %llu, \"total_ms\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"longest_ms\": %.3f",
		(unsigned long long)row->waits, row->total / 1e6,
		percentile(row, 0.5) / 1e6, percentile(row, 0.99) / 1e6,
		row->max / 1e6);
}

static void json_name(int which, FILE *out)
{
	if (which < 0)
		fputs("null", out);
	else
		fprintf(out, "\"%s\"", switches[which].name);
}

static void json_switches(const struct report *report, FILE *out)
{
	u64 total, left;
	int i;

	fputs("  \"switches\": [\n", out);
	for (i = 0; i < NR_SWITCHES; i++) {
		switched_by(report, i, &total, &left);
		fprintf(out, "    {\"name\": \"%s\", \"value\": ", switches[i].name);
		if (report->values[i] == ABSENT)
			fputs("null", out);
		else
			fprintf(out, "%ld", report->values[i]);
		fprintf(out, ", \"on\": %ld, \"is_on\": %s, \"waited_ms\": %.3f, \"left_ms\": %.3f}%s\n",
			switches[i].on, is_on(report, i) ? "true" : "false",
			total / 1e6, left / 1e6, i < NR_SWITCHES - 1 ? "," : "");
	}
	fputs("  ],\n", out);
}

void print_json(const struct report *report, FILE *out)
{
	const struct row *row;
	struct summary *sums;
	u64 total, waits;
	size_t i, j, nr;

	total = waited(report, &waits);
	sums = summarize(report, &nr);
	fprintf(out, "{\n  \"format\": 1,\n  \"kernel\": \"%s\",\n  \"seconds\": %.3f,\n  \"min_ms\": %.3f,\n  \"waits\": %llu,\n  \"waited_ms\": %.3f,\n",
		report->kernel, report->seconds, report->min_ns / 1e6,
		(unsigned long long)waits, total / 1e6);
	json_switches(report, out);
	fputs("  \"groups\": [", out);
	for (i = 0; i < nr; i++) {
		row = &sums[i].sum;
		fprintf(out, "%s\n    {\"holder\": \"%s\", \"call\": \"%s\", \"lock\": \"%s\", ",
			i ? "," : "", row->holder, row->call, lock_names[row->lock]);
		json_times(row, out);
		fputs(", \"switch\": ", out);
		json_name(row->which, out);
		fputs(", \"waiters\": [", out);
		for (j = 0; j < sums[i].nr_rows; j++) {
			fprintf(out, "%s{\"program\": \"%s\", \"writes\": %s, \"mib\": %llu, ",
				j ? ", " : "", sums[i].rows[j]->waiter,
				sums[i].rows[j]->write ? "true" : "false",
				(unsigned long long)sums[i].rows[j]->mib);
			json_times(sums[i].rows[j], out);
			fputc('}', out);
		}
		fputs("]}", out);
		free(sums[i].rows);
	}
	free(sums);
	fputs("\n  ],\n  \"broadcasts\": [", out);
	for (i = 0; i < report->nr_senders; i++)
		fprintf(out, "%s\n    {\"program\": \"%s\", \"count\": %llu}",
			i ? "," : "", report->senders[i].program,
			(unsigned long long)report->senders[i].count);
	fputs("\n  ],\n  \"counters\": {", out);
	for (i = 0; i < NR_COUNTERS; i++)
		fprintf(out, "%s\"%s\": %llu", i ? ", " : "", counter_names[i],
			(unsigned long long)report->counters[i]);
	fputs("},\n  \"not_watched\": [", out);
	for (i = 0; i < report->nr_notes; i++)
		fprintf(out, "%s\"%s\"", i ? ", " : "", report->notes[i]);
	fputs("]\n}\n", out);
}

/* --- Metrics: of a window that is over, so gauges; no names of programs. */

/* Numbers that programs choose would make series without end. */
static const char *label(const struct row *row)
{
	return strncmp(row->call, "ioctl(0x", 8) ? row->call : "ioctl";
}

/* Rows that differ only in what the metrics leave out. */
struct sum {
	const struct row *first;
	u64 waits, total, max;
};

static struct sum *sum_of(struct sum *sums, size_t *nr, const struct row *row)
{
	size_t i;

	for (i = 0; i < *nr; i++)
		if (sums[i].first->lock == row->lock &&
		    sums[i].first->which == row->which &&
		    !strcmp(label(sums[i].first), label(row)))
			return &sums[i];
	sums[(*nr)++] = (struct sum) { .first = row };
	return &sums[i];
}

/* The metric of the sums at OFFSET in struct sum; in seconds, if it is a time. */
static void print_sums(FILE *out, const char *name, const char *help,
		       const struct sum *sums, size_t nr, size_t offset,
		       bool is_time)
{
	size_t i;

	fprintf(out, "# HELP faultline_stalls_%s %s\n"
		"# TYPE faultline_stalls_%s gauge\n", name, help, name);
	for (i = 0; i < nr; i++) {
		const struct row *row = sums[i].first;
		u64 value = *(const u64 *)((const char *)&sums[i] + offset);

		fprintf(out, "faultline_stalls_%s{call=\"%s\",lock=\"%s\",switch=\"%s\"} ",
			name, label(row), lock_names[row->lock],
			row->which < 0 ? "none" : switches[row->which].name);
		if (is_time)
			fprintf(out, "%.6f\n", value / 1e9);
		else
			fprintf(out, "%llu\n", (unsigned long long)value);
	}
}

void write_textfile(const struct report *report, const char *path)
{
	char *temporary;
	FILE *out = begin_file(path, &temporary);
	struct sum *sums = calloc(report->nr_rows + 1, sizeof(*sums));
	u64 total, waits, sent = 0;
	size_t i, nr = 0;

	if (!sums)
		fail("out of memory");
	for (i = 0; i < report->nr_rows; i++) {
		const struct row *row = &report->rows[i];
		struct sum *sum = sum_of(sums, &nr, row);

		sum->waits += row->waits;
		sum->total += row->total;
		if (row->max > sum->max)
			sum->max = row->max;
	}
	fprintf(out, "# HELP faultline_stalls_window_seconds Time that faultline-stalls has watched.\n"
		"# TYPE faultline_stalls_window_seconds gauge\n"
		"faultline_stalls_window_seconds %.3f\n", report->seconds);
	print_sums(out, "waits",
		   "Waits for locks of the memory manager in the window.",
		   sums, nr, offsetof(struct sum, waits), false);
	print_sums(out, "waited_seconds",
		   "Time that threads waited in the window.",
		   sums, nr, offsetof(struct sum, total), true);
	print_sums(out, "longest_wait_seconds", "Longest wait in the window.",
		   sums, nr, offsetof(struct sum, max), true);
	free(sums);
	total = waited(report, &waits);
	for (i = 0; i < report->nr_senders; i++)
		sent += report->senders[i].count;
	fprintf(out, "# HELP faultline_stalls_all_waited_seconds Time that threads waited in the window, for all causes.\n"
		"# TYPE faultline_stalls_all_waited_seconds gauge\n"
		"faultline_stalls_all_waited_seconds %.6f\n"
		"# HELP faultline_stalls_broadcasts Interrupts of every CPU for page tables in the window.\n"
		"# TYPE faultline_stalls_broadcasts gauge\n"
		"faultline_stalls_broadcasts %llu\n"
		"# HELP faultline_stalls_lost_waits Waits in the window that are in no other metric.\n"
		"# TYPE faultline_stalls_lost_waits gauge\n"
		"faultline_stalls_lost_waits %llu\n"
		"# HELP faultline_stalls_unended_waits Waits that had not ended when the window did.\n"
		"# TYPE faultline_stalls_unended_waits gauge\n"
		"faultline_stalls_unended_waits %llu\n"
		"# HELP faultline_stalls_longest_unended_wait_seconds Longest of the waits that had not ended.\n"
		"# TYPE faultline_stalls_longest_unended_wait_seconds gauge\n"
		"faultline_stalls_longest_unended_wait_seconds %.6f\n",
		total / 1e9, (unsigned long long)sent,
		(unsigned long long)(report->counters[LOST_GROUPS] +
				     report->counters[LOST_WAITERS] +
				     report->counters[LOST_ENDS] +
				     report->counters[LOST_CALLS]),
		(unsigned long long)report->counters[UNENDED_WAITS],
		report->counters[UNENDED_LONGEST_NS] / 1e9);
	finish_file(out, path, temporary);
}
