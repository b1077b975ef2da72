/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: hooks for tests that break the rules of speculative page faults.
 */
#ifndef _MM_FAULTLINE_SPF_H
#define _MM_FAULTLINE_SPF_H

#include <linux/bits.h>
#include <linux/types.h>

/* Checks that a test leaves out, to prove that another test notices. */
enum spf_rule {
	SPF_NO_SEQUENCE	= BIT(0),	/* was the VMA write-locked since? */
	SPF_NO_LOCKED	= BIT(1),	/* is it during the snapshot? */
	SPF_NO_DETACHED	= BIT(2),	/* is it out of the tree? */
	SPF_NO_FIND	= BIT(3),	/* is it the same after sleeping? */
	SPF_NO_NOTIFIER	= BIT(4),	/* are there MMU notifiers now? */
	SPF_NO_DRAIN	= BIT(5),	/* do mremap() and collapse wait? */
	SPF_NO_WAIT	= BIT(6),	/* does the first notifier wait? */
	SPF_EARLY_FILE	= BIT(7),	/* is the file used only while open? */
	SPF_BAD_MEMORY	= BIT(8),	/* no rule: VM_DONTDUMP is poisoned */
	SPF_NO_RECHECK	= BIT(9),	/* is a VMA the same once it is locked? */
};

/* Places where a test delays a fault. */
enum spf_place {
	SPF_WINDOW_FIND,	/* between finding the VMA and looking at it */
	SPF_WINDOW_LOCK,	/* between the snapshot and locking the table */
	SPF_WINDOW_WALK,	/* between finding the table and its lock */
	SPF_WINDOW_CHANGE,	/* between locking it and changing the entry */
	SPF_WINDOW_SLEEP,	/* outside the RCU section */
	SPF_WINDOW_VMA,		/* between finding a VMA and locking it */
	SPF_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_SPF_TORTURE
bool spf_broken(enum spf_rule rule);
void spf_window(enum spf_place place);
void spf_copied(struct mm_struct *mm);
#else
static inline bool spf_broken(enum spf_rule rule)
{
	return false;
}

static inline void spf_window(enum spf_place place)
{
}

/* A page was copied without calling MMU notifiers. */
static inline void spf_copied(struct mm_struct *mm)
{
}
#endif

#endif /* _MM_FAULTLINE_SPF_H */
