/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_JUMP_LABEL_H
#define _LINUX_JUMP_LABEL_H

/* Every feature is switched on in user space. */
#define DECLARE_STATIC_KEY_FALSE(name)
#define static_branch_unlikely(key)	true

#endif /* _LINUX_JUMP_LABEL_H */
