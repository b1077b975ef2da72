# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# Install the packages of the second disk, with the hooks of initramfs-tools.
# shellcheck source=lib.sh
. /faultline/lib.sh

# shellcheck disable=SC2046 # one word each
check 'apt installs the packages' apt_get install $(find /mnt -name '*.deb')
check 'the kernel is there' test -s "/boot/vmlinux-$KVER"
check 'the kernel has only one image' test ! -e "/boot/vmlinuz-$KVER"
check 'the initramfs is made' test -s "/boot/initrd.img-$KVER"
check 'the links name kernel and initramfs' sh -c "ls -l /vmlinuz /vmlinux /initrd.img /boot/vmlinu* 2>/dev/null
	readlink -f /vmlinuz /vmlinux 2>/dev/null | grep -qx /boot/vmlinux-$KVER &&
	test \"\$(readlink -f /initrd.img)\" = /boot/initrd.img-$KVER"
check 'depmod has run' grep -q 'virtio_blk.ko' "/lib/modules/$KVER/modules.dep"
check 'dpkg has nothing left to do' sh -c '! dpkg --audit | grep -q .'
