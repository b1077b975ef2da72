# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# Virtual machines whose firmware has Secure Boot on.  The caller has set tmp, and
# machine=aarch64 for that architecture.

# Debian's firmware has variables with a publicly known key enrolled.
case ${machine:=x86_64} in
x86_64)
	code=/usr/share/OVMF/OVMF_CODE_4M.secboot.fd
	variables=/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd
	snakeoil=/usr/share/ovmf/PkKek-1-snakeoil
	loader=/usr/lib/systemd/boot/efi/systemd-bootx64.efi
	;;
aarch64)
	code=/usr/share/AAVMF/AAVMF_CODE.fd
	variables=/usr/share/AAVMF/AAVMF_VARS.snakeoil.fd
	snakeoil=/usr/share/qemu-efi-aarch64/PkKek-1-snakeoil
	# The firmware starts the kernel itself: there is no signed loader for a host of
	# another architecture.
	loader=
	;;
esac

has_secureboot() {
	[ -f "$code" ] && [ -f "$variables" ] && [ -f "$snakeoil.key" ] && [ -f "${loader:-$code}" ]
}

# Makes enrolled.key, and its certificate enrolled.crt.  The firmware trusts it, since
# $snakeoil.pem has issued the certificate; sign-stage refuses $snakeoil.pem itself, as
# that can sign others.
make_key() {
	openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=throw-away enrolled' \
		-addext basicConstraints=critical,CA:FALSE -keyout "$tmp/enrolled.key" \
		-CA "$snakeoil.pem" -CAkey "$snakeoil.key" -passin pass:snakeoil -out "$tmp/enrolled.crt" 2>/dev/null
}

# The same, and a boot loader signed with it.
make_loader() {
	make_key &&
		sbsign --key "$tmp/enrolled.key" --cert "$tmp/enrolled.crt" \
			--output "$tmp/loader.efi" "$loader" 2>/dev/null
}

# secure_boot MEM SECONDS REGEX VMLINUZ [INITRD]: prints the output of the serial port until
# a line matches, the machine ends or the time is up.
secure_boot() {
	local esp=$tmp/esp log=$tmp/serial end=$((SECONDS + $2))
	rm -rf "$esp" "$log"
	mkdir -p "$esp/EFI/BOOT" "$esp/loader/entries"
	cp "$variables" "$tmp/variables"
	if [ "$machine" = aarch64 ]; then
		cp "$4" "$esp/EFI/BOOT/BOOTAA64.EFI"
		qemu-system-aarch64 -machine virt,gic-version=3,accel=tcg -cpu neoverse-n1 -m "$1" \
			-display none -no-reboot -nic none -serial "file:$log" \
			-drive "if=pflash,format=raw,unit=0,readonly=on,file=$code" \
			-drive "if=pflash,format=raw,unit=1,file=$tmp/variables" \
			-drive "if=none,id=esp,format=raw,readonly=on,file=fat:$esp" \
			-device nvme,serial=esp,drive=esp </dev/null >/dev/null 2>&1 &
		wait_for_line "$!" "$log" "$end" "$3"
		return
	fi
	cp "$tmp/loader.efi" "$esp/EFI/BOOT/BOOTX64.EFI"
	cp "$4" "$esp/vmlinuz"
	[ -z "${5-}" ] || cp "$5" "$esp/initrd"
	printf 'timeout 0\n' >"$esp/loader/loader.conf"
	printf '%s\n' 'title test' 'linux /vmlinuz' ${5:+'initrd /initrd'} \
		'options console=ttyS0 no_timer_check panic=-1' >"$esp/loader/entries/test.conf"
	qemu-system-x86_64 -machine q35,smm=on,accel=tcg -cpu max -m "$1" -display none -no-reboot \
		-nic none -serial "file:$log" -global driver=cfi.pflash01,property=secure,value=on \
		-global ICH9-LPC.disable_s3=1 \
		-drive "if=pflash,format=raw,unit=0,readonly=on,file=$code" \
		-drive "if=pflash,format=raw,unit=1,file=$tmp/variables" \
		-drive "if=none,id=esp,format=raw,readonly=on,file=fat:$esp" \
		-device nvme,serial=esp,drive=esp </dev/null >/dev/null 2>&1 &
	wait_for_line "$!" "$log" "$end" "$3"
}

# wait_for_line PID LOG END REGEX: waits for the line, ends the machine, and prints the log.
wait_for_line() {
	local vm=$1 log=$2
	until grep -qaE -- "$4" "$log" 2>/dev/null || ! kill -0 "$vm" 2>/dev/null || [ "$SECONDS" -gt "$3" ]; do
		sleep 0.2
	done
	kill "$vm" 2>/dev/null
	wait "$vm"
	tr -cd '\n[:print:]' <"$log"
}
