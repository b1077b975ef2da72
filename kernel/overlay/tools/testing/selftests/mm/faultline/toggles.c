// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switches of Faultline: valid and invalid writes, and their effects.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../../kselftest_harness.h"
#include "faultline_util.h"

#define TIMEOUT		120
#define NOBODY		65534

struct toggle {
	const char *name;
	long stock;		/* the value of kernels without Faultline */
	long max;
	/* In kernels built without the largest values; 0: there are none. */
	long lesser_max;
	long good[3];		/* not stock; every kernel has the first */
	const char *counter;	/* one of its counters in /proc/vmstat */
	/* The value at the start of the program, as set at boot. */
	long at_start;
};

static struct toggle toggles[] = {
	{
		.name = "munmap_section_kbytes",
		.stock = 0,
		.max = 1048576,
		.good = { 2048, 16384, 65536 },
		.counter = "munmap_section_calls",
	},
	{
		.name = "madvise_section_kbytes",
		.stock = 0,
		.max = 1048576,
		.good = { 2048, 16384, 65536 },
		.counter = "madvise_section_calls",
	},
	{
		.name = "hugetlb_pmd_sharing",
		.stock = 1,
		.max = 2,
		/* PREEMPT_RT, for example, lacks mode 2. */
		.lesser_max = 1,
		.good = { 0, 2, 0 },
		.counter = "hugetlb_pmd_shared",
	},
	{
		.name = "pmd_clear_ipi_free",
		.stock = 0,
		.max = 2,
		/* 2 is for powerpc, and optional there. */
		.lesser_max = 1,
		.good = { 1, 2, 1 },
		.counter = "pmd_clear_ipi_collapse",
	},
	{
		.name = "speculative_page_fault",
		.stock = 0,
		.max = 1,
		.good = { 1, 0, 1 },
		.counter = "spf_anon",
	},
	{
		.name = "walk_section_kbytes",
		.stock = 0,
		.max = 1048576,
		.good = { 65536, 2048, 65536 },
		.counter = "walk_section_calls",
	},
	{
		.name = "hugetlb_zero_ahead",
		.stock = 0,
		.max = 1,
		.good = { 1, 0, 1 },
		.counter = "hugetlb_zeroed",
	},
};

/* Switches of this kernel; they come first in the table. */
static int nr_toggles;
/* A counter without its switch. */
static const char *stray_counter;

static char cmdline[4096];

static bool kill_switch(void)
{
	return strstr(cmdline, "faultline=off");
}

FIXTURE(toggles) {
	int kmsg;
};

FIXTURE_SETUP(toggles)
{
	self->kmsg = -1;
	/* Neither a stock kernel nor one built without the feature. */
	ASSERT_EQ(NULL, stray_counter);
	if (!nr_toggles)
		SKIP(return, "this kernel has none of the switches");
}

FIXTURE_TEARDOWN(toggles)
{
	if (self->kmsg >= 0)
		close(self->kmsg);
}

/* NULL, or the reason why the switches are read-only. */
static const char *not_writable(void)
{
	if (kill_switch())
		return "booted with faultline=off";
	return geteuid() ? "needs root" : NULL;
}

static long value_of(const struct toggle *t)
{
	long value = -1;

	return vm_sysctl_read(t->name, &value) ? -1 : value;
}

/* Counts new messages that contain @text. */
static int kmsg_count(int fd, const char *text)
{
	char buf[8192];
	int n = 0;

	while (kmsg_next(fd, buf, sizeof(buf)))
		n += !!strstr(buf, text);
	return n;
}

/* The kernel logs 10 changes in 5 seconds: let earlier ones expire. */
static void let_rate_limit_pass(void)
{
	sleep(6);
}

TEST_F(toggles, present)
{
	const struct toggle *t;
	char path[128];
	struct stat st;

	for (t = toggles; t < toggles + nr_toggles; t++) {
		snprintf(path, sizeof(path), "/proc/sys/vm/%s", t->name);
		ASSERT_EQ(0, stat(path, &st));
		EXPECT_EQ(kill_switch() ? 0444 : 0644, st.st_mode & 0777);
		EXPECT_LE(0, value_of(t));
		EXPECT_GE(t->max, value_of(t));
		EXPECT_LE(0, vmstat_read(t->counter));
	}
}

/* The value from sysctl.vm.NAME=VALUE. */
static bool value_at_boot(const struct toggle *t, long *value)
{
	char key[128];
	const char *p;

	snprintf(key, sizeof(key), "sysctl.vm.%s=", t->name);
	p = strstr(cmdline, key);
	if (!p)
		return false;
	*value = strtol(p + strlen(key), NULL, 10);
	return true;
}

TEST_F(toggles, boot_value)
{
	const struct toggle *t;
	int tested = 0;
	long value;

	for (t = toggles; t < toggles + nr_toggles; t++) {
		if (kill_switch())
			value = t->stock;
		else if (!value_at_boot(t, &value))
			continue;
		EXPECT_EQ(value, t->at_start);
		tested++;
	}
	if (!tested)
		SKIP(return, "the command line sets none of the switches");
}

TEST_F(toggles, kill_switch)
{
	const struct toggle *t;

	if (!kill_switch())
		SKIP(return, "not booted with faultline=off");
	for (t = toggles; t < toggles + nr_toggles; t++) {
		int ret = vm_sysctl_write(t->name, t->good[0]);

		EXPECT_TRUE(ret == -EACCES || ret == -EPERM);
		EXPECT_EQ(t->stock, value_of(t));
	}
}

TEST_F(toggles, write_and_read)
{
	const struct toggle *t;
	char text[32];
	int i;

	if (not_writable())
		SKIP(return, "%s", not_writable());
	for (t = toggles; t < toggles + nr_toggles; t++) {
		for (i = 0; i < ARRAY_SIZE(t->good); i++) {
			/* With a newline like `echo`, and without. */
			EXPECT_EQ(0, vm_sysctl_write(t->name, t->good[i]));
			EXPECT_EQ(t->good[i], value_of(t));
			EXPECT_EQ(0, vm_sysctl_write(t->name, t->stock));
			EXPECT_EQ(t->stock, value_of(t));
			snprintf(text, sizeof(text), "%ld", t->good[i]);
			EXPECT_EQ(0, vm_sysctl_write_text(t->name, text));
			EXPECT_EQ(t->good[i], value_of(t));
		}
		EXPECT_EQ(0, vm_sysctl_write(t->name, t->max));
		EXPECT_EQ(t->max, value_of(t));
		EXPECT_EQ(0, vm_sysctl_write(t->name, t->stock));
		EXPECT_EQ(t->stock, value_of(t));
	}
}

TEST_F_TIMEOUT(toggles, bad_values, TIMEOUT)
{
	static const char * const bad[] = {
		"-1", "-2048", "x", "2048x", "on", "2048 4096",
		"99999999999999999999999999", "18446744073709551615",
	};
	const struct toggle *t;
	char too_big[32];
	int i;

	if (not_writable())
		SKIP(return, "%s", not_writable());
	let_rate_limit_pass();
	for (t = toggles; t < toggles + nr_toggles; t++) {
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->good[1]));
		self->kmsg = kmsg_open();
		ASSERT_LE(0, self->kmsg);
		for (i = 0; i < ARRAY_SIZE(bad); i++) {
			EXPECT_EQ(-EINVAL,
				  vm_sysctl_write_text(t->name, bad[i]));
			if (value_of(t) != t->good[1])
				ksft_print_msg("\"%s\" was accepted\n", bad[i]);
			EXPECT_EQ(t->good[1], value_of(t));
		}
		snprintf(too_big, sizeof(too_big), "%ld", t->max + 1);
		EXPECT_EQ(-EINVAL, vm_sysctl_write_text(t->name, too_big));
		EXPECT_EQ(t->good[1], value_of(t));
		/* A rejected write is not logged. */
		EXPECT_EQ(0, kmsg_count(self->kmsg, t->name));
		close(self->kmsg);
		self->kmsg = -1;
		EXPECT_EQ(0, vm_sysctl_write(t->name, t->stock));
	}
}

TEST_F(toggles, unprivileged)
{
	const struct toggle *t;
	int dir;

	if (not_writable())
		SKIP(return, "%s", not_writable());
	/* By directory fd: other users may lack access to the root. */
	dir = open("/proc/sys/vm", O_PATH | O_CLOEXEC);
	ASSERT_LE(0, dir);
	for (t = toggles; t < toggles + nr_toggles; t++) {
		long before = value_of(t);
		int fd, err;

		ASSERT_EQ(0, seteuid(NOBODY));
		fd = openat(dir, t->name, O_WRONLY | O_CLOEXEC);
		err = errno;
		EXPECT_EQ(-1, fd);
		EXPECT_TRUE(err == EACCES || err == EPERM);
		/* All users may read. */
		fd = openat(dir, t->name, O_RDONLY | O_CLOEXEC);
		EXPECT_LE(0, fd);
		close(fd);
		ASSERT_EQ(0, seteuid(0));
		EXPECT_EQ(before, value_of(t));
	}
	close(dir);
}

TEST_F_TIMEOUT(toggles, change_is_logged, TIMEOUT)
{
	const struct toggle *t;
	char want[256];

	if (not_writable())
		SKIP(return, "%s", not_writable());
	for (t = toggles; t < toggles + nr_toggles; t++) {
		/* At most three changes each. */
		if ((t - toggles) % 3 == 0)
			let_rate_limit_pass();
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->stock));
		self->kmsg = kmsg_open();
		if (self->kmsg < 0)
			SKIP(return, "cannot read /dev/kmsg");
		/* The switch, old and new value, and the writer. */
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->good[0]));
		snprintf(want, sizeof(want), "faultline: vm.%s: %ld -> %ld by %s[%d]",
			 t->name, t->stock, t->good[0],
			 program_invocation_short_name, getpid());
		EXPECT_EQ(1, kmsg_count(self->kmsg, want));
		/* Writing the same value again is not a change. */
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->good[0]));
		EXPECT_EQ(0, kmsg_count(self->kmsg, t->name));
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->stock));
		snprintf(want, sizeof(want), "faultline: vm.%s: %ld -> %ld by ",
			 t->name, t->good[0], t->stock);
		EXPECT_EQ(1, kmsg_count(self->kmsg, want));
		close(self->kmsg);
		self->kmsg = -1;
	}
}

TEST_F_TIMEOUT(toggles, log_is_rate_limited, TIMEOUT)
{
	const int changes = 200;
	const struct toggle *t;
	__u64 began, seconds;
	int i, n;

	if (not_writable())
		SKIP(return, "%s", not_writable());
	let_rate_limit_pass();
	self->kmsg = kmsg_open();
	if (self->kmsg < 0)
		SKIP(return, "cannot read /dev/kmsg");
	began = now_ns();
	for (t = toggles; t < toggles + nr_toggles; t++) {
		/* Avoid the stock value if possible, see write_often(). */
		long other = t->good[1] != t->good[0] ? t->good[1] : t->stock;

		for (i = 0; i < changes; i++)
			ASSERT_EQ(0, vm_sysctl_write(t->name, i % 2 ?
						     other : t->good[0]));
		EXPECT_EQ(other, value_of(t));
	}
	seconds = (now_ns() - began) / 1000000000ULL;
	n = kmsg_count(self->kmsg, "faultline: vm.");
	EXPECT_LT(0, n);
	/* 10 in 5 seconds, for all of them, however long the changes took. */
	EXPECT_GE(10 * (2 + seconds / 5), (__u64)n);
	close(self->kmsg);
	self->kmsg = -1;
	for (t = toggles; t < toggles + nr_toggles; t++) {
		EXPECT_EQ(0, vm_sysctl_write(t->name, t->stock));
		EXPECT_EQ(t->stock, value_of(t));
	}
}

struct writer {
	pthread_t thread;
	const struct toggle *toggle;
	long value;
	long failed;
};

static void *write_often(void *arg)
{
	struct writer *w = arg;
	int i;

	/*
	 * Not the stock value, which flips static keys: an emulated CPU may not
	 * survive that, see static_keys_flip().  The race tests do it.
	 */
	for (i = 0; i < 1000; i++)
		if (vm_sysctl_write(w->toggle->name, w->value))
			w->failed++;
	return NULL;
}

/* Concurrent writers: each value read is one that a writer wrote. */
TEST_F_TIMEOUT(toggles, concurrent_writers, TIMEOUT)
{
	struct writer w[ARRAY_SIZE(toggles[0].good)] = { };
	const struct toggle *t;
	int i, j;

	if (not_writable())
		SKIP(return, "%s", not_writable());
	for (t = toggles; t < toggles + nr_toggles; t++) {
		ASSERT_EQ(0, vm_sysctl_write(t->name, t->good[0]));
		for (i = 0; i < ARRAY_SIZE(w); i++) {
			w[i] = (struct writer){
				.toggle = t, .value = t->good[i],
			};
			ASSERT_EQ(0, pthread_create(&w[i].thread, NULL,
						    write_often, &w[i]));
		}
		for (i = 0; i < 500; i++) {
			long value = value_of(t);
			bool known = false;

			for (j = 0; j < ARRAY_SIZE(w); j++)
				known |= value == t->good[j];
			EXPECT_TRUE(known);
		}
		for (i = 0; i < ARRAY_SIZE(w); i++) {
			pthread_join(w[i].thread, NULL);
			EXPECT_EQ(0, w[i].failed);
		}
		EXPECT_EQ(0, vm_sysctl_write(t->name, t->stock));
		EXPECT_EQ(t->stock, value_of(t));
	}
}

/* Reduces the table to the switches of this kernel. */
static void find_toggles(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(toggles); i++) {
		if (vm_sysctl_exists(toggles[i].name)) {
			toggles[nr_toggles] = toggles[i];
			toggles[nr_toggles].at_start = value_of(&toggles[i]);
			nr_toggles++;
			continue;
		}
		ksft_print_msg("this kernel has no vm.%s\n", toggles[i].name);
		if (vmstat_read(toggles[i].counter) >= 0)
			stray_counter = toggles[i].counter;
	}
}

/* Removes values from the table that this kernel does not support. */
static void find_max(struct toggle *t)
{
	int i;

	if (!t->lesser_max || not_writable())
		return;
	if (vm_sysctl_write(t->name, t->max) != -EINVAL) {
		vm_sysctl_write(t->name, t->at_start);
		return;
	}
	ksft_print_msg("vm.%s goes up to %ld in this kernel, not to %ld\n",
		       t->name, t->lesser_max, t->max);
	t->max = t->lesser_max;
	for (i = 0; i < ARRAY_SIZE(t->good); i++)
		if (t->good[i] > t->max)
			t->good[i] = t->good[0];
}

int main(int argc, char **argv)
{
	const struct toggle *t;
	int status, i;

	if (read_text("/proc/cmdline", cmdline, sizeof(cmdline)))
		cmdline[0] = '\0';
	find_toggles();
	for (i = 0; i < nr_toggles; i++)
		find_max(&toggles[i]);
	status = run_in_child(test_harness_run, argc, argv);
	for (t = toggles; t < toggles + nr_toggles; t++)
		if (t->at_start >= 0 && value_of(t) != t->at_start)
			vm_sysctl_write(t->name, t->at_start);
	return status;
}
