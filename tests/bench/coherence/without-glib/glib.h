/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * qemu-plugin.h of newer QEMU includes glib.h for two types that it only uses
 * in pointers, in functions that the plugin does not call.  This stub replaces
 * the headers of glib.
 */
typedef struct coherence_no_array GArray;
typedef struct coherence_no_byte_array GByteArray;
