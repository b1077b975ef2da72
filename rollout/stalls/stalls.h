/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the BPF programs and the program that reads their maps.
 */
#ifndef FAULTLINE_STALLS_H
#define FAULTLINE_STALLS_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define COMM_LEN 16
#define FILE_LEN 16
#define STACK_DEPTH 24
/* Four buckets for each power of two of 1.024 us: up to 137 s. */
#define SLOTS 108
#define SLOT_UNIT 1024
/* A test makes them small. */
#ifndef MAX_GROUPS
#define MAX_GROUPS 8192
#endif
#define MAX_STACKS 16384
#ifndef MAX_WAITERS
#define MAX_WAITERS 32768
#endif
#define MAX_SENDERS 512
/* Of threads whose numbers have the same remainder, the last one is kept. */
#define HUGE_FAULTS 8192

/*
 * The section switches hold a lock for at most the work of so much memory, while
 * others wait for it: UFFDIO_WRITEPROTECT for 16 MiB, other calls for less.
 */
#define SECTION_MIB 16

/* The kinds of locks; an exit is a duration without one. */
enum lock_kind {
	LOCK_NONE,
	LOCK_MMAP,
	LOCK_VMA,
	LOCK_HUGE_FILE,
	LOCK_HUGE_VMA,
	LOCK_HUGE_FAULT,
	LOCK_EXIT,
	LOCK_KINDS
};

enum {
	CAUSE_READER	= 1 << 0,
	CAUSE_KTHREAD	= 1 << 1,
	/* The range of the call is at least large_bytes long. */
	CAUSE_LARGE	= 1 << 2,
	/* No holder had the lock for a quarter of the wait. */
	CAUSE_CROWD	= 1 << 3,
	/* The waiter had no CPU for half of the wait, after it was woken. */
	CAUSE_NO_CPU	= 1 << 4,
	CAUSE_UNKNOWN	= 1 << 5,
	/* From the owner word: for a reader this is a hint. */
	CAUSE_OWNER	= 1 << 6,
	CAUSE_COMPAT	= 1 << 7,
	/* An exit with pages of hugetlb, or a page fault in such memory. */
	CAUSE_HUGETLB	= 1 << 8,
	CAUSE_IO_WORKER	= 1 << 9,
	/* The call maps memory without access. */
	CAUSE_NO_ACCESS	= 1 << 10,
	CAUSE_USER_WORKER = 1 << 11,
};

/* The state of a holder when the waiter came. */
enum holder_state { STATE_RUNNING, STATE_PREEMPTED, STATE_THROTTLED, STATE_ASLEEP };

/* A holder and its call. */
struct cause {
	char comm[COMM_LEN];
	/* The name of a file in /proc that it reads or writes. */
	char file[FILE_LEN];
	int nr;
	unsigned int arg;
	int stack;
	unsigned int pid;
	unsigned short flags;
	unsigned char state;
	/* slot_of() the MiB of its range or its process; 0: up to a section, or not known. */
	unsigned char size;
};

struct segment {
	u64 start;
	u64 end;
	struct cause cause;
};

#define SEGMENTS 4

/* One lock that somebody waits for. */
struct history {
	/* The end of the last segment. */
	u64 since;
	u64 releases;
	int waiters;
	int pad;
	struct segment segments[SEGMENTS];
	/* The last writer that had to wait, since it has the lock. */
	struct segment taken;
};

struct waiter {
	u64 begin;
	u64 lock;
	u64 woken;
	/* How long it had been without a CPU then. */
	u64 delay;
	u64 releases;
	/* How many waits had begun, this one included. */
	u64 arrivals;
	struct cause owner;
	/* The release that woke it; the history may have no room for that. */
	struct segment last;
	u8 kind;
	u8 write;
	/* From the function, not from the tracepoint. */
	u8 whole;
	u8 pad[5];
};

/* The last page fault of a thread in memory of hugetlb. */
struct huge_fault {
	/* How many faults the thread had counted. */
	u64 faults;
	/* How many waits had begun, anywhere. */
	u64 arrivals;
	u32 pid;
	u32 pad;
};

/* Digits of the names are zeros: the threads of a pool are one group. */
struct group_key {
	struct cause cause;
	char waiter[COMM_LEN];
	unsigned char lock;
	unsigned char write;
	unsigned char pad[2];
};

struct group {
	/* The names of its threads, with * where they differ. */
	char holder[COMM_LEN];
	char waiter[COMM_LEN];
	unsigned long long waits;
	unsigned long long total;
	unsigned long long max;
	unsigned int slots[SLOTS];
};

static inline __attribute__((always_inline)) u32 slot_of(u64 ns)
{
	u64 units = ns / SLOT_UNIT;
	u32 power = 0, step, slot;

	/* The position of the highest bit. */
	for (step = 16; step; step /= 2)
		if (units >> (power + step))
			power += step;
	slot = power * 4 + (power >= 2 ? (units >> (power - 2)) & 3 :
			    (units << (2 - power)) & 3);
	return slot < SLOTS ? slot : SLOTS - 1;
}

struct sender {
	char comm[COMM_LEN];
	unsigned int kthread;
};

#endif
