// SPDX-License-Identifier: GPL-2.0-only
/*
 * kexec load KERNEL INITRD PARAMETERS
 * kexec boot
 *
 * Load a kernel with kexec_file_load(2), and boot the one that is loaded.  A
 * static program for an initial RAM file system: kexec-tools changes how the
 * host that it is installed on reboots.
 */
#include <fcntl.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int kernel, initrd;

	if (argc == 2 && !strcmp(argv[1], "boot")) {
		syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2,
			LINUX_REBOOT_CMD_KEXEC, NULL);
		perror("reboot");
		return 1;
	}
	if (argc != 5 || strcmp(argv[1], "load")) {
		fprintf(stderr, "usage: kexec load KERNEL INITRD PARAMETERS | kexec boot\n");
		return 2;
	}
	kernel = open(argv[2], O_RDONLY);
	initrd = open(argv[3], O_RDONLY);
	if (kernel < 0 || initrd < 0) {
		perror("open");
		return 1;
	}
	if (syscall(SYS_kexec_file_load, kernel, initrd, strlen(argv[4]) + 1,
		    argv[4], 0L)) {
		perror("kexec_file_load");
		return 1;
	}
	return 0;
}
