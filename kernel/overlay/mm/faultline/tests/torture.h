/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common to the tests that break rules: delays where races can happen, and
 * their files in debugfs.
 */
#ifndef _MM_FAULTLINE_TORTURE_H
#define _MM_FAULTLINE_TORTURE_H

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/random.h>

/* In microseconds. */
#define TORTURE_WINDOW_MAX	100000

/* Choose a delay; half of the time there is none. */
static inline u32 torture_window_us(const u32 *window)
{
	u32 us = READ_ONCE(*window);

	return us && get_random_u32_below(2) ? get_random_u32_below(us + 1) : 0;
}

static inline void torture_delay(u32 us)
{
	mdelay(us / 1000);
	udelay(us % 1000);
}

static int torture_window_get(void *data, u64 *value)
{
	*value = *(u32 *)data;
	return 0;
}

static int torture_window_set(void *data, u64 value)
{
	if (value > TORTURE_WINDOW_MAX)
		return -EINVAL;
	/* Pairs with READ_ONCE() in torture_window_us(). */
	WRITE_ONCE(*(u32 *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(torture_window_fops, torture_window_get,
			 torture_window_set, "%llu\n");

static inline void __init torture_create_window(const char *name, u32 *window)
{
	debugfs_create_file_unsafe(name, 0600, NULL, window,
				   &torture_window_fops);
}

#endif /* _MM_FAULTLINE_TORTURE_H */
