// SPDX-License-Identifier: GPL-2.0-only
/*
 * Names of calls, and the switch that removes what they cause.
 */
#include <linux/mman.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "report.h"

/* _IOWR('f', 16, struct pm_scan_arg), of Linux 6.7 */
#define IOCTL_PAGEMAP_SCAN	0xc0606610

static const struct {
	int nr;
	const char *name;
} syscalls[] = {
	/* Made from <sys/syscall.h>. */
#include "syscalls.inc"
};

static const struct {
	unsigned int advice;
	const char *name;
	const char *by;
} advices[] = {
	{ 0, "MADV_NORMAL" },
	{ 1, "MADV_RANDOM" },
	{ 2, "MADV_SEQUENTIAL" },
	{ 3, "MADV_WILLNEED" },
	{ 4, "MADV_DONTNEED", "vm.madvise_section_kbytes" },
	{ 8, "MADV_FREE", "vm.madvise_section_kbytes" },
	{ 9, "MADV_REMOVE" },
	{ 10, "MADV_DONTFORK" },
	{ 11, "MADV_DOFORK" },
	{ 12, "MADV_MERGEABLE" },
	{ 13, "MADV_UNMERGEABLE" },
	{ 14, "MADV_HUGEPAGE" },
	{ 15, "MADV_NOHUGEPAGE" },
	{ 16, "MADV_DONTDUMP" },
	{ 17, "MADV_DODUMP" },
	{ 18, "MADV_WIPEONFORK" },
	{ 19, "MADV_KEEPONFORK" },
	{ 20, "MADV_COLD", "vm.madvise_section_kbytes" },
	{ 21, "MADV_PAGEOUT", "vm.madvise_section_kbytes" },
	{ 22, "MADV_POPULATE_READ", "vm.walk_section_kbytes" },
	{ 23, "MADV_POPULATE_WRITE", "vm.walk_section_kbytes" },
	{ 24, "MADV_DONTNEED_LOCKED", "vm.madvise_section_kbytes" },
	{ 25, "MADV_COLLAPSE" },
	{ 100, "MADV_HWPOISON" },
	{ 101, "MADV_SOFT_OFFLINE" },
	{ 102, "MADV_GUARD_INSTALL" },
	{ 103, "MADV_GUARD_REMOVE" },
};

/* The files in /proc whose readers or writers the switch concerns. */
static const char * const walked[] = {
	"smaps", "smaps_rollup", "numa_maps", "clear_refs"
};

/* A function on the stack of a holder tells more than its system call. */
enum place { PLACE_NONE, PLACE_NUMA, PLACE_FAULT, PLACE_COLLAPSE, PLACE_FORK,
	     PLACE_EXIT, PLACE_EXEC, PLACE_POPULATE, PLACE_PIN, PLACE_REMOTE,
	     PLACE_KSM, PLACE_UFFD };

static const struct {
	const char *symbol;
	enum place place;
} places[] = {
	{ "task_numa_work", PLACE_NUMA },
	{ "do_user_addr_fault", PLACE_FAULT },
	{ "exc_page_fault", PLACE_FAULT },
	{ "collapse_huge_page", PLACE_COLLAPSE },
	{ "collapse_file", PLACE_COLLAPSE },
	{ "collapse_pte_mapped_thp", PLACE_COLLAPSE },
	{ "hpage_collapse_scan_pmd", PLACE_COLLAPSE },
	{ "khugepaged_scan_mm_slot", PLACE_COLLAPSE },
	{ "khugepaged", PLACE_COLLAPSE },
	{ "dup_mmap", PLACE_FORK },
	{ "dup_mm", PLACE_FORK },
	{ "exit_mmap", PLACE_EXIT },
	{ "exit_mm", PLACE_EXIT },
	{ "exec_mmap", PLACE_EXEC },
	{ "begin_new_exec", PLACE_EXEC },
	{ "setup_arg_pages", PLACE_EXEC },
	{ "__mm_populate", PLACE_POPULATE },
	{ "pin_user_pages", PLACE_PIN },
	{ "__gup_longterm_locked", PLACE_PIN },
	{ "__access_remote_vm", PLACE_REMOTE },
	{ "access_remote_vm", PLACE_REMOTE },
	{ "get_user_pages_remote", PLACE_REMOTE },
	{ "pin_user_pages_remote", PLACE_REMOTE },
	{ "userfaultfd_release", PLACE_UFFD },
	{ "ksm_do_scan", PLACE_KSM },
	{ "scan_get_next_rmap_item", PLACE_KSM },
};

static bool same_symbol(const char *symbol, const char *name)
{
	size_t length = strlen(name);

	/* The compiler adds .isra.0, .part.0, .cold. */
	return !strncmp(symbol, name, length) &&
		(!symbol[length] || symbol[length] == '.');
}

static enum place place_of(const char *const *symbols, size_t nr)
{
	size_t i, j;

	for (i = 0; i < nr; i++)
		for (j = 0; j < sizeof(places) / sizeof(*places); j++)
			if (same_symbol(symbols[i], places[j].symbol))
				return places[j].place;
	return PLACE_NONE;
}

static const char *syscall_name(int nr)
{
	size_t i;

	for (i = 0; i < sizeof(syscalls) / sizeof(*syscalls); i++)
		if (syscalls[i].nr == nr)
			return syscalls[i].name;
	return NULL;
}

static void call_is(struct row *row, const char *call, const char *by)
{
	snprintf(row->call, sizeof(row->call), "%s", call);
	row->which = by ? switch_named(by) : -1;
}

/* A call of one section holds the lock as long with the switch. */
static const char *if_sections(const struct cause *cause)
{
	return cause->size ? "vm.walk_section_kbytes" : NULL;
}

static bool is_hugetlb(int lock)
{
	return lock == LOCK_HUGE_FILE || lock == LOCK_HUGE_VMA ||
		lock == LOCK_HUGE_FAULT;
}

static void name_fault(struct row *row, const struct cause *cause, int lock)
{
	static const char * const states[] = {
		[STATE_RUNNING]		= "",
		[STATE_PREEMPTED]	= "preempted",
		[STATE_THROTTLED]	= "throttled by cpu.max",
		[STATE_ASLEEP]		= "asleep",
	};
	bool huge = cause->flags & CAUSE_HUGETLB || is_hugetlb(lock);
	const char *state = states[cause->state & 3];

	snprintf(row->call, sizeof(row->call), "page fault%s%s%s%s%s",
		 huge || *state ? " (" : "", huge ? "hugetlb" : "",
		 huge && *state ? ", " : "", state,
		 huge || *state ? ")" : "");
	/* Such a fault clears its page before it locks the mapping, or only maps it. */
	row->which = switch_named(huge ? "vm.hugetlb_zero_ahead" :
					 "vm.speculative_page_fault");
}

static void name_advice(struct row *row, const struct cause *cause)
{
	const char *call = cause->nr == SYS_madvise ? "madvise" : "process_madvise";
	const char *by;
	size_t i;

	row->which = -1;
	for (i = 0; i < sizeof(advices) / sizeof(*advices); i++) {
		if (advices[i].advice != cause->arg)
			continue;
		snprintf(row->call, sizeof(row->call), "%s(%s)", call,
			 advices[i].name);
		by = advices[i].by;
		/* Ranges of a vector are not known here. */
		if (by && (cause->nr != SYS_madvise ||
			   cause->flags & CAUSE_LARGE ||
			   (strstr(advices[i].name, "POPULATE") && cause->size)))
			row->which = switch_named(by);
		return;
	}
	snprintf(row->call, sizeof(row->call), "%s(%u)", call, cause->arg);
}

static void name_syscall(struct row *row, const struct cause *cause,
			 enum place place)
{
	bool large = cause->flags & CAUSE_LARGE, reader, walks = false;
	const char *name = syscall_name(cause->nr);
	size_t i;

	/*
	 * A cause from a wakeup has a stack, which shows population; one from
	 * the owner word has only the reader flag.
	 */
	reader = place == PLACE_POPULATE || cause->flags & CAUSE_READER;
	for (i = 0; i < sizeof(walked) / sizeof(*walked); i++)
		if (!strcmp(cause->file, walked[i]))
			walks = true;
	row->which = -1;
	switch (cause->nr) {
	case SYS_munmap:
		call_is(row, name, large ? "vm.munmap_section_kbytes" : NULL);
		return;
	case SYS_mremap:
		if (cause->arg & MREMAP_MAYMOVE)
			call_is(row, "mremap(MREMAP_MAYMOVE)",
				cause->arg & (MREMAP_FIXED | MREMAP_DONTUNMAP) ?
				NULL : if_sections(cause));
		else
			call_is(row, name,
				large ? "vm.munmap_section_kbytes" : NULL);
		return;
	/* They may be short, and brk() mostly grows. */
	case SYS_brk:
	case SYS_shmdt:
		call_is(row, name, NULL);
		return;
	case SYS_mmap:
		if (cause->arg & (MAP_POPULATE | MAP_LOCKED) && reader)
			call_is(row, cause->arg & MAP_POPULATE ?
				"mmap(MAP_POPULATE)" : "mmap(MAP_LOCKED)",
				if_sections(cause));
		else if (cause->arg & MAP_FIXED)
			call_is(row, "mmap(MAP_FIXED)", large &&
				cause->flags & CAUSE_NO_ACCESS &&
				(cause->arg & (MAP_PRIVATE | MAP_ANONYMOUS)) ==
				(MAP_PRIVATE | MAP_ANONYMOUS) ?
				"vm.munmap_section_kbytes" : NULL);
		else
			call_is(row, "mmap", NULL);
		return;
	case SYS_mlock:
	case SYS_mlock2:
	case SYS_mlockall:
	case SYS_munlock:
	case SYS_munlockall:
		call_is(row, name, if_sections(cause));
		return;
	case SYS_madvise:
	case SYS_process_madvise:
		name_advice(row, cause);
		return;
	case SYS_fork:
	case SYS_vfork:
	case SYS_clone:
	case SYS_clone3:
		call_is(row, "fork", NULL);
		return;
	case SYS_ioctl:
		if (cause->arg == UFFDIO_WRITEPROTECT)
			call_is(row, "ioctl(UFFDIO_WRITEPROTECT)",
				if_sections(cause));
		else if (cause->arg == UFFDIO_UNREGISTER)
			call_is(row, "ioctl(UFFDIO_UNREGISTER)",
				if_sections(cause));
		else if (cause->arg == IOCTL_PAGEMAP_SCAN)
			call_is(row, "ioctl(PAGEMAP_SCAN)", NULL);
		else
			snprintf(row->call, sizeof(row->call), "ioctl(%#x)",
				 cause->arg);
		return;
	case SYS_read:
	case SYS_pread64:
	case SYS_write:
		if (!*cause->file)
			break;
		snprintf(row->call, sizeof(row->call), "%s %s",
			 cause->nr == SYS_write ? "write" : "read",
			 cause->file);
		if (walks && cause->size)
			row->which = switch_named("vm.walk_section_kbytes");
		return;
	}
	if (name)
		call_is(row, name, NULL);
	else
		snprintf(row->call, sizeof(row->call), "system call %d",
			 cause->nr);
}

static void name_mmap(struct row *row, const struct cause *cause, int lock,
		      enum place place)
{
	switch (place) {
	case PLACE_NUMA:
		call_is(row, "NUMA balancing", "vm.walk_section_kbytes");
		return;
	case PLACE_FAULT:
		name_fault(row, cause, lock);
		return;
	case PLACE_COLLAPSE:
		call_is(row, cause->flags & CAUSE_KTHREAD ? "collapse" :
			"madvise(MADV_COLLAPSE)", NULL);
		return;
	case PLACE_FORK:
		call_is(row, "fork", NULL);
		return;
	case PLACE_EXIT:
		call_is(row, "exit", NULL);
		return;
	case PLACE_EXEC:
		call_is(row, "execve", NULL);
		return;
	case PLACE_KSM:
		call_is(row, "KSM", NULL);
		return;
	/* An exit may close it as well. */
	case PLACE_UFFD:
		call_is(row, "close of a userfaultfd", if_sections(cause));
		return;
	case PLACE_PIN:
		call_is(row, "pinning of memory", if_sections(cause));
		return;
	case PLACE_REMOTE:
		/* The name of the file or the system call says more. */
		if (cause->nr < 0)
			call_is(row, "access by another process", NULL);
		else
			name_syscall(row, cause, place);
		return;
	case PLACE_POPULATE:
	case PLACE_NONE:
		break;
	}
	if (cause->flags & CAUSE_IO_WORKER)
		call_is(row, "io_uring", NULL);
	/* vhost is the other user of such threads. */
	else if (cause->flags & CAUSE_USER_WORKER)
		call_is(row, "vhost", NULL);
	else if (cause->flags & CAUSE_COMPAT)
		call_is(row, "32-bit system call", NULL);
	else if (cause->flags & CAUSE_KTHREAD)
		call_is(row, "kernel thread", NULL);
	else if (cause->nr >= 0)
		name_syscall(row, cause, place);
	/* No system call: user space was interrupted by a fault. */
	else if (lock == LOCK_VMA || is_hugetlb(lock) ||
		 cause->flags & CAUSE_READER)
		name_fault(row, cause, lock);
	else
		call_is(row, "unknown", NULL);
}

void name_cause(struct row *row, const struct cause *cause, int lock,
		const char *const *symbols, size_t nr)
{
	const char *by = NULL;

	snprintf(row->holder, sizeof(row->holder), "%.*s", COMM_LEN,
		 cause->comm);
	row->kthread = cause->flags & CAUSE_KTHREAD;
	row->lock = lock;
	if (cause->flags & CAUSE_NO_CPU) {
		call_is(row, "no CPU for the waiter", NULL);
		strcpy(row->holder, "-");
	} else if (cause->flags & CAUSE_CROWD) {
		call_is(row, "many short holds", NULL);
	} else if (cause->flags & CAUSE_UNKNOWN) {
		call_is(row, "unknown", NULL);
		strcpy(row->holder, "-");
	} else if (lock == LOCK_EXIT) {
		if (cause->flags & CAUSE_HUGETLB)
			by = "vm.hugetlb_pmd_sharing";
		call_is(row, by ? "exit (hugetlb)" : "exit", by);
	} else {
		name_mmap(row, cause, lock, place_of(symbols, nr));
		if (lock == LOCK_HUGE_FILE || lock == LOCK_HUGE_VMA)
			row->which = switch_named("vm.hugetlb_pmd_sharing");
		/* Page faults of one page still wait for each other. */
		else if (lock == LOCK_HUGE_FAULT)
			row->which = -1;
	}
	if (cause->size && is_section_switch(row->which))
		row->mib = slot_start(cause->size);
}
