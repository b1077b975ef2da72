# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# Virtual machines whose firmware has Secure Boot on.  The caller has set tmp.

# Debian's ovmf has variables with a publicly known key enrolled.
code=/usr/share/OVMF/OVMF_CODE_4M.secboot.fd
variables=/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd
snakeoil=/usr/share/ovmf/PkKek-1-snakeoil
loader=/usr/lib/systemd/boot/efi/systemd-bootx64.efi

has_secureboot() {
	[ -f $code ] && [ -f $variables ] && [ -f $snakeoil.key ] && [ -f $loader ]
}

# Makes enrolled.key, its certificate enrolled.crt, and a boot loader signed with it.  The firmware
# trusts it, since $snakeoil.pem has issued the certificate; sign-stage refuses $snakeoil.pem
# itself, as that can sign others.
make_loader() {
	openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=throw-away enrolled' \
		-addext basicConstraints=critical,CA:FALSE -keyout "$tmp/enrolled.key" \
		-CA $snakeoil.pem -CAkey $snakeoil.key -passin pass:snakeoil -out "$tmp/enrolled.crt" 2>/dev/null &&
		sbsign --key "$tmp/enrolled.key" --cert "$tmp/enrolled.crt" \
			--output "$tmp/loader.efi" $loader 2>/dev/null
}

# secure_boot MEM SECONDS REGEX VMLINUZ [INITRD]: prints the output of the serial port until
# a line matches, the machine ends or the time is up.
secure_boot() {
	local esp=$tmp/esp log=$tmp/serial end=$((SECONDS + $2)) vm
	rm -rf "$esp" "$log"
	mkdir -p "$esp/EFI/BOOT" "$esp/loader/entries"
	cp "$tmp/loader.efi" "$esp/EFI/BOOT/BOOTX64.EFI"
	cp "$4" "$esp/vmlinuz"
	[ -z "${5-}" ] || cp "$5" "$esp/initrd"
	printf 'timeout 0\n' >"$esp/loader/loader.conf"
	printf '%s\n' 'title test' 'linux /vmlinuz' ${5:+'initrd /initrd'} \
		'options console=ttyS0 no_timer_check panic=-1' >"$esp/loader/entries/test.conf"
	cp "$variables" "$tmp/variables"
	qemu-system-x86_64 -machine q35,smm=on,accel=tcg -cpu max -m "$1" -display none -no-reboot \
		-nic none -serial "file:$log" -global driver=cfi.pflash01,property=secure,value=on \
		-global ICH9-LPC.disable_s3=1 \
		-drive "if=pflash,format=raw,unit=0,readonly=on,file=$code" \
		-drive "if=pflash,format=raw,unit=1,file=$tmp/variables" \
		-drive "if=none,id=esp,format=raw,readonly=on,file=fat:$esp" \
		-device nvme,serial=esp,drive=esp </dev/null >/dev/null 2>&1 &
	vm=$!
	until grep -qaE -- "$3" "$log" 2>/dev/null || ! kill -0 "$vm" 2>/dev/null || [ "$SECONDS" -gt "$end" ]; do
		sleep 0.2
	done
	kill "$vm" 2>/dev/null
	wait "$vm"
	tr -cd '\n[:print:]' <"$log"
}
