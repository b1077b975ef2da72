/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the guest program of the coherence benchmark tells the QEMU plugin.
 *
 * A mark is an instruction that does nothing on any CPU: a long NOP whose
 * operand, which nobody looks at, carries a magic number and which mark it is.
 * The plugin finds it by its bytes when QEMU translates the guest's code.
 */
#ifndef COHERENCE_MARKS_H
#define COHERENCE_MARKS_H

/* nopl DISPLACEMENT(%rax): three bytes, then four of displacement. */
#define MARK_SIZE	7
#define MARK_OPCODE	"\x0f\x1f\x80"
/* Upper three bytes of the displacement; the lowest one is a MARK_*. */
#define MARK_MAGIC	0x464c4300

#define MARK_WATCH	1	/* from now on, follow who has which line */
#define MARK_PHASE	2	/* what is counted from now on is apart */
#define MARK_BEGIN	3	/* count what this CPU does ... */
#define MARK_END	4	/* ... up to here */
#define MARK_WRITE	5	/* write down what was counted */

#endif /* COHERENCE_MARKS_H */
