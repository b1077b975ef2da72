/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the Faultline selftests share: sysctls, counters, /proc readers,
 * page contents that can be checked, and threads that keep a process
 * multi-threaded.
 */
#ifndef FAULTLINE_UTIL_H
#define FAULTLINE_UTIL_H

#include <linux/types.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

size_t page_size(void);
size_t pmd_size(void);

/* --- sysctl vm.NAME; the results are 0 or -errno */
bool vm_sysctl_exists(const char *name);
int vm_sysctl_read(const char *name, long *value);
int vm_sysctl_write(const char *name, long value);
int vm_sysctl_write_text(const char *name, const char *text);
/* Writes 0 and 1 in turns until @stop; adds to @flips for each that worked. */
void vm_sysctl_flip(const char *name, const atomic_bool *stop,
		    atomic_long *flips);

/* --- a sysctl vm.NAME that switches a feature */
struct vm_knob {
	const char *name;
	long stock;		/* what a kernel without the knob does */
	const char *refused;	/* what to say of it when a write fails */
};

/*
 * Sets the knob for a test.  NULL, or why a test that needs this value cannot
 * run; the text is good until the next call.
 */
const char *vm_knob_set(const struct vm_knob *knob, long value);
/*
 * Runs a program's tests between reading the knob and writing it back.
 * The processes of the tests leave it as they last had it.  What to exit
 * with, or -1 if the tests could not be run.
 */
int vm_knob_kept(const struct vm_knob *knob, int (*run)(int argc, char **argv),
		 int argc, char **argv);
/* The same without a knob: in a child, as the harness ends by exit(). */
int run_in_child(int (*run)(int argc, char **argv), int argc, char **argv);

/*
 * Whether a test may flip static keys all the time.
 *
 * That rewrites code that the other CPUs run.  Under QEMU 7.2 with a thread
 * per CPU ("-accel tcg,thread=multi") the kernel then dies now and then of a
 * breakpoint that is no longer in memory; a stock kernel does the same when
 * a static key of its own is flipped often.  So no on an emulated CPU, unless
 * FAULTLINE_FLIP_OFF is set: a run with one thread ("thread=single", or
 * -icount) should set it.
 */
bool static_keys_flip(void);

/* --- /proc; -1 when the file has no such line */
int write_text(const char *path, const char *text);
int read_text(const char *path, char *buf, size_t size);
long status_kb(const char *field);
long meminfo_kb(const char *field);
long vmstat_read(const char *name);
/* Several counters of one feature; a kernel without it has none: all are -1. */
void vmstat_read_all(const char * const *names, long *values, int n);
/* How much they have grown since they were @before. */
void vmstat_since(const char * const *names, const long *before, long *delta,
		  int n);
int map_count(void);

/* Bytes of [addr, addr + len) that some VMA of this process covers. */
size_t mapped_bytes(const void *addr, size_t len);
/* A smaps field, summed over the VMAs that lie in [addr, addr + len), in kB. */
long smaps_kb(const void *addr, size_t len, const char *field);
/* Whether a VMA covers this page: does not touch the page. */
bool page_is_mapped(const void *addr);

/* --- page contents: one word per page, made from a tag and the page's index */
__u64 page_word(__u64 tag, size_t index);
/* Each is one access to memory, which the compiler may not drop. */
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

/* Anonymous memory of base pages, filled with @tag; NULL on failure. */
void *map_filled(size_t len, __u64 tag);
/*
 * An address where [addr, addr + len) and 1 GiB to both sides are free, so
 * that no page table is shared with a neighbour.  A multiple of 1 GiB.
 */
void *free_range(size_t len);
/*
 * The same for hugetlb: the hash MMU of powerpc has them in other parts of the
 * address space than base pages.
 */
void *free_huge_range(size_t len);

/* --- a thread that only sleeps: it makes mm_users 2 */
struct idle_thread {
	pthread_t thread;
	int pipe[2];
	bool running;
};

int idle_thread_start(struct idle_thread *idle);
void idle_thread_stop(struct idle_thread *idle);

/* --- time and chance */
__u64 now_ns(void);
__u64 random_next(__u64 *state);

/*
 * --- a block device in memory, open for direct I/O, or -1 if the kernel has
 * no loop devices or does not let us
 */
int loop_device(size_t size);
void loop_device_free(int fd);

/* --- a userfaultfd, or -1; @got: the features it has, may be NULL */
int uffd_open(__u64 features, __u64 *got);

/* --- messages of the kernel, those that come from kmsg_open() on */
int kmsg_open(void);
/* The next one, as text; false when there are no more. */
bool kmsg_next(int fd, char *buf, size_t size);

/* --- events of one trace system in a trace instance of our own */
struct trace_session {
	char dir[256];
	char *text;		/* after trace_stop(): the events, one a line */
};

/* 0, or -errno; -ENOENT means that the kernel has no such trace system. */
int trace_start(struct trace_session *t, const char *system);
int trace_stop(struct trace_session *t);
void trace_free(struct trace_session *t);
/*
 * Finds "NAME: " in the event text from @pos on, gives the rest of the line
 * and returns where to go on; NULL at the end.
 */
const char *trace_next(const char *pos, const char *name, char *line,
		       size_t size);
bool trace_field(const char *line, const char *field, unsigned long *value);

#endif /* FAULTLINE_UTIL_H */
