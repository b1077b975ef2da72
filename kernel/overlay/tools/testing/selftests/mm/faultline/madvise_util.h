/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the section-wise madvise selftests: the knob and the counters.
 */
#ifndef MADVISE_UTIL_H
#define MADVISE_UTIL_H

#include <asm/unistd.h>
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED	24
#endif

#define MADVISE_KNOB		"madvise_section_kbytes"
/* The smallest section, one page table: the most sections in a range. */
#define MADVISE_SMALL_KB	((long)(pmd_size() / KIB))

static const struct vm_knob madvise_knob = {
	.name = MADVISE_KNOB,
	.stock = 0,
	.refused = " cannot be written (faultline=off?)",
};

static const struct flips madvise_flips = {
	.name = MADVISE_KNOB,
	.values = { 2048, 16384, 2048, 65536, 2048, 0 },
	.n = 6,
	/* All but the last: writing 0 and back flips a static key. */
	.n_keyless = 5,
};

/* process_madvise() of oneself: the bytes that were done, or -errno. */
static inline long advise_vector(const struct iovec *vec, size_t n, int advice)
{
	int pidfd = syscall(__NR_pidfd_open, getpid(), 0);
	long ret;

	if (pidfd < 0)
		return -errno;
	ret = syscall(__NR_process_madvise, pidfd, vec, n, advice, 0);
	if (ret < 0)
		ret = -errno;
	close(pidfd);
	return ret;
}

#endif /* MADVISE_UTIL_H */
