/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Newer QEMU's qemu-plugin.h includes glib.h for two types that it only points
 * to, in functions that the plugin does not call.  With this, no host needs
 * the headers of glib for that.
 */
typedef struct coherence_no_array GArray;
typedef struct coherence_no_byte_array GByteArray;
