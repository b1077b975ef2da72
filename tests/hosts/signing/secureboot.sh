#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# sign-stage with throw-away keys, on a stage with the kernel of flavour tiny
# and modules made here.  Verified by sbverify, openssl and modinfo, and for
# vmlinuz by a VM whose firmware has Secure Boot on.  hosts/signing/certificate
# loads signed modules.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=tests/lib/secureboot.sh
. "$(dirname "$0")/../../lib/secureboot.sh"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sign_stage=("$TOP/tools/fl" package sign-stage)
tiny=$BUILD/stage/tiny
microvm=$BUILD/stage/microvm/vmlinuz
stage=$tmp/stage
# The output.
signed=$tmp/out/signed
epoch=1700000000

# --- A stage

gcc -O1 -o "$tmp/sign-file" "$BUILD/tree/scripts/sign-file.c" -lcrypto || exit
tree=$BUILD/tree
# Keep sign-stage from finding another one.
export BUILD=$tmp/build

for owner in ours others; do
	openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=throw-away $owner" \
		-addext basicConstraints=critical,CA:FALSE \
		-keyout "$tmp/$owner.key" -out "$tmp/$owner.crt" 2>/dev/null || exit
done
ours=(--key "$tmp/ours.key" --cert "$tmp/ours.crt")

# module NAME: makes a file that modinfo and depmod accept as a module.
module() {
	printf 'static const char m[] __attribute__((section(".modinfo"), used)) = "name=%s\\0license=GPL";\n' \
		"$1" | gcc -x c -c -o "$stage/modules/kernel/$1.ko" -
}
make_stage() {
	rm -rf "$stage"
	mkdir -p "$stage/modules/kernel" "$stage/headers/scripts" "$stage/doc"
	cp "$tiny/vmlinuz" "$tiny/System.map" "$stage/"
	cp "$tmp/sign-file" "$stage/headers/scripts/"
	printf 'CONFIG_%s\n' MODULE_SIG=y 'MODULE_SIG_HASH="sha512"' SECURITY_LOCKDOWN_LSM=y \
		LOCK_DOWN_IN_EFI_SECURE_BOOT=y SYSTEM_EXTRA_CERTIFICATE=y \
		SYSTEM_EXTRA_CERTIFICATE_SIZE=4096 >"$stage/config"
	printf '%s\n' KVER=6.12.0-faultline1.test UPSTREAM=6.12.0 RELEASE=1 FLAVOUR=test ARCH=amd64 \
		RPMARCH=x86_64 SOURCE_DATE_EPOCH=$epoch DEBUG=no PERF=yes >"$stage/stage.env"
	local name
	for name in plain xz zst gz; do
		module $name
	done
	(
		cd "$stage/modules/kernel" || exit
		xz --check=crc32 --lzma2=dict=1MiB xz.ko && zstd -q --rm zst.ko && gzip -n gz.ko
	)
	find "$stage" -exec touch -d @$epoch {} +
}
make_stage || exit

state() {
	local folder
	for folder in "$stage" "$signed"; do
		if [ -d "$folder" ]; then
			(cd "$folder" && find . -type f -exec sha256sum {} + | sort && find . -printf '%p %m %T@\n' | sort)
		fi
	done
}
# Debian 12's modinfo does not unpack .gz.
signer() {
	local module=$signed/modules/kernel/$1
	case $1 in *.gz) gzip -dc "$module" >"$tmp/unpacked.ko" && module=$tmp/unpacked.ko ;; esac
	modinfo -F signer "$module"
}

# verify FILE CERT: checks the signature at the end of a module without our code.
verify() {
	python3 - "$1" "$tmp" <<-'PYTHON' || return
		import pathlib, struct, sys
		data = pathlib.Path(sys.argv[1]).read_bytes()
		mark = b"~Module signature appended~\n"
		assert data.endswith(mark), "no signature"
		data = data[:-len(mark)]
		kind, size = data[-10], struct.unpack(">I", data[-4:])[0]
		assert kind == 2, "not PKCS#7"
		pathlib.Path(sys.argv[2], "body").write_bytes(data[:-12 - size])
		pathlib.Path(sys.argv[2], "signature").write_bytes(data[-12 - size:-12])
	PYTHON
	openssl cms -verify -binary -inform der -in "$tmp/signature" -content "$tmp/body" \
		-noverify -nointern -certfile "$2" -out /dev/null
}

# --- Signing

check 'the kernel is an EFI program, unsigned' refuses 'No signature' \
	sbverify --cert "$tmp/ours.crt" "$stage/vmlinuz"
before=$(state)
check 'a stage is signed' "${sign_stage[@]}" "$stage" "$signed" "${ours[@]}"
check 'the stage itself is not changed' diff <(printf '%s\n' "$before") <(signed=/nonexistent state)
check 'sbverify accepts vmlinuz' sbverify --cert "$tmp/ours.crt" "$signed/vmlinuz"
check 'sbverify refuses vmlinuz with another certificate' refuses 'verification failed' \
	sbverify --cert "$tmp/others.crt" "$signed/vmlinuz"
for name in plain.ko xz.ko.xz zst.ko.zst gz.ko.gz; do
	check "$name names our key" [ "$(signer $name)" = 'throw-away ours' ]
done
check 'the signature uses the hash of the kernel configuration' [ "$(modinfo -F sig_hashalgo "$signed/modules/kernel/plain.ko")" = sha512 ]
check 'openssl verifies a module' verify "$signed/modules/kernel/plain.ko" "$tmp/ours.crt"
check 'openssl refuses a module with another certificate' refuses 'failure' verify "$signed/modules/kernel/plain.ko" "$tmp/others.crt"
check 'the module below the signature is unchanged' cmp "$tmp/body" "$stage/modules/kernel/plain.ko"
xz -dc "$signed/modules/kernel/xz.ko.xz" >"$tmp/unpacked.ko"
check 'openssl verifies a compressed module' verify "$tmp/unpacked.ko" "$tmp/ours.crt"
check 'a compressed module is in a form that the kernel can read' grep -q CRC32 <(xz --list --verbose "$signed/modules/kernel/xz.ko.xz")
check 'the certificate for mokutil is in doc' cmp "$signed/doc/secureboot.der" \
	<(openssl x509 -in "$tmp/ours.crt" -outform der)
check_empty 'all files have the date of the stage' "$(find "$signed" ! -newermt "@$((epoch - 1))" -o -newermt "@$epoch")"
check_empty 'all files have the modes of a stage' "$(find "$signed" -type f ! -perm 644 ! -name sign-file; find "$signed" -type d ! -perm 755)"
check_empty 'the key is not among the files' "$(grep -rl 'PRIVATE KEY' "$signed")"

# --- A second run

again() { "${sign_stage[@]}" "$stage" "$signed" "$@"; }
before=$(state)
check 'a second run succeeds' again "${ours[@]}"
check 'the second run changes nothing' diff <(printf '%s\n' "$before") <(state)
# Unlike vmlinuz, modules have no date in their signature.
cp -a "$signed/modules" "$tmp/modules"
rm -r "$signed"
again "${ours[@]}" >/dev/null
check 'signed modules are reproducible' diff -r "$tmp/modules" "$signed/modules"
check 'the stage is signed with another key' again --key "$tmp/others.key" --cert "$tmp/others.crt"
check 'vmlinuz has the signature of the other key' sbverify --cert "$tmp/others.crt" "$signed/vmlinuz"
check 'modules have the signature of the other key' verify "$signed/modules/kernel/plain.ko" "$tmp/others.crt"
check 'a signed stage is signed again' "${sign_stage[@]}" "$signed" "$tmp/twice" "${ours[@]}"
check 'vmlinuz of a stage signed twice has one signature' [ "$(sbverify --list "$tmp/twice/vmlinuz" | grep -c '^signature [0-9]')" = 1 ]
check 'vmlinuz of a stage signed twice has the new signature' sbverify --cert "$tmp/ours.crt" "$tmp/twice/vmlinuz"
check 'modules of a stage signed twice have the new signature' verify "$tmp/twice/modules/kernel/plain.ko" "$tmp/ours.crt"
check 'modules of a stage signed twice have one signature' cmp "$tmp/body" "$stage/modules/kernel/plain.ko"
cp "$stage/modules/kernel/plain.ko" "$tmp/plain.ko"
for _ in 1 2; do
	"$tmp/sign-file" sha256 "$tmp/ours.key" "$tmp/ours.crt" "$stage/modules/kernel/plain.ko"
done
check 'a module with several signatures is signed again' again --key "$tmp/others.key" --cert "$tmp/others.crt"
check 'a module with several signatures gets the new one' verify "$signed/modules/kernel/plain.ko" "$tmp/others.crt"
check 'a module with several signatures loses the old ones' cmp "$tmp/body" "$tmp/plain.ko"
# As after an interruption.
mkdir "$tmp/out/.signed.part"
touch "$tmp/out/.signed.part/rest"
make_stage
check 'a run after an interrupted one succeeds' again "${ours[@]}"
check_empty 'nothing of the interrupted run is left' "$(
	find "$tmp/out" -maxdepth 1 -name '.*' ! -name '*.lock' ! -name '*.inputs'
	find "$signed" -name rest)"

# --- Tampering

flip() {
	local byte
	byte=$(od -An -tu1 -j "$2" -N 1 "$1")
	# shellcheck disable=SC2059 # an octal escape
	printf "\\$(printf %03o $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
cp "$signed/vmlinuz" "$tmp/tampered"
flip "$tmp/tampered" 1000000
check 'sbverify refuses a tampered vmlinuz' refuses 'verification failed|hash' sbverify --cert "$tmp/ours.crt" "$tmp/tampered"
cp "$signed/modules/kernel/plain.ko" "$tmp/tampered.ko"
flip "$tmp/tampered.ko" 100
check 'openssl refuses a tampered module' refuses 'failure' verify "$tmp/tampered.ko" "$tmp/ours.crt"
cp "$tmp/tampered.ko" "$signed/modules/kernel/plain.ko"
check 'a module with a bad signature is signed again' again "${ours[@]}"
check 'a module with a bad signature gets a good one' verify "$signed/modules/kernel/plain.ko" "$tmp/ours.crt"

# --- Errors: one clear line

# wrong NAME REGEX ARG...: refused with one error line, and nothing changes.
wrong() {
	local name=$1 regex=$2 text status=0
	shift 2
	text=$("${sign_stage[@]}" "$@" 2>&1 >/dev/null) || status=$?
	if [ $status -eq 1 ] && grep -qxE "fl package sign-stage: error: .*($regex).*" <<<"$text" &&
		[ "$(wc -l <<<"$text")" = 1 ] && [ "$before" = "$(state)" ]; then
		ok "refused: $name"
	else
		not_ok "refused: $name" <<<"status $status: $text"
	fi
}
make_stage
before=$(state)
openssl pkey -in "$tmp/ours.key" -aes256 -passout pass:secret -out "$tmp/locked.key"
openssl x509 -in "$tmp/ours.crt" -outform der -out "$tmp/ours.der"
wrong 'a key that does not match the certificate' 'is not the key of' "$stage" "$signed" --key "$tmp/ours.key" --cert "$tmp/others.crt"
wrong 'a missing key' 'no such file' "$stage" "$signed" --key "$tmp/none" --cert "$tmp/ours.crt"
wrong 'a key with a passphrase' 'passphrase' "$stage" "$signed" --key "$tmp/locked.key" --cert "$tmp/ours.crt"
wrong 'a certificate in DER form' 'PEM' "$stage" "$signed" --key "$tmp/ours.key" --cert "$tmp/ours.der"
wrong 'key and certificate swapped' 'no private key' "$stage" "$signed" --key "$tmp/ours.crt" --cert "$tmp/ours.key"
wrong 'a folder that is not a stage' 'not a stage' "$tmp" "$signed" "${ours[@]}"
wrong 'an output folder that is something else' 'name another folder' "$stage" "$tmp" "${ours[@]}"
wrong 'an output folder in the stage' 'name another folder' "$stage" "$stage/signed" "${ours[@]}"
wrong 'the stage as output folder' 'name another folder' "$stage" "$stage" "${ours[@]}"
wrong 'a missing sign-file' 'no such program' "$stage" "$signed" "${ours[@]}" --sign-file "$tmp/none"
rm "$stage/headers/scripts/sign-file"
before=$(state)
wrong 'a stage without sign-file' 'linux-kbuild' "$stage" "$signed" "${ours[@]}"
check 'sign-file can be given' again "${ours[@]}" --sign-file "$tmp/sign-file"
make_stage
printf 'MZ, but no program\n' >"$stage/vmlinuz"
before=$(state)
wrong 'a vmlinuz that is not an EFI program' 'not an EFI program' "$stage" "$signed" "${ours[@]}"
make_stage
for option in MODULE_SIG SECURITY_LOCKDOWN_LSM LOCK_DOWN_IN_EFI_SECURE_BOOT; do
	make_stage
	sed -i "/^CONFIG_$option=/d" "$stage/config"
	before=$(state)
	wrong "a kernel without $option" "has no CONFIG_$option=y" "$stage" "$signed" "${ours[@]}"
done

# --- Certificates of all sizes

# certificate LENGTH: makes sized.crt for our key with a comment of that length.
comment=$(openssl rand -hex 4000)
certificate() {
	openssl req -x509 -key "$tmp/ours.key" -days 30 -set_serial 1 -subj '/CN=throw-away sized' \
		-addext basicConstraints=critical,CA:FALSE -addext "nsComment=${comment:0:$1}" -out "$tmp/sized.crt" 2>/dev/null &&
		size=$(openssl x509 -in "$tmp/sized.crt" -outform der | wc -c)
}
make_stage
certificate 1000
length=$((1000 + 4096 - size))
certificate $length
check 'the certificate is as large as the room in the kernel' [ "$size" = 4096 ]
check 'a certificate as large as the room is accepted' again --key "$tmp/ours.key" --cert "$tmp/sized.crt"
check 'vmlinuz has the certificate as large as the room' grep -qUaF "$(printf 'throw-away sized')" <(
	sh "$tree/scripts/extract-vmlinux" "$signed/vmlinuz" | tr -d '\0')
certificate $((length + 1))
before=$(state)
wrong 'a certificate that is larger than the room' \
	"--cert has 4097 bytes, and the room for it in this kernel 4096: use a smaller" \
	"$stage" "$signed" --key "$tmp/ours.key" --cert "$tmp/sized.crt"
sed -i /SYSTEM_EXTRA/d "$stage/config"
before=$(state)
wrong 'a kernel without room' 'no room for a certificate: build it with CONFIG_SYSTEM_EXTRA_CERTIFICATE=y' \
	"$stage" "$signed" "${ours[@]}"
make_stage
rm "$stage/System.map"
before=$(state)
wrong 'a stage without System.map' 'no System.map' "$stage" "$signed" "${ours[@]}"
make_stage
sed -i '/ system_extra_cert_used$/d' "$stage/System.map"
before=$(state)
wrong 'a System.map of another kernel' 'no system_extra_cert_used where System.map says' \
	"$stage" "$signed" "${ours[@]}"
make_stage
flip "$stage/vmlinuz" 1000000
before=$(state)
wrong 'a damaged vmlinuz' 'damaged, its CRC is wrong: make the stage again' "$stage" "$signed" "${ours[@]}"
make_stage
cp "$microvm" "$stage/vmlinuz"
before=$(state)
wrong 'a kernel that is compressed in another way' 'not compressed by zstd: build the kernel with' \
	"$stage" "$signed" "${ours[@]}"
make_stage
printf none | dd of="$stage/vmlinuz" bs=1 seek=$((0x202)) conv=notrunc status=none
before=$(state)
wrong 'an EFI program that is not a kernel' 'not a bzImage' "$stage" "$signed" "${ours[@]}"

# --- A key in a token

# A token in software, with the key of others.crt.
softhsm=/usr/lib/softhsm/libsofthsm2.so
[ -f $softhsm ] || softhsm=/usr/lib64/pkcs11/libsofthsm2.so
if command -v softhsm2-util >/dev/null && openssl engine -t pkcs11 2>/dev/null | grep -q '\[ available \]'; then
	export SOFTHSM2_CONF=$tmp/softhsm.conf PKCS11_MODULE_PATH=$softhsm
	mkdir "$tmp/tokens"
	printf 'directories.tokendir = %s\n' "$tmp/tokens" >"$SOFTHSM2_CONF"
	openssl pkcs8 -topk8 -nocrypt -in "$tmp/others.key" -out "$tmp/others.pkcs8"
	softhsm2-util --init-token --free --label faultline --pin 1234 --so-pin 5678 >/dev/null &&
		softhsm2-util --import "$tmp/others.pkcs8" --token faultline --label signing --id 01 --pin 1234 >/dev/null
	printf 1234 >"$tmp/pin"
	printf 4321 >"$tmp/wrong-pin"
	chmod 600 "$tmp/pin" "$tmp/wrong-pin"
	uri="pkcs11:token=faultline;object=signing"
	make_stage
	again --key "$tmp/others.key" --cert "$tmp/others.crt" >/dev/null
	rm -rf "$tmp/modules" && cp -a "$signed/modules" "$tmp/modules" && rm -r "$signed"
	check 'a stage is signed with a key in a token' again --key "$uri;pin-source=file:$tmp/pin" --cert "$tmp/others.crt"
	check 'sbverify accepts vmlinuz signed with a key in a token' sbverify --cert "$tmp/others.crt" "$signed/vmlinuz"
	check 'openssl verifies a module signed with a key in a token' verify "$signed/modules/kernel/plain.ko" "$tmp/others.crt"
	check 'modules are the same as with the key in a file' diff -r "$tmp/modules" "$signed/modules"
	make_stage
	before=$(state)
	wrong 'a PIN on the command line' 'pin-source=file' "$stage" "$signed" --key "$uri;pin-value=1234" --cert "$tmp/others.crt"
	wrong 'a token without a PIN' 'is its PIN in the file' "$stage" "$signed" --key "$uri" --cert "$tmp/others.crt"
	wrong 'a wrong PIN' 'is its PIN in the file' "$stage" "$signed" --key "$uri;pin-source=file:$tmp/wrong-pin" --cert "$tmp/others.crt"
	wrong 'an object that is not in the token' 'does it have this object' "$stage" "$signed" \
		--key "pkcs11:token=faultline;object=none;pin-source=file:$tmp/pin" --cert "$tmp/others.crt"
	wrong 'the certificate of another key' 'is not the key of' "$stage" "$signed" \
		--key "$uri;pin-source=file:$tmp/pin" --cert "$tmp/ours.crt"
	export OPENSSL_ENGINES=$tmp/empty
	wrong 'an OpenSSL without the engine' 'libengine-pkcs11-openssl' "$stage" "$signed" \
		--key "$uri;pin-source=file:$tmp/pin" --cert "$tmp/others.crt"
	unset OPENSSL_ENGINES SOFTHSM2_CONF PKCS11_MODULE_PATH
else
	ok 'a key in a token' 'no softhsm2 or no OpenSSL engine pkcs11'
fi

# --- Firmware with Secure Boot on

boot() {
	secure_boot 512 300 'Error loading|Secure boot (enabled|disabled|could)' "$1"
}
boots() {
	boot "$1" >"$tmp/said"
	grep -q 'secureboot: Secure boot enabled' "$tmp/said" || { tail -n 5 "$tmp/said"; return 1; }
}
denied() {
	boot "$1" >"$tmp/said"
	if grep -qE 'Error loading .*vmlinuz: Access Denied' "$tmp/said" && ! grep -q 'Linux version' "$tmp/said"; then
		return
	fi
	tail -n 5 "$tmp/said"
	return 1
}
if has_secureboot; then
	make_stage
	make_loader
	check 'the firmware refuses an unsigned kernel' denied "$stage/vmlinuz"
	again "${ours[@]}" >/dev/null
	check 'the firmware refuses a kernel signed with an unknown key' denied "$signed/vmlinuz"
	again --key "$tmp/enrolled.key" --cert "$tmp/enrolled.crt" >/dev/null
	check 'the firmware boots a kernel signed with the enrolled key' boots "$signed/vmlinuz"
	flip "$signed/vmlinuz" 1000000
	check 'the firmware refuses a signed kernel after tampering' denied "$signed/vmlinuz"
else
	ok 'firmware with Secure Boot' 'no ovmf with the snakeoil key or no systemd-boot-efi'
fi
done_testing
