# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# Expectations of administrators and their programs, one function per boot: modules of
# DKMS, type information, dumps, and both programs that make an initial RAM file system.

module=faultline_probe
source=/usr/src/faultline-probe-1.0
state=/var/lib/faultline-test
vmlinux=/usr/lib/debug/boot/vmlinux-$KVER1
initrd=/boot/initrd.img-$KVER1

# The stock kernel runs: install ours as on a host with modules of its own.
step_install() {
	local tool
	check 'the stock kernel runs' stock_runs
	for tool in dkms gcc make openssl bpftool kdump-config kexec makedumpfile crash drgn mkinitramfs; do
		check "the host has $tool, from mkosi.profiles/release" command -v "$tool"
	done
	# The kernel that saves the dump gets the command line of the running one by default, which
	# would start these steps in it.
	echo "KDUMP_CMDLINE='$(cat /etc/kernel/cmdline)'" >>/etc/default/kdump-tools
	# Memory for that kernel.
	sed -i 's/$/ crashkernel=384M/' /etc/kernel/cmdline
	# The stock kernel has no initial RAM file system here, and calls its root /dev/root.
	# Without that name mkinitramfs does not find the disk drivers that kdump-tools needs.
	check 'the disk has the name that /proc/mounts gives' ln -s /dev/disk/by-partlabel/root /dev/root
	check 'DKMS accepts the module' dkms add "$source"
	check 'the repository is added' repository_add
	check 'the kernel and its headers are installed' apt-get -y install \
		"$image=$VERSION1" "linux-headers-faultline$META=$VERSION1"
	check 'DKMS has built the module' dkms_has_built
	check 'kdump-tools has made its initial RAM file system' test -s "/var/lib/kdump/initrd.img-$KVER1"
	check 'DKMS has signed the module' grep . <(modinfo -k "$KVER1" -F signer $module)
	check 'the initial RAM file system is by initramfs-tools' lists "$initrd" scripts/init-bottom/udev
	check 'the files in its boot entry exist' bootable "$KVER1"
	check 'the entry names the initial RAM file system' grep -q ^initrd "$(entries_of "$KVER1")"
	check 'our kernel becomes the default' bootctl set-default "$token-$KVER1.conf"
}

dkms_has_built() {
	dkms status
	dkms status | grep -qE "^faultline-probe/1\.0, $KVER1, x86_64: installed" || {
		cat /var/lib/dkms/faultline-probe/1.0/build/make.log
		return 1
	}
}

# lists INITRD FILE: the initial RAM file system has it.
lists() {
	lsinitramfs "$1" >/run/initrd || return 1
	grep -xE "(\./)?(usr/)?$2" /run/initrd || {
		head /run/initrd
		return 1
	}
}

# Our kernel runs, for the second time after it has crashed: use it, crash it, open the dump.
step_use() {
	if [ ! -e $state ]; then
		check "$KVER1 runs" running "$KVER1"
		check 'the kernel has unpacked the initial RAM file system' freed_initrd
		check 'systemd did not run in an initial RAM file system by initramfs-tools' test "$(initrd_systemd)" = 0
		use_module
		check 'the only taints are those of the DKMS module' taints_at_most $((1 << 12 | 1 << 13))
		read_btf
		check 'bpftool shows the programs that systemd loads' bpf_programs
		crash_kernel
	fi
	check "$KVER1 runs again after the crash" running "$KVER1"
	open_dump
	change_to_dracut
}

freed_initrd() {
	dmesg | grep -E 'Freeing initrd memory|Trying to unpack rootfs image' | tail -n 1
	dmesg | grep -q 'Freeing initrd memory'
}

# The time at which systemd started in the initial RAM file system, or 0.
initrd_systemd() {
	systemctl show -P InitRDTimestampMonotonic
}

# --- Modules

use_module() {
	check 'the module of DKMS loads' modprobe $module
	check 'the probe module reads the values that /proc shows' probe_agrees
}

# field NAME: a value that the module prints.
field() {
	sed -n "s/^$1 //p" /run/probe
}

# The module's view of the kernel and of the process that reads it.
probe_agrees() {
	local lines total
	# This shell itself is the reader: compare with its /proc/$$.
	mapfile -t lines </proc/faultline_probe
	printf '%s\n' "${lines[@]}" | tee /run/probe
	total=$(awk '$1 == "MemTotal:" { print $2 }' /proc/meminfo)
	[ "$(field release)" = "$(uname -r)" ] || return 1
	[ "$(field memtotal_kb)" = "$total" ] || {
		echo "MemTotal is $total"
		return 1
	}
	[ "$(field pid) $(field comm)" = "$$ $(cat /proc/$$/comm)" ] || {
		echo "the reader is $$ $(cat /proc/$$/comm)"
		return 1
	}
	# Field 48 of stat, after the name in brackets.
	[ "$(field arg_start)" = "$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f46)" ] || {
		cat /proc/$$/stat
		return 1
	}
}

# taints_at_most MASK: no other bits are set.
taints_at_most() {
	local taint
	taint=$(cat /proc/sys/kernel/tainted)
	echo "tainted: $taint"
	[ $((taint & ~$1)) -eq 0 ]
}

# --- Type information

read_btf() {
	check 'bpftool reads the BTF of vmlinux' dump_btf vmlinux
	check 'the sizes in the BTF are those of the headers' sizes_agree
	check 'the module of the network card is loaded' grep -q ^virtio_net /proc/modules
	check 'bpftool reads the BTF of a module' dump_btf virtio_net
	check 'the BTF of a module has its types' grep "STRUCT 'virtnet_info'" /run/btf.virtio_net
}

# dump_btf NAME: vmlinux or a module, to /run/btf.NAME.
dump_btf() {
	local base=()
	[ "$1" = vmlinux ] || base=(-B /sys/kernel/btf/vmlinux)
	bpftool "${base[@]}" btf dump file "/sys/kernel/btf/$1" >"/run/btf.$1" && [ -s "/run/btf.$1" ]
}

# The headers that the module was compiled with match the kernel's types.
sizes_agree() {
	local pair
	for pair in page:page_size task_struct:task_size mm_struct:mm_size vm_area_struct:vma_size; do
		grep -F "STRUCT '${pair%:*}' " /run/btf.vmlinux
		grep -qF "STRUCT '${pair%:*}' size=$(field "${pair#*:}") " /run/btf.vmlinux || {
			echo "in the headers: $(field "${pair#*:}")"
			return 1
		}
	done
}

# systemd filters the addresses of a unit with a program of its own.
bpf_programs() {
	cat >/run/systemd/system/programs.service <<-UNIT
		[Service]
		Type=oneshot
		IPAddressDeny=192.0.2.0/24
		StandardOutput=file:/run/programs
		ExecStart=bpftool prog show
	UNIT
	systemctl daemon-reload && systemctl start programs.service || return 1
	cat /run/programs
	grep -q 'cgroup_skb.*sd_fw_' /run/programs
}

# --- Dumps

crash_kernel() {
	check 'memory is reserved for a dump' grep -vx 0 /sys/kernel/kexec_crash_size
	check 'the kernel that saves a dump is loaded' load_kdump
	mkdir -p $state
	sync
	say 'crashing'
	# These steps run again after the dump.
	echo c >/proc/sysrq-trigger
	sleep infinity
}

load_kdump() {
	kdump-config load
	kdump-config show
	[ "$(cat /sys/kernel/kexec_crash_loaded)" = 1 ]
}

open_dump() {
	local dump
	dump=$(find /var/crash -name 'dump.*' -size +0)
	check 'a dump has been saved' test -n "$dump"
	say "$(du -h "$dump" | cut -f1)"
	check 'the log in the dump has the crash' grep -rh 'sysrq triggered crash' /var/crash --include='dmesg.*'
	check 'the debug information is installed' apt-get -y install "linux-image-$KVER1-dbg=$VERSION1"
	check 'crash opens the dump' crash_opens "$dump"
	check 'drgn opens the dump' drgn_opens "$dump"
}

crash_opens() {
	printf 'sys\nbt\nmod\nquit\n' | crash -s "$vmlinux" "$1" >/run/crash || return 1
	cat /run/crash
	grep -q "RELEASE: $KVER1\$" /run/crash && grep -q 'PANIC: .*sysrq triggered crash' /run/crash &&
		grep -q sysrq_handle_crash /run/crash && grep -q $module /run/crash
}

drgn_opens() {
	cat >/run/dump.py <<-'PYTHON'
		from drgn.helpers.linux.pid import for_each_task
		from drgn.helpers.linux.module import for_each_module
		print(prog["init_uts_ns"].name.release.string_().decode())
		print(sum(1 for task in for_each_task(prog)), "tasks")
		print(*(module.name.string_().decode() for module in for_each_module(prog)))
		print(prog.crashed_thread().stack_trace())
	PYTHON
	drgn -q -c "$1" -s "$vmlinux" /run/dump.py >/run/drgn || return 1
	cat /run/drgn
	[ "$(head -n 1 /run/drgn)" = "$KVER1" ] && grep -q $module /run/drgn &&
		grep -q sysrq_handle_crash /run/drgn
}

# --- The other program for an initial RAM file system

change_to_dracut() {
	rm -f "$initrd"
	# This removes initramfs-tools.
	check 'dracut is installed' apt-get -y install /opt/dracut/*.deb
	check 'initramfs-tools is gone' test ! -e /usr/sbin/update-initramfs
	check 'the kernel is reinstalled' apt-get -y --reinstall install "linux-image-$KVER1=$VERSION1"
	check 'the initial RAM file system is by dracut' dracut_made
	check 'the files in its boot entry exist' bootable "$KVER1"
	check 'the entry names the initial RAM file system' grep -q ^initrd "$(entries_of "$KVER1")"
}

dracut_made() {
	lsinitrd "$initrd" >/run/initrd || return 1
	head -n 5 /run/initrd
	grep -q 'usr/lib/dracut' /run/initrd
}

# Our kernel runs from the initial RAM file system of dracut.
step_dracut() {
	check "$KVER1 runs" running "$KVER1"
	check 'the kernel has unpacked the initial RAM file system' freed_initrd
	check 'systemd ran in an initial RAM file system by dracut' test "$(initrd_systemd)" -gt 0
	check 'the module of DKMS loads' modprobe $module
	check 'no unit has failed' prints_nothing systemctl list-units --failed --no-legend
}
