/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the Faultline selftests and benchmarks: sysctls, counters, /proc readers, page
 * contents that can be checked, races, and threads that keep a process
 * multi-threaded.
 */
#ifndef FAULTLINE_UTIL_H
#define FAULTLINE_UTIL_H

#include <linux/types.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#define KIB		1024UL
#define MIB		(1024UL * KIB)
#define GIB		(1024UL * MIB)

#ifndef SYS_mseal
#define SYS_mseal	462
#endif

/* Debian 12's libc does not know these yet. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE	101
#endif

size_t page_size(void);
size_t pmd_size(void);

/* --- sysctl vm.NAME; returns 0 or -errno */
bool vm_sysctl_exists(const char *name);
int vm_sysctl_read(const char *name, long *value);
int vm_sysctl_write(const char *name, long value);
int vm_sysctl_write_text(const char *name, const char *text);

/* --- the commit limit: vm.overcommit_memory=2 */
struct commit_limit {
	long memory, ratio, kbytes;	/* vm.overcommit_*, as they were */
};

/* Notes the sysctls; false if there are none. */
bool commit_limit_read(struct commit_limit *c);
/* Leaves room for @kb more than is committed now. */
bool commit_limit_set(long kb);
void commit_limit_lift(const struct commit_limit *c);

/* --- a sysctl vm.NAME that switches a feature */
struct vm_knob {
	const char *name;
	long stock;		/* the behaviour of a kernel without the knob */
	const char *refused;	/* the message when a write fails */
};

/*
 * Sets the knob for a test.  Returns NULL, or the reason why a test that needs
 * this value cannot run.  The text is valid until the next call.
 */
const char *vm_knob_set(const struct vm_knob *knob, long value);
/*
 * Runs a program's tests in a child, because the harness ends by exit(), and
 * restores the knob.  Returns the exit status.
 */
int vm_knob_kept(const struct vm_knob *knob, int (*run)(int argc, char **argv),
		 int argc, char **argv);
/* The same without a knob. */
int run_in_child(int (*run)(int argc, char **argv), int argc, char **argv);

/*
 * Whether a test may flip static keys continuously.
 *
 * A flip rewrites code that other CPUs run.  Under QEMU 7.2 with a thread per
 * CPU ("-accel tcg,thread=multi") the kernel then occasionally dies of a
 * breakpoint that is no longer in memory; a stock kernel does the same when
 * one of its own static keys is flipped often.  So the answer is no on an
 * emulated CPU, unless FAULTLINE_FLIP_OFF is set: a run with one thread
 * ("thread=single", or -icount) should set it.
 */
bool static_keys_flip(void);

/* --- races */

/*
 * Reads a positive number from the environment; the harness owns the command
 * line.  Returns false if @name is set to anything else.
 */
bool env_number(const char *name, long *value);

/* Values that a thread writes to a sysctl in turn, over and over. */
struct flips {
	const char *name;
	long values[6];
	int n;
	/* Leading values that flip no static key; 0: the race is skipped. */
	int n_keyless;
	/* Called after each write; may be NULL. */
	void (*written)(int turn, long value);
};

struct flipper {
	const struct flips *flips;
	int ms;			/* between two writes */
	pthread_t thread;
	bool running;
	atomic_bool stop;
	atomic_long count;	/* successful writes, summed over all runs */
};

/* Returns 0 or an error number. */
int flipper_start(struct flipper *f, const struct flips *flips, int ms);
/* Does nothing if the flipper is not running. */
void flipper_stop(struct flipper *f);

/*
 * Sets the knob for a race and checks for two CPUs.  @flips may be NULL.
 * Returns NULL, or the reason why the race cannot run.
 */
const char *race_prepare(const struct vm_knob *knob, long value,
			 const struct flips *flips);

/* --- processes */

/* Zeroed memory shared with children; NULL on failure. */
void *map_shared(size_t size);
/* fork(); the child dies with its parent. */
pid_t fork_bound(void);
/*
 * FAULTLINE_MEMORY_FAILS: may a test make memory fail for good?  Other tests should not
 * run after that.
 */
static inline bool memory_may_fail(void)
{
	return getenv("FAULTLINE_MEMORY_FAILS");
}

/* Exit status of a child; 256 + signal if one killed it; -1 on failure. */
int reap(pid_t pid);
/*
 * Accesses that may raise SIGSEGV or SIGBUS, after catch_faults().  Both return
 * the signal or 0.  Any other access that raises one ends the process.
 */
void catch_faults(void);
int try_read(const void *addr, __u64 *word);
int try_write(void *addr, __u64 word);
/* The same for a single access; @info may be NULL. */
int access_signal(void *addr, bool write, siginfo_t *info);

/* --- a memory cgroup (version 2) */
struct memory_group {
	char root[64];
	char dir[96];
};

/*
 * Makes a group and moves this process into it.  False if that is not possible,
 * with nothing changed.
 */
bool memory_group_enter(struct memory_group *g);
/* The same with another controller, such as "cpu". */
bool control_group_enter(struct memory_group *g, const char *controller);
/* Writes a file of the group; 0 or -errno. */
int memory_group_write(const struct memory_group *g, const char *file,
		       const char *text);
/* A number of memory.stat or memory.events; -1 if it is not there. */
long memory_group_read(const struct memory_group *g, const char *file,
		       const char *field);
/* Moves this process out, but not its children. */
void memory_group_exit(const struct memory_group *g);
/* The same, and removes the group. */
void memory_group_leave(const struct memory_group *g);

/* Steps that processes take in turn, in shared memory. */
struct rendezvous {
	atomic_int stage;
	atomic_int tid;		/* of a thread that another process watches */
};

void meet(struct rendezvous *m, int stage);
void wait_for(struct rendezvous *m, int stage);

/* The state of a thread, such as 'D'; 0 if it is not there. */
char task_state(pid_t pid, pid_t tid);

struct fault_setting {
	const char *file;
	const char *text;
};

/* Configures a fault attribute in debugfs; false if the kernel lacks it. */
bool fault_attr_set(const char *attr, const struct fault_setting *settings,
		    size_t n);

/* --- /proc; returns -1 if the file has no such line */
int write_text(const char *path, const char *text);
int read_text(const char *path, char *buf, size_t size);
long proc_kb(const char *path, const char *field);
long status_kb(const char *field);
/*
 * The page tables of this process in KiB.  Every library call in between may
 * add a table, so only values read right before and after an operation compare
 * exactly.
 */
long page_tables_kb(void);
long meminfo_kb(const char *field);
/* Minor page faults of this process so far. */
long minor_faults(void);
long vmstat_read(const char *name);
int map_count(void);

/* Swaps to compressed memory, unless there is swap; true if there is now. */
bool swap_start(void);
/* Ends what swap_start() has begun. */
void swap_stop(void);
/* How much of @len bytes fits into the swap that there is now, in KiB. */
long swappable_kb(size_t len);

/*
 * The counters of one feature: the lines of /proc/vmstat with a prefix, such as
 * "spf_"; names are without it.  A kernel without the feature has none.
 */
#define COUNTERS_MAX	24

struct counters {
	const char *prefix;
	int n;
	struct {
		char name[32];
		long value;
	} list[COUNTERS_MAX];
};

struct counters counters_read(const char *prefix);
struct counters counters_since(const struct counters *before);
/* Returns 0 if there are no counters, and aborts if there are only others. */
long counter(const struct counters *c, const char *name);
/* The difference of a single counter. */
long counted(const struct counters *before, const char *name);
/* " NAME VALUE" for each of them; valid until the next call. */
const char *counters_text(const struct counters *c);

/* Whether a line of /proc/PID/maps or smaps begins a mapping, and its addresses. */
bool vma_header(const char *line, unsigned long *start, unsigned long *end);
/* Bytes of [addr, addr + len) covered by VMAs of this process. */
size_t mapped_bytes(const void *addr, size_t len);
/* The mappings that a range has a part of; -1 if they cannot be read. */
int mappings(const void *addr, size_t len);
/* A smaps field summed over the VMAs in [addr, addr + len), in kB. */
long smaps_kb(const void *addr, size_t len, const char *field);
/* Whether a VMA covers this page; does not touch the page. */
bool page_is_mapped(const void *addr);

/* --- page contents: one word per page, derived from a tag and the index */
__u64 page_word(__u64 tag, size_t index);
/* Exactly one memory access, which the compiler must not drop. */
static inline __u64 word_read(const void *addr)
{
	return __atomic_load_n((const __u64 *)addr, __ATOMIC_RELAXED);
}

static inline void word_write(void *addr, __u64 word)
{
	__atomic_store_n((__u64 *)addr, word, __ATOMIC_RELAXED);
}

void fill_pages(void *addr, size_t len, __u64 tag);
size_t bad_pages(const void *addr, size_t len, __u64 tag);
/* Pages whose first word is not zero. */
size_t nonzero_pages(const void *addr, size_t len);

/* Private anonymous memory; NULL on failure. */
void *map_fresh(size_t len);
/* The same at @addr, in place of what is mapped there. */
void *map_fresh_at(void *addr, size_t len);
/* Takes memory away in place, as allocators and language runtimes do; NULL on failure. */
void *decommit(void *addr, size_t len);
/* The same in a free_range(). */
void *map_apart(size_t len);
/* The same, of base pages filled with @tag. */
void *map_filled(size_t len, __u64 tag);
/*
 * Returns a multiple of 1 GiB where [addr, addr + len) and 1 GiB on both sides
 * are free, so that no page table is shared with a neighbour.
 */
void *free_range(size_t len);
/*
 * The same for hugetlb: the hash MMU of powerpc keeps huge pages and base pages
 * in different parts of the address space.
 */
void *free_huge_range(size_t len);

/* --- a thread that only sleeps, so that mm_users is 2 */
struct idle_thread {
	pid_t tid;
	pthread_t thread;
	int pipe[2];
	bool running;
};

int idle_thread_start(struct idle_thread *idle);
void idle_thread_stop(struct idle_thread *idle);

/* --- time and randomness */
static inline __u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

__u64 random_next(__u64 *state);

/*
 * --- a block device in memory, open for direct I/O; -1 if loop devices are
 * missing or not permitted
 */
int loop_device(size_t size);
void loop_device_free(int fd);

/* --- a userfaultfd, or -1; @got: its features, may be NULL */
int uffd_open(__u64 features, __u64 *got);
/* As ioctl(). */
int uffd_register(int fd, const void *addr, size_t len, __u64 mode);
int uffd_unregister(int fd, const void *addr, size_t len);
int uffd_protect(int fd, const void *addr, size_t len, bool protect);
/* The pages of a range that are write-protected. */
size_t uffd_protected(const void *addr, size_t len);

/* Bits in an entry of /proc/PID/pagemap: written to, write-protected by userfaultfd. */
#define PAGEMAP_SOFT_DIRTY	55
#define PAGEMAP_UFFD_WP		57

/* The pages of a range whose entries have a bit. */
size_t pagemap_pages(const void *addr, size_t len, int bit);

/* A thread that reads the events of a userfaultfd. */
struct uffd_reader {
	int fd;
	__u8 event;		/* the one that is awaited */
	int stop[2];
	pthread_t thread;
	/* The caller sets it when the call that causes the event returns. */
	atomic_bool returned;
	/* After uffd_reader_stop(): */
	int events;		/* of any kind */
	int awaited;
	bool late;		/* an event was not read before @returned */
	__u64 start, end;	/* of the last one awaited */
};

/* Returns 0 or an error number. */
int uffd_reader_start(struct uffd_reader *r);
void uffd_reader_stop(struct uffd_reader *r);

/* --- kernel messages logged after kmsg_open() */
int kmsg_open(void);
/* Reads the next message; false if there is none. */
bool kmsg_next(int fd, char *buf, size_t size);

/* --- events of one trace system in a private trace instance */
struct trace_session {
	char dir[256];
	char *text;		/* after trace_stop(): one event per line */
};

/* 0 or -errno; -ENOENT: the kernel lacks this trace system. */
int trace_start(struct trace_session *t, const char *system);
int trace_stop(struct trace_session *t);
void trace_free(struct trace_session *t);
/*
 * Finds "NAME: " in the event text from @pos on, copies the rest of the line
 * and returns where to continue; NULL at the end.
 */
const char *trace_next(const char *pos, const char *name, char *line,
		       size_t size);
bool trace_field(const char *line, const char *field, unsigned long *value);

#endif /* FAULTLINE_UTIL_H */
