/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Marks by which the guest program of the coherence benchmark signals the QEMU
 * plugin.
 *
 * A mark is an instruction that does nothing on any CPU: a long NOP whose
 * unused operand has a magic number and the number of the mark.  The plugin
 * detects it by its bytes when QEMU translates the guest's code.
 */
#ifndef COHERENCE_MARKS_H
#define COHERENCE_MARKS_H

/* nopl DISPLACEMENT(%rax): three bytes, then four of displacement. */
#define MARK_SIZE	7
#define MARK_OPCODE	"\x0f\x1f\x80"
/* Upper three bytes of the displacement; the lowest one is a MARK_*. */
#define MARK_MAGIC	0x464c4300

#define MARK_WATCH	1	/* start to track which CPU has which line */
#define MARK_PHASE	2	/* start a new phase of counts */
#define MARK_BEGIN	3	/* start to count on this CPU ... */
#define MARK_END	4	/* ... and stop */
#define MARK_WRITE	5	/* write the counts to the file */

#endif /* COHERENCE_MARKS_H */
