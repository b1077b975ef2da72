// SPDX-License-Identifier: GPL-2.0-only
/*
 * QEMU plugin: counts the cache lines that would have moved between CPUs.
 *
 * It sees every load and store of the guest and tracks, for each line of 64
 * bytes, which CPUs would have a copy, and whether the only copy is modified.
 * From that it derives the transfers of a machine with one cache per CPU:
 *
 *	read miss	a load of a line that only other CPUs have
 *	write miss	a store to a line that only other CPUs have
 *	upgrade		a store to a line that other CPUs also have
 *	dirty		a miss of a line that another CPU has modified
 *
 * The caches are unlimited, so nothing is ever evicted, and a line that is in
 * no cache comes from memory, which does not count.  Lines are identified by
 * their physical address: the same memory at two virtual addresses is one line.
 * Accesses of the CPU's page walker are not seen.
 *
 * The plugin counts the accesses of a CPU between the marks BEGIN and END
 * (marks.h), a window.  A window with an interrupt is discarded as a whole, as
 * the work of the interrupt is unrelated.
 *
 * Needs one host thread for all CPUs (-accel tcg,thread=single): there are no
 * locks here.
 *
 * Arguments:
 *	out=FILE	file for the results, see write_results()
 *	entries=FILE	kernel entry points, one per line: "interrupt ADDRESS"
 *			or "fault ADDRESS", in hexadecimal
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <qemu-plugin.h>

#include "marks.h"

#define CPUS_MAX	64
#define LINE_SHIFT	6
/* Lines are tracked below this physical address. */
#define MEMORY_MAX	(4ULL << 30)
#define NR_LINES	(MEMORY_MAX >> LINE_SHIFT)
/* The maximum number of events in a window. */
#define EVENTS_MAX	16384
#define BUCKETS		65536
#define ENTRIES_MAX	64
/* The longest x86 instruction. */
#define INSN_MAX	15

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

static qemu_plugin_id_t plugin;
static const char *out_path;
static bool watching;

static void *allocate(size_t size)
{
	void *p = calloc(1, size);

	if (!p) {
		fprintf(stderr, "coherence: no memory\n");
		exit(1);
	}
	return p;
}

/* --- counts per instruction */

enum kind { READ_MISS, WRITE_MISS, UPGRADE, DIRTY, LOCKED, NR_KINDS };

struct count {
	struct count *next;		/* of all */
	uint64_t addr;
	unsigned int phase;
	uint64_t n[NR_KINDS];
};

enum entry { NO_ENTRY, INTERRUPT, FAULT };

/* An instruction of the guest. */
struct site {
	struct site *next;		/* in its bucket */
	uint64_t addr;
	bool locked;
	struct count *last;		/* of its newest phase */
};

/* Since the last PHASE mark. */
struct phase {
	struct phase *older;
	unsigned int number;
	uint64_t windows, spoiled, faults, loads, stores;
};

static struct site *buckets[BUCKETS];
static struct count *counts;
static struct phase *phase;
static uint64_t early, outside;

/* The same code may be translated repeatedly. */
static struct site *find_site(uint64_t addr, bool locked)
{
	struct site **bucket = &buckets[addr % BUCKETS], *site;

	for (site = *bucket; site; site = site->next)
		if (site->addr == addr && site->locked == locked)
			return site;
	site = allocate(sizeof(*site));
	site->addr = addr;
	site->locked = locked;
	site->next = *bucket;
	*bucket = site;
	return site;
}

static void count(struct site *site, enum kind kind)
{
	if (!site->last || site->last->phase != phase->number) {
		site->last = allocate(sizeof(*site->last));
		site->last->addr = site->addr;
		site->last->phase = phase->number;
		site->last->next = counts;
		counts = site->last;
	}
	site->last->n[kind]++;
}

static void next_phase(void)
{
	struct phase *newer = allocate(sizeof(*newer));

	newer->older = phase;
	newer->number = phase ? phase->number + 1 : 0;
	phase = newer;
}

/* --- windows */

static struct window {
	bool open, spoiled;
	unsigned int faults, loads, stores, n;
	struct {
		struct site *site;
		enum kind kind;
	} events[EVENTS_MAX];
} windows[CPUS_MAX];

static void note(struct window *window, struct site *site, enum kind kind)
{
	if (!window->open)
		return;
	if (window->n == EVENTS_MAX) {
		window->spoiled = true;
		return;
	}
	window->events[window->n].site = site;
	window->events[window->n++].kind = kind;
}

static void open_window(struct window *window)
{
	if (!watching || !phase) {
		early++;
		return;
	}
	window->open = true;
	window->spoiled = false;
	window->faults = 0;
	window->loads = 0;
	window->stores = 0;
	window->n = 0;
}

static void close_window(struct window *window)
{
	unsigned int i;

	if (!window->open)
		return;
	window->open = false;
	if (window->spoiled) {
		phase->spoiled++;
		return;
	}
	phase->windows++;
	phase->faults += window->faults;
	phase->loads += window->loads;
	phase->stores += window->stores;
	for (i = 0; i < window->n; i++)
		count(window->events[i].site, window->events[i].kind);
}

/* --- lines */

static struct line {
	uint64_t holders;		/* a bit for each CPU with a copy */
	bool modified;			/* by the only holder */
} *lines;

static void load_line(struct window *window, struct site *site,
		      struct line *line, uint64_t me)
{
	if (line->holders & me)
		return;
	if (line->holders)
		note(window, site, READ_MISS);
	if (line->modified)
		note(window, site, DIRTY);
	line->modified = false;
	line->holders |= me;
}

static void store_line(struct window *window, struct site *site,
		       struct line *line, uint64_t me)
{
	if (line->holders & ~me) {
		if (line->holders & me)
			note(window, site, UPGRADE);
		else
			note(window, site, WRITE_MISS);
		if (line->modified)
			note(window, site, DIRTY);
	}
	line->modified = true;
	line->holders = me;
}

/*
 * A locked instruction gets the line exclusively at once: its load counts as a
 * store.  A read-modify-write without a lock does one after the other, and may
 * move a line twice.
 */
static void on_access(unsigned int cpu, qemu_plugin_meminfo_t info,
		      uint64_t vaddr, void *data)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, vaddr);
	uint64_t paddr, last, me = 1ULL << cpu;
	bool store = qemu_plugin_mem_is_store(info);
	struct window *window = &windows[cpu];
	struct site *site = data;

	if (!hw || qemu_plugin_hwaddr_is_io(hw))
		return;
	paddr = qemu_plugin_hwaddr_phys_addr(hw);
	last = paddr + (1ULL << qemu_plugin_mem_size_shift(info)) - 1;
	/* If it crosses a page, its second part may be anywhere: skip that. */
	if ((last ^ paddr) >> 12)
		last = paddr;
	if (last >= MEMORY_MAX) {
		outside++;
		return;
	}
	if (store)
		window->stores++;
	else
		window->loads++;
	for (paddr >>= LINE_SHIFT; paddr <= last >> LINE_SHIFT; paddr++) {
		if (store || site->locked)
			store_line(window, site, &lines[paddr], me);
		else
			load_line(window, site, &lines[paddr], me);
	}
}

static void on_locked(unsigned int cpu, void *data)
{
	note(&windows[cpu], data, LOCKED);
}

/* --- entries of the kernel */

static struct {
	uint64_t addr;
	enum entry entry;
} entries[ENTRIES_MAX];
static int nr_entries;

static enum entry find_entry(uint64_t addr)
{
	int i;

	for (i = 0; i < nr_entries; i++)
		if (entries[i].addr == addr)
			return entries[i].entry;
	return NO_ENTRY;
}

static void on_interrupt(unsigned int cpu, void *data)
{
	windows[cpu].spoiled = true;
}

static void on_fault(unsigned int cpu, void *data)
{
	windows[cpu].faults++;
}

static bool read_entries(const char *path)
{
	FILE *f = fopen(path, "r");
	uint64_t addr;
	char what[16];

	if (!f)
		return false;
	while (nr_entries < ENTRIES_MAX &&
	       fscanf(f, "%15s %" SCNx64, what, &addr) == 2) {
		entries[nr_entries].addr = addr;
		entries[nr_entries++].entry =
			strcmp(what, "fault") ? INTERRUPT : FAULT;
	}
	/* A remaining line is malformed or exceeds the limit. */
	if (fscanf(f, "%15s", what) != EOF)
		nr_entries = 0;
	fclose(f);
	return nr_entries > 0;
}

/* --- results */

/*
 * Lines of text:
 *	phase NUMBER windows N spoiled N faults N loads N stores N
 *	count PHASE ADDRESS READ-MISSES WRITE-MISSES UPGRADES DIRTY LOCKED
 *	early N		windows before MARK_WATCH took effect, or with no phase
 *	outside N	accesses to memory that is not tracked
 *	end
 */
static void write_results(void)
{
	FILE *f = fopen(out_path, "w");
	struct phase *p;
	struct count *c;
	int kind;

	if (!f) {
		perror(out_path);
		return;
	}
	for (p = phase; p; p = p->older) {
		fprintf(f, "phase %u windows %" PRIu64 " spoiled %" PRIu64,
			p->number, p->windows, p->spoiled);
		fprintf(f, " faults %" PRIu64 " loads %" PRIu64,
			p->faults, p->loads);
		fprintf(f, " stores %" PRIu64 "\n", p->stores);
	}
	for (c = counts; c; c = c->next) {
		fprintf(f, "count %u %" PRIx64, c->phase, c->addr);
		for (kind = 0; kind < NR_KINDS; kind++)
			fprintf(f, " %" PRIu64, c->n[kind]);
		fputc('\n', f);
	}
	fprintf(f, "early %" PRIu64 "\noutside %" PRIu64 "\nend\n",
		early, outside);
	if (fclose(f))
		perror(out_path);
}

/* --- translation */

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);

/* All callbacks are removed, and all code will be retranslated. */
static void on_reset(qemu_plugin_id_t id)
{
	watching = true;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
}

static void on_mark(unsigned int cpu, void *data)
{
	static bool asked;

	switch ((uintptr_t)data) {
	case MARK_WATCH:
		if (!asked)
			qemu_plugin_reset(plugin, on_reset);
		asked = true;
		break;
	case MARK_PHASE:
		next_phase();
		break;
	case MARK_BEGIN:
		open_window(&windows[cpu]);
		break;
	case MARK_END:
		close_window(&windows[cpu]);
		break;
	case MARK_WRITE:
		write_results();
		break;
	}
}

static size_t insn_bytes(const struct qemu_plugin_insn *insn, uint8_t *bytes)
{
	size_t size = qemu_plugin_insn_size(insn);

	if (size > INSN_MAX)
		size = INSN_MAX;
#if QEMU_PLUGIN_VERSION >= 3
	return qemu_plugin_insn_data(insn, bytes, size);
#else
	memcpy(bytes, qemu_plugin_insn_data(insn), size);
	return size;
#endif
}

/* The number of the mark, or 0. */
static uintptr_t mark_of(const uint8_t *bytes, size_t size)
{
	uint32_t operand;

	if (size != MARK_SIZE || memcmp(bytes, MARK_OPCODE, 3))
		return 0;
	operand = bytes[3] | bytes[4] << 8 | bytes[5] << 16 |
		  (uint32_t)bytes[6] << 24;
	return operand >> 8 == MARK_MAGIC >> 8 ? operand & 0xff : 0;
}

static bool is_prefix(uint8_t byte)
{
	switch (byte) {
	case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65:
	case 0x66: case 0x67:		/* segments, sizes */
	case 0xf0: case 0xf2: case 0xf3:	/* lock, repeat */
	case 0x40 ... 0x4f:		/* REX */
		return true;
	}
	return false;
}

/* With a lock prefix; or xchg with memory, which locks without one. */
static bool is_locked(const uint8_t *bytes, size_t size)
{
	size_t i;

	for (i = 0; i < size && is_prefix(bytes[i]); i++)
		if (bytes[i] == 0xf0)
			return true;
	return i + 1 < size && (bytes[i] == 0x86 || bytes[i] == 0x87) &&
	       bytes[i + 1] >> 6 != 3;
}

static void watch_insn(struct qemu_plugin_insn *insn, const uint8_t *bytes,
		       size_t size)
{
	uint64_t addr = qemu_plugin_insn_vaddr(insn);
	struct site *site = find_site(addr, is_locked(bytes, size));
	enum entry entry = find_entry(addr);

	if (entry)
		qemu_plugin_register_vcpu_insn_exec_cb(insn,
						       entry == FAULT ?
						       on_fault : on_interrupt,
						       QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
	if (site->locked)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_locked,
						       QEMU_PLUGIN_CB_NO_REGS,
						       site);
	qemu_plugin_register_vcpu_mem_cb(insn, on_access,
					 QEMU_PLUGIN_CB_NO_REGS,
					 QEMU_PLUGIN_MEM_RW, site);
}

/* While the guest boots, only detect marks; tracking starts later. */
static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb), i;
	uint8_t bytes[INSN_MAX];

	for (i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		size_t size = insn_bytes(insn, bytes);
		uintptr_t mark = mark_of(bytes, size);

		if (mark)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark,
							       QEMU_PLUGIN_CB_NO_REGS,
							       (void *)mark);
		else if (watching)
			watch_insn(insn, bytes, size);
	}
}

/* --- start */

static int fail(const char *why, const char *what)
{
	fprintf(stderr, "coherence: %s%s\n", why, what);
	return 1;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id,
					   const qemu_info_t *info, int argc,
					   char **argv)
{
	int i;

	plugin = id;
	if (!info->system_emulation || strcmp(info->target_name, "x86_64"))
		return fail("only for x86_64 machines, not ",
			    info->target_name);
	if (info->system.max_vcpus > CPUS_MAX)
		return fail("too many CPUs", "");
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out_path = argv[i] + 4;
		else if (strncmp(argv[i], "entries=", 8))
			return fail("unknown argument ", argv[i]);
		else if (!read_entries(argv[i] + 8))
			return fail("cannot parse ", argv[i]);
	}
	if (!out_path || !nr_entries)
		return fail("out= and entries= are missing", "");
	/* Only the used part takes memory. */
	lines = mmap(NULL, NR_LINES * sizeof(*lines), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (lines == MAP_FAILED)
		return fail("no memory", "");
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	return 0;
}
