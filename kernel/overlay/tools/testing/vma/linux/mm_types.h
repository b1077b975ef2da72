/* SPDX-License-Identifier: GPL-2.0-only */
/* The structures are in vma_internal.h. */
