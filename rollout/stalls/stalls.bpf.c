// SPDX-License-Identifier: GPL-2.0-only
/*
 * Waits for mmap_lock, the locks of VMAs and those of hugetlb, and who holds
 * the lock meanwhile.
 *
 * A wait is what lies between contention_begin and contention_end.  There are
 * two sources for the holder.  The task that releases the lock wakes a waiter,
 * so in sched_waking it is current: its stack and its call are exact, and each
 * release ends one segment of the history of the lock.  A waiter that nobody
 * has woken, because it was spinning, has the owner word, which names the
 * writer; for a lock that readers hold it names the last of them that came,
 * which may have left.
 *
 * The history of a lock is changed without a lock, by the tasks that release
 * it.  Two readers that leave at the same time can mix up one entry: a group
 * then has one wait too many, and another one too few.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "stalls.h"

char LICENSE[] SEC("license") = "GPL";

/* --- The kernel's types: only the fields that are read here. */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	long counter;
} atomic_long_t;

typedef struct {
	int counter;
} atomic_t;

struct rw_semaphore {
	atomic_long_t owner;
};

struct mutex {
	atomic_long_t owner;
};

struct task_struct;

struct mm_struct {
	struct rw_semaphore mmap_lock;
	struct task_struct *owner;
	atomic_long_t hugetlb_usage;
	atomic_long_t pgtables_bytes;
};

struct super_block {
	unsigned long s_magic;
};

struct address_space {
	void *host;
	struct rw_semaphore i_mmap_rwsem;
};

struct inode {
	struct super_block *i_sb;
	struct address_space i_data;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
	struct super_block *d_sb;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct path f_path;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct cfs_rq {
	int throttle_count;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	u32 status;
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigpending {
	sigset_t signal;
};

struct signal_struct {
	struct sigpending shared_pending;
};

struct sched_info {
	unsigned long long run_delay;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	void *stack;
	unsigned int flags;
	int on_cpu;
	struct sched_entity se;
	struct mm_struct *mm;
	int pid;
	int tgid;
	char comm[COMM_LEN];
	struct files_struct *files;
	struct sched_info sched_info;
	struct signal_struct *signal;
	struct sigpending pending;
	unsigned long min_flt;
	unsigned long maj_flt;
};

struct pt_regs {
	unsigned long r10;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};

struct anon_vma {
	struct anon_vma *root;
	struct rw_semaphore rwsem;
};

struct vm_area_struct {
	void *vm_private_data;
};

struct hugetlb_vma_lock {
	struct rw_semaphore rw_sema;
	struct vm_area_struct *vma;
};

/* 6.4 to 6.14; later kernels have a reference count, without these events. */
struct vma_lock {
	struct rw_semaphore lock;
};

#pragma clang attribute pop

/* include/trace/events/lock.h */
#define LCB_F_SPIN	(1U << 0)
#define LCB_F_READ	(1U << 1)
#define LCB_F_WRITE	(1U << 2)
#define LCB_F_RT	(1U << 3)
#define LCB_F_PERCPU	(1U << 4)
#define LCB_F_MUTEX	(1U << 5)

#define PF_IO_WORKER	0x00000010
#define PF_USER_WORKER	0x00004000
#define PF_KTHREAD	0x00200000
#define TS_COMPAT	0x0002
#define X32_SYSCALL_BIT	0x40000000
#define PROT_NONE	0
#define SIGKILL_BIT	(1UL << 8)
#define HUGETLBFS_MAGIC	0x958458f6
#define PROC_SUPER_MAGIC 0x9fa0
/* The low bits of an owner word are flags, of which bit 0 says: a reader. */
#define OWNER_FLAGS	7UL
#define OWNER_READER	1UL

#define NR_READ		0
#define NR_WRITE	1
#define NR_CLOSE	3
#define NR_MMAP		9
#define NR_MUNMAP	11
#define NR_MREMAP	25
#define NR_IOCTL	16
#define NR_PREAD64	17
#define NR_MADVISE	28
#define NR_MLOCK	149
#define NR_MUNLOCK	150
#define NR_MLOCKALL	151
#define NR_MUNLOCKALL	152
#define NR_MLOCK2	325
#define NR_IO_URING_REGISTER 427
#define NR_PROCESS_MADVISE 440

#define PAGE_TABLE_BYTES 4096
#define PAGE_TABLE_MAPS	(2 << 20)

const volatile u64 min_ns = 1000000;
/* Shorter exits are not listed. */
const volatile u64 min_exit_ns = 100000000;
const volatile u64 large_bytes = 64 << 20;
const volatile u32 only_tgid;
const volatile u64 only_cgroup;
const volatile u32 cgroup_level;
/* The variable that points to the mutexes of hugetlb page faults; their number. */
const volatile u64 fault_mutex_table;
const volatile u64 fault_mutexes;

/* Counters for what is not in a group. */
u64 short_waits, short_ns;
u64 lost_waiters, lost_groups, lost_group_ns, lost_stacks, lost_senders;
u64 lost_exits, lost_ends;
/* write_begin is there, so that the tracepoint has nothing to tell of writers. */
bool writers_begin;
/* Entries of waiters: with none, a wakeup or the end of a wait costs one read. */
int waiting;
/* Waits that have begun. */
u64 arrivals;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WAITERS);
	__type(key, u32);
	__type(value, struct waiter);
} waiters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct history);
} histories SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__type(key, struct group_key);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, MAX_STACKS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACK_DEPTH * sizeof(u64));
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} exits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS);
	__type(key, struct sender);
	__type(value, u64);
} senders SEC(".maps");

/* An array: a page fault of hugetlb may be as short as an update of a hash table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HUGE_FAULTS);
	__type(key, u32);
	__type(value, struct huge_fault);
} huge_faults SEC(".maps");

static struct group no_group;
static struct history no_history;

/* --- Holders */

static __always_inline u8 state_of(struct task_struct *task)
{
	struct cfs_rq *queue;

	if (BPF_CORE_READ(task, __state))
		return STATE_ASLEEP;
	if (bpf_core_field_exists(task->on_cpu) && BPF_CORE_READ(task, on_cpu))
		return STATE_RUNNING;
	if (bpf_core_field_exists(task->se.cfs_rq) &&
	    bpf_core_field_exists(struct cfs_rq, throttle_count)) {
		queue = BPF_CORE_READ(task, se.cfs_rq);
		if (queue && BPF_CORE_READ(queue, throttle_count) > 0)
			return STATE_THROTTLED;
	}
	return STATE_PREEMPTED;
}

/* The name of a file in /proc.  Names of other files are private. */
static __always_inline void name_file(struct cause *cause,
				      struct task_struct *task, unsigned long fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct dentry *dentry;
	struct file **slot, *file = NULL;

	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return;
	slot = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), slot + fd);
	if (!file)
		return;
	dentry = BPF_CORE_READ(file, f_path.dentry);
	if (!dentry || BPF_CORE_READ(dentry, d_sb, s_magic) != PROC_SUPER_MAGIC)
		return;
	bpf_probe_read_kernel_str(cause->file, sizeof(cause->file),
				  BPF_CORE_READ(dentry, d_name.name));
}

/* The memory that the page tables of a process map; for calls that walk all of it. */
static __always_inline u64 mapped_bytes(struct mm_struct *mm)
{
	if (!mm || !bpf_core_field_exists(mm->pgtables_bytes))
		return 0;
	return (u64)BPF_CORE_READ(mm, pgtables_bytes.counter) /
		PAGE_TABLE_BYTES * PAGE_TABLE_MAPS;
}

/* A system call's registers stay at the top of the task's stack. */
static __always_inline void describe(struct cause *cause,
				     struct task_struct *task,
				     struct pt_regs *regs,
				     struct mm_struct *mm)
{
	u32 flags = BPF_CORE_READ(task, flags);
	u64 length = 0, shorter, work = 0;
	unsigned long call;
	int nr;

	BPF_CORE_READ_INTO(&cause->comm, task, comm);
	cause->pid = BPF_CORE_READ(task, pid);
	cause->nr = -1;
	cause->stack = -1;
	if (flags & PF_KTHREAD) {
		cause->flags |= CAUSE_KTHREAD;
		return;
	}
	if (flags & PF_IO_WORKER) {
		cause->flags |= CAUSE_IO_WORKER;
		return;
	}
	if (flags & PF_USER_WORKER) {
		cause->flags |= CAUSE_USER_WORKER;
		return;
	}
	if (BPF_CORE_READ(task, thread_info.status) & TS_COMPAT) {
		cause->flags |= CAUSE_COMPAT;
		return;
	}
	/* A task that has exited has no stack. */
	if (bpf_core_read(&call, sizeof(call), &regs->orig_ax)) {
		cause->flags |= CAUSE_UNKNOWN;
		return;
	}
	nr = call;
	if (nr > 0)
		nr &= ~X32_SYSCALL_BIT;
	cause->nr = nr;
	switch (nr) {
	case NR_MUNMAP:
		length = BPF_CORE_READ(regs, si);
		break;
	case NR_MMAP:
		length = BPF_CORE_READ(regs, si);
		cause->arg = BPF_CORE_READ(regs, r10);
		if ((u32)BPF_CORE_READ(regs, dx) == PROT_NONE)
			cause->flags |= CAUSE_NO_ACCESS;
		break;
	case NR_MREMAP:
		length = BPF_CORE_READ(regs, si);
		shorter = BPF_CORE_READ(regs, dx);
		if (length < shorter) {
			/* It may have to be moved. */
			cause->arg = BPF_CORE_READ(regs, r10);
			work = length;
		}
		length = length > shorter ? length - shorter : 0;
		break;
	case NR_MADVISE:
		length = BPF_CORE_READ(regs, si);
		cause->arg = BPF_CORE_READ(regs, dx);
		break;
	case NR_PROCESS_MADVISE:
		cause->arg = BPF_CORE_READ(regs, r10);
		break;
	case NR_MLOCK:
	case NR_MLOCK2:
	case NR_MUNLOCK:
		work = BPF_CORE_READ(regs, si);
		break;
	case NR_IOCTL:
		cause->arg = BPF_CORE_READ(regs, si);
		name_file(cause, task, BPF_CORE_READ(regs, di));
		work = mapped_bytes(mm);
		break;
	case NR_READ:
	case NR_WRITE:
	case NR_PREAD64:
		name_file(cause, task, BPF_CORE_READ(regs, di));
		if (*cause->file)
			work = mapped_bytes(mm);
		break;
	/* A userfaultfd may be registered for any of it. */
	case NR_CLOSE:
	case NR_MLOCKALL:
	case NR_MUNLOCKALL:
	case NR_IO_URING_REGISTER:
		work = mapped_bytes(mm);
		break;
	}
	if (length >= large_bytes)
		cause->flags |= CAUSE_LARGE;
	if (length)
		work = length;
	if (work > (u64)SECTION_MIB << 20)
		cause->size = slot_of(work >> 20 << 10);
}

/* Where this kernel keeps the registers, as an offset from the stack. */
static __always_inline struct pt_regs *regs_of(struct task_struct *task)
{
	struct task_struct *self = bpf_get_current_task_btf();
	void *volatile here = (void *)bpf_task_pt_regs(self);
	u64 regs = 0;

	/* A number: the verifier does not subtract from a pointer. */
	bpf_probe_read_kernel(&regs, sizeof(regs), (void *)&here);
	return (struct pt_regs *)((u64)BPF_CORE_READ(task, stack) + regs -
				  (u64)BPF_CORE_READ(self, stack));
}

static __always_inline u64 faults_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, min_flt) + BPF_CORE_READ(task, maj_flt);
}

static __always_inline struct huge_fault *huge_fault_of(u32 pid)
{
	u32 slot = pid % HUGE_FAULTS;
	struct huge_fault *fault = bpf_map_lookup_elem(&huge_faults, &slot);

	return fault && fault->pid == pid ? fault : NULL;
}

/*
 * How many page faults a thread has counted since the last one of hugetlb began.
 * A fault counts when it is done, while it still has the lock of its mapping: 0 in
 * the function for hugetlb, 1 when that fault releases the lock, 2 when the next one
 * does.
 */
static __always_inline u64 since_huge_fault(struct task_struct *task)
{
	struct huge_fault *last = huge_fault_of(BPF_CORE_READ(task, pid));

	return last ? faults_of(task) - last->faults : ~0ULL;
}

/* The process of a lock that only its threads and visitors take; NULL for others. */
static __always_inline struct mm_struct *mm_of(u64 lock, u8 kind,
					       struct task_struct *waiter)
{
	if (kind == LOCK_MMAP)
		return (struct mm_struct *)
			(lock - bpf_core_field_offset(struct mm_struct, mmap_lock));
	return kind == LOCK_VMA ? BPF_CORE_READ(waiter, mm) : NULL;
}

static __always_inline void describe_owner(struct cause *cause, u64 word,
					   struct mm_struct *mm)
{
	struct task_struct *task = (struct task_struct *)(word & ~OWNER_FLAGS);

	cause->stack = -1;
	cause->nr = -1;
	/* A pointer to a task that has gone reads as zeros or as garbage. */
	if (!task || BPF_CORE_READ(task, pid) <= 0) {
		cause->flags = CAUSE_UNKNOWN;
		return;
	}
	cause->flags = CAUSE_OWNER;
	if (word & OWNER_READER)
		cause->flags |= CAUSE_READER;
	describe(cause, task, regs_of(task), mm);
	cause->state = state_of(task);
	if (!since_huge_fault(task))
		cause->flags |= CAUSE_HUGETLB;
}

/* --- Locks */

static __always_inline u8 kind_of_rwsem(u64 lock, bool write,
					struct task_struct *self)
{
	struct mm_struct *mm = BPF_CORE_READ(self, mm), *other;
	u64 offset = bpf_core_field_offset(struct mm_struct, mmap_lock);
	struct address_space *mapping;
	struct hugetlb_vma_lock *huge;
	struct task_struct *owner;
	struct vm_area_struct *vma;
	struct anon_vma *anon;
	u64 inode;

	if (mm && lock == (u64)mm + offset)
		return LOCK_MMAP;
	/* A lock is that of another process if what would be its mm is one. */
	other = (struct mm_struct *)(lock - offset);
	if (bpf_core_field_exists(other->owner)) {
		owner = BPF_CORE_READ(other, owner);
		if (owner && BPF_CORE_READ(owner, mm) == other)
			return LOCK_MMAP;
	}
	/* Likewise a file. */
	mapping = (struct address_space *)
		(lock - bpf_core_field_offset(struct address_space, i_mmap_rwsem));
	inode = (u64)BPF_CORE_READ(mapping, host);
	if (inode && inode + bpf_core_field_offset(struct inode, i_data) ==
	    (u64)mapping) {
		if (BPF_CORE_READ((struct inode *)inode, i_sb, s_magic) ==
		    HUGETLBFS_MAGIC)
			return LOCK_HUGE_FILE;
		return LOCK_NONE;
	}
	if (bpf_core_type_exists(struct hugetlb_vma_lock)) {
		huge = (struct hugetlb_vma_lock *)
			(lock - bpf_core_field_offset(struct hugetlb_vma_lock, rw_sema));
		vma = BPF_CORE_READ(huge, vma);
		if (vma && ((u64)BPF_CORE_READ(vma, vm_private_data) & ~3UL) ==
		    (u64)huge)
			return LOCK_HUGE_VMA;
	}
	/*
	 * Of the rest, a task that has its mmap_lock for writing takes only
	 * the locks of VMAs and of anon_vmas for writing.
	 */
	if (!bpf_core_type_exists(struct vma_lock) || !write || !mm ||
	    (BPF_CORE_READ(mm, mmap_lock.owner.counter) & ~OWNER_FLAGS) !=
	    (u64)self)
		return LOCK_NONE;
	anon = (struct anon_vma *)
		(lock - bpf_core_field_offset(struct anon_vma, rwsem));
	if (BPF_CORE_READ(anon, root) == anon)
		return LOCK_NONE;
	return LOCK_VMA;
}

static __always_inline bool is_fault_mutex(u64 lock)
{
	u64 table = 0;

	if (!fault_mutexes)
		return false;
	bpf_probe_read_kernel(&table, sizeof(table), (void *)fault_mutex_table);
	return table && lock >= table &&
		lock < table + fault_mutexes * bpf_core_type_size(struct mutex);
}

static __always_inline bool wanted(u64 lock, u8 kind, struct task_struct *self)
{
	struct task_struct *owner;
	struct mm_struct *mm;

	if (only_cgroup &&
	    bpf_get_current_ancestor_cgroup_id(cgroup_level) != only_cgroup)
		return false;
	if (!only_tgid || BPF_CORE_READ(self, tgid) == only_tgid)
		return true;
	/* Others that wait for this process. */
	mm = (struct mm_struct *)
		(lock - bpf_core_field_offset(struct mm_struct, mmap_lock));
	if (kind != LOCK_MMAP || !bpf_core_field_exists(mm->owner))
		return false;
	owner = BPF_CORE_READ(mm, owner);
	return owner && BPF_CORE_READ(owner, tgid) == only_tgid;
}

static __always_inline struct history *history_of(u64 lock)
{
	struct history *history = bpf_map_lookup_elem(&histories, &lock);

	if (history)
		return history;
	bpf_map_update_elem(&histories, &lock, &no_history, BPF_NOEXIST);
	return bpf_map_lookup_elem(&histories, &lock);
}

/* --- Waits */

/* One waiter less. */
static __always_inline struct history *leave(u64 lock)
{
	struct history *history = bpf_map_lookup_elem(&histories, &lock);

	if (history)
		__sync_fetch_and_add(&history->waiters, -1);
	__sync_fetch_and_add(&waiting, -1);
	return history;
}

static __always_inline u64 run_delay(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->sched_info.run_delay))
		return 0;
	return BPF_CORE_READ(task, sched_info.run_delay);
}

static __always_inline int wait_begins(u64 lock, unsigned int flags, bool whole)
{
	bool mutex = flags & LCB_F_MUTEX || !flags, write = flags & LCB_F_WRITE;
	struct task_struct *self = bpf_get_current_task_btf();
	u32 pid = bpf_get_current_pid_tgid();
	struct waiter waiter = {}, *known;
	struct history *history;
	u64 word;
	int i, others;

	if (mutex && !is_fault_mutex(lock))
		return 0;
	/*
	 * A writer sleeps within its function, and a mutex begins again when it
	 * changes between spinning and sleep.  Any other entry is left over.
	 */
	if (write && !whole && writers_begin)
		return 0;
	known = bpf_map_lookup_elem(&waiters, &pid);
	if (known && known->lock == lock && mutex)
		return 0;
	if (mutex) {
		waiter.kind = LOCK_HUGE_FAULT;
		waiter.write = 1;
		word = BPF_CORE_READ((struct mutex *)lock, owner.counter) &
			~OWNER_FLAGS;
	} else {
		waiter.write = write;
		waiter.kind = kind_of_rwsem(lock, waiter.write, self);
		if (waiter.kind == LOCK_NONE)
			return 0;
		word = BPF_CORE_READ((struct rw_semaphore *)lock, owner.counter);
	}
	if (!wanted(lock, waiter.kind, self))
		return 0;

	waiter.whole = whole;
	waiter.lock = lock;
	waiter.begin = bpf_ktime_get_ns();
	waiter.arrivals = __sync_fetch_and_add(&arrivals, 1) + 1;
	describe_owner(&waiter.owner, word, mm_of(lock, waiter.kind, self));
	/* The end of that wait was not seen. */
	if (known) {
		__sync_fetch_and_add(&lost_ends, 1);
		leave(known->lock);
	}
	history = history_of(lock);
	if (history) {
		others = __sync_fetch_and_add(&history->waiters, 1);
		/* The map had no room for this lock while others waited for it. */
		if (others < 0)
			__sync_val_compare_and_swap(&history->waiters,
						    others + 1, 1);
		if (others <= 0) {
			history->since = waiter.begin;
			for (i = 0; i < SEGMENTS; i++) {
				history->segments[i].start = 0;
				history->segments[i].end = 0;
			}
		}
		waiter.releases = history->releases;
	}
	if (bpf_map_update_elem(&waiters, &pid, &waiter, BPF_ANY)) {
		__sync_fetch_and_add(&lost_waiters, 1);
		if (history)
			__sync_fetch_and_add(&history->waiters, -1);
		return 0;
	}
	__sync_fetch_and_add(&waiting, 1);
	return 0;
}

/* The threads of a pool make one group, however many there are. */
static __always_inline void fold(char *name)
{
	int i;

	for (i = 0; i < COMM_LEN; i++)
		if (name[i] >= '0' && name[i] <= '9')
			name[i] = '0';
}

static __always_inline void share_name(char *common, const char *name)
{
	int i;

	if (!*common) {
		__builtin_memcpy(common, name, COMM_LEN);
		return;
	}
	for (i = 0; i < COMM_LEN; i++)
		if (common[i] != name[i])
			common[i] = '*';
}

static __always_inline void count(struct group_key *key, u64 ns)
{
	char holder[COMM_LEN], waiter[COMM_LEN];
	struct group *group;
	u32 slot = slot_of(ns);

	__builtin_memcpy(holder, key->cause.comm, COMM_LEN);
	__builtin_memcpy(waiter, key->waiter, COMM_LEN);
	fold(key->cause.comm);
	fold(key->waiter);
	group = bpf_map_lookup_elem(&groups, key);
	if (!group) {
		bpf_map_update_elem(&groups, key, &no_group, BPF_NOEXIST);
		group = bpf_map_lookup_elem(&groups, key);
	}
	if (!group) {
		__sync_fetch_and_add(&lost_groups, 1);
		__sync_fetch_and_add(&lost_group_ns, ns);
		return;
	}
	share_name(group->holder, holder);
	share_name(group->waiter, waiter);
	__sync_fetch_and_add(&group->waits, 1);
	__sync_fetch_and_add(&group->total, ns);
	if (slot < SLOTS)
		__sync_fetch_and_add(&group->slots[slot], 1);
	if (ns > group->max)
		group->max = ns;
}

static __always_inline void choose(struct group_key *key, struct waiter *waiter,
				   struct history *history, u64 now)
{
	u64 length = now - waiter->begin, best = 0, woken = 0, start, end;
	struct task_struct *self = bpf_get_current_task_btf();
	struct huge_fault *fault;
	struct segment *segment;
	u64 without_cpu = 0;
	int i, chosen = -1;

	if (waiter->woken > waiter->begin) {
		/* A writer may wait for the lock again; a reader has it. */
		if (bpf_core_field_exists(self->sched_info.run_delay))
			without_cpu = run_delay(self) - waiter->delay;
		else if (!waiter->write)
			without_cpu = now - waiter->woken;
	}
	if (without_cpu * 2 > length) {
		key->cause.flags = CAUSE_NO_CPU;
		key->cause.nr = -1;
		key->cause.stack = -1;
		return;
	}
	if (history) {
		for (i = 0; i < SEGMENTS; i++) {
			segment = &history->segments[i];
			start = segment->start > waiter->begin ?
				segment->start : waiter->begin;
			end = segment->end;
			if (end > start && end - start > best) {
				best = end - start;
				chosen = i;
			}
		}
	}
	start = waiter->last.start > waiter->begin ?
		waiter->last.start : waiter->begin;
	if (waiter->last.end > start)
		woken = waiter->last.end - start;
	if (woken >= best && woken * 4 >= length) {
		key->cause = waiter->last.cause;
		if (waiter->owner.pid == key->cause.pid)
			key->cause.state = waiter->owner.state;
	} else if (chosen >= 0 && chosen < SEGMENTS && best * 4 >= length) {
		key->cause = history->segments[chosen].cause;
		/* It runs when it wakes others. */
		if (waiter->owner.pid == key->cause.pid)
			key->cause.state = waiter->owner.state;
	} else if (history && history->taken.start > waiter->begin &&
		   (now - history->taken.start) * 2 >= length) {
		/* Somebody else was served first: the owner had left. */
		key->cause = history->taken.cause;
	} else {
		key->cause = waiter->owner;
		/* It was given the lock, and had not run yet. */
		fault = huge_fault_of(key->cause.pid);
		if (fault && fault->arrivals >= waiter->arrivals)
			key->cause.flags |= CAUSE_HUGETLB;
		/* After a release, the lock is no longer that owner's. */
		if (history && history->releases != waiter->releases)
			key->cause.flags =
				history->releases - waiter->releases > SEGMENTS ?
				CAUSE_CROWD : CAUSE_UNKNOWN;
	}
	key->cause.pid = 0;
}

/* TAKEN: it has the lock; a waiter that is killed has not. */
static __always_inline int wait_ends(u64 lock, bool whole, bool taken)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct waiter *waiter = bpf_map_lookup_elem(&waiters, &pid);
	struct group_key key = {};
	struct task_struct *self;
	struct history *history;
	u64 now, length;

	if (!waiter || waiter->lock != lock || (waiter->whole && !whole))
		return 0;
	now = bpf_ktime_get_ns();
	length = now - waiter->begin;
	history = leave(lock);
	if (length < min_ns) {
		__sync_fetch_and_add(&short_waits, 1);
		__sync_fetch_and_add(&short_ns, length);
	} else {
		choose(&key, waiter, history, now);
		key.lock = waiter->kind;
		key.write = waiter->write;
		bpf_get_current_comm(key.waiter, sizeof(key.waiter));
		count(&key, length);
	}
	if (taken && history && waiter->write && history->waiters > 0) {
		self = bpf_get_current_task_btf();
		__builtin_memset(&history->taken.cause, 0,
				 sizeof(history->taken.cause));
		describe(&history->taken.cause, self,
			 (struct pt_regs *)bpf_task_pt_regs(self),
			 mm_of(lock, waiter->kind, self));
		history->taken.start = now;
	}
	bpf_map_delete_elem(&waiters, &pid);
	return 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	/* Spinlocks and others that are of no interest, and far more frequent. */
	if (flags & (LCB_F_RT | LCB_F_PERCPU) ||
	    (flags & (LCB_F_SPIN | LCB_F_MUTEX)) == LCB_F_SPIN)
		return 0;
	return wait_begins((u64)lock, flags, false);
}

SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock, int ret)
{
	if (waiting <= 0)
		return 0;
	return wait_ends((u64)lock, false, !ret);
}

/* A writer spins while the holder runs, before it is said to wait. */
SEC("fentry/rwsem_down_write_slowpath")
int BPF_PROG(write_begin, struct rw_semaphore *lock)
{
	return wait_begins((u64)lock, LCB_F_WRITE, true);
}

SEC("fexit/rwsem_down_write_slowpath")
int BPF_PROG(write_end, struct rw_semaphore *lock)
{
	u64 result = (u64)lock;

	if (waiting <= 0)
		return 0;
	/* The semaphore, or an error. */
	bpf_get_func_ret(ctx, &result);
	return wait_ends((u64)lock, true, result == (u64)lock);
}

/* SIGKILL wakes waiters, too, and its sender does not hold the lock. */
static __always_inline bool is_killed(struct task_struct *task)
{
	return (BPF_CORE_READ(task, pending.signal.sig[0]) |
		BPF_CORE_READ(task, signal, shared_pending.signal.sig[0])) &
		SIGKILL_BIT;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *task)
{
	struct task_struct *self;
	struct segment *segment;
	struct history *history;
	struct waiter *waiter, *waker;
	u64 now, length, shortest = ~0ULL, old;
	u32 pid, own = bpf_get_current_pid_tgid();
	int i, chosen = -1;

	if (waiting <= 0)
		return 0;
	pid = BPF_CORE_READ(task, pid);
	waiter = bpf_map_lookup_elem(&waiters, &pid);
	if (!waiter || is_killed(task))
		return 0;
	now = bpf_ktime_get_ns();
	waiter->woken = now;
	waiter->delay = run_delay(task);
	/* A waiter that gives up, or comes by, passes the wakeup on. */
	waker = bpf_map_lookup_elem(&waiters, &own);
	if (waker && waker->lock == waiter->lock)
		return 0;
	history = bpf_map_lookup_elem(&histories, &waiter->lock);
	/* Another release may be later than NOW. */
	if (!history || now <= history->since)
		return 0;
	length = now - history->since;
	/* The others of one release. */
	if (length < min_ns / 64 && length < 10000)
		return 0;
	__sync_fetch_and_add(&history->releases, 1);
	/* Too short for any wait that is counted, see choose(). */
	if (length < min_ns / 4) {
		history->since = now;
		return 0;
	}
	segment = &waiter->last;
	__builtin_memset(&segment->cause, 0, sizeof(segment->cause));
	self = bpf_get_current_task_btf();
	describe(&segment->cause, self,
		 (struct pt_regs *)bpf_task_pt_regs(self),
		 mm_of(waiter->lock, waiter->kind, task));
	segment->cause.stack = bpf_get_stackid(ctx, &stacks, 0);
	if (segment->cause.stack < 0) {
		__sync_fetch_and_add(&lost_stacks, 1);
		segment->cause.stack = -1;
	}
	if (since_huge_fault(self) <= 1)
		segment->cause.flags |= CAUSE_HUGETLB;
	segment->start = history->since;
	segment->end = now;
	history->since = now;
	for (i = 0; i < SEGMENTS; i++) {
		segment = &history->segments[i];
		old = segment->end - segment->start;
		/* A wait that is not over has four times its length. */
		if (now - segment->end > old * 4)
			old = 0;
		if (old < shortest) {
			shortest = old;
			chosen = i;
		}
	}
	if (chosen >= 0 && chosen < SEGMENTS && shortest < length)
		history->segments[chosen] = waiter->last;
	return 0;
}

/* --- Page faults of hugetlb, exits, and broadcasts for page tables */

SEC("fentry/hugetlb_fault")
int BPF_PROG(huge_fault)
{
	struct task_struct *self = bpf_get_current_task_btf();
	u32 pid = self->pid, slot = pid % HUGE_FAULTS;
	struct huge_fault *fault = bpf_map_lookup_elem(&huge_faults, &slot);

	if (!fault)
		return 0;
	fault->faults = self->min_flt + self->maj_flt;
	fault->arrivals = arrivals;
	fault->pid = pid;
	return 0;
}

SEC("fentry/exit_mmap")
int BPF_PROG(exit_begin, struct mm_struct *mm)
{
	u32 pid = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_ns();

	if (only_cgroup &&
	    bpf_get_current_ancestor_cgroup_id(cgroup_level) != only_cgroup)
		return 0;
	if (only_tgid && bpf_get_current_pid_tgid() >> 32 != only_tgid)
		return 0;
	/* Bit 0: there are pages of hugetlb. */
	now &= ~1ULL;
	if (bpf_core_field_exists(mm->hugetlb_usage) &&
	    BPF_CORE_READ(mm, hugetlb_usage.counter) > 0)
		now |= 1;
	if (bpf_map_update_elem(&exits, &pid, &now, BPF_ANY))
		__sync_fetch_and_add(&lost_exits, 1);
	return 0;
}

SEC("fexit/exit_mmap")
int BPF_PROG(exit_end, struct mm_struct *mm)
{
	u32 pid = bpf_get_current_pid_tgid();
	u64 *begin = bpf_map_lookup_elem(&exits, &pid);
	struct group_key key = {};
	u64 length;

	if (!begin)
		return 0;
	length = bpf_ktime_get_ns() - *begin;
	if (length >= min_ns && length >= min_exit_ns) {
		bpf_get_current_comm(key.cause.comm, sizeof(key.cause.comm));
		__builtin_memcpy(key.waiter, key.cause.comm, COMM_LEN);
		key.cause.stack = -1;
		key.cause.nr = -1;
		if (*begin & 1)
			key.cause.flags = CAUSE_HUGETLB;
		key.lock = LOCK_EXIT;
		count(&key, length);
	}
	bpf_map_delete_elem(&exits, &pid);
	return 0;
}

SEC("fentry/tlb_remove_table_sync_one")
int BPF_PROG(broadcast)
{
	struct task_struct *self = bpf_get_current_task_btf();
	struct sender key = {};
	u64 *sent, one = 1;

	bpf_get_current_comm(key.comm, sizeof(key.comm));
	key.kthread = !!(BPF_CORE_READ(self, flags) & PF_KTHREAD);
	sent = bpf_map_lookup_elem(&senders, &key);
	if (sent)
		__sync_fetch_and_add(sent, 1);
	else if (bpf_map_update_elem(&senders, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&lost_senders, 1);
	return 0;
}
