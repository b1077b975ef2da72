#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The configurations of the flavours that hosts install have the drivers and the
# protection that these hosts need.  They are made, not compiled.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

# has FLAVOUR OPTION...: built in or a module.
has() {
	local flavour=$1 option
	shift
	for option; do
		grep -qE "^CONFIG_$option=[ym]$" "$BUILD/$flavour/.config" || echo "no $option"
	done
}
# builtin FLAVOUR OPTION...
builtin() {
	local flavour=$1 option
	shift
	for option; do
		grep -qx "CONFIG_$option=y" "$BUILD/$flavour/.config" || echo "no $option=y"
	done
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Kconfig uses one CPU, so they are configured at the same time.
declare -A running
for flavour in generic cloud powerpc64le generic-arm64; do
	tools/fl configure $flavour >"$tmp/$flavour" 2>&1 &
	running[$flavour]=$!
done
for flavour in generic cloud powerpc64le generic-arm64; do
	if wait "${running[$flavour]}"; then
		ok "$flavour is configured"
	else
		not_ok "$flavour is configured" <"$tmp/$flavour"
	fi
	check_empty "$flavour has the features" "$(builtin $flavour FAULTLINE FAULTLINE_MUNMAP \
		FAULTLINE_MADVISE FAULTLINE_WALK FAULTLINE_PMD_CLEAR FAULTLINE_SPF)"
	check_empty "$flavour has nothing that is for tests" "$(
		grep -E '^CONFIG_(FAULTLINE_\w*(TORTURE|KUNIT)\w*|KASAN|PROVE_LOCKING|DEBUG_VM|KUNIT)=y' "$BUILD/$flavour/.config")"
	check_empty "$flavour has type information, and can dump" "$(builtin $flavour \
		DEBUG_INFO DEBUG_INFO_BTF KEXEC CRASH_DUMP)"
	check_empty "$flavour checks signatures, and has room for a key" "$(builtin $flavour MODULE_SIG \
		SECURITY_LOCKDOWN_LSM SYSTEM_EXTRA_CERTIFICATE)"
	check_empty "$flavour has no key of its own" "$(
		grep -E '^CONFIG_(MODULE_SIG_ALL=y|(MODULE_SIG_KEY|SYSTEM_TRUSTED_KEYS)="[^"])' "$BUILD/$flavour/.config")"
	check_empty "$flavour finds virtual disks and network cards" "$(has $flavour BLK_DEV_NVME \
		VIRTIO_BLK VIRTIO_NET SCSI_VIRTIO MLX5_CORE)"
done
for flavour in generic cloud generic-arm64; do
	check_empty "$flavour has control of hugetlb" "$(builtin $flavour FAULTLINE_HUGETLB \
		FAULTLINE_HUGETLB_ZERO)"
	check_empty "$flavour locks itself down with Secure Boot" "$(builtin $flavour \
		LOCK_DOWN_IN_EFI_SECURE_BOOT)"
	check_empty "$flavour finds the disks and network cards of clouds" "$(has $flavour \
		XEN_BLKDEV_FRONTEND HYPERV_STORAGE HYPERV_NET ENA_ETHERNET GVE)"
done
for flavour in generic cloud; do
	check_empty "$flavour takes a certificate after the build" "$(builtin $flavour KERNEL_ZSTD)"
	check_empty "$flavour has live patches, and signed kexec" "$(builtin $flavour KEXEC_FILE LIVEPATCH)"
	check_empty "$flavour is for many CPUs and nodes" "$(builtin $flavour NUMA NUMA_BALANCING
		grep -qx CONFIG_NR_CPUS=8192 "$BUILD/$flavour/.config" || echo 'not 8192 CPUs')"
done
check_empty 'generic has the storage controllers of servers' "$(has generic MEGARAID_SAS \
	SCSI_MPT3SAS SCSI_SMARTPQI SCSI_AACRAID SATA_AHCI BLK_DEV_MD DM_CRYPT)"
check_empty 'generic has the network cards of servers' "$(has generic IGB IXGBE I40E ICE E1000E \
	MLX4_EN MLX5_CORE BNXT TIGON3 QEDE)"
check_empty 'generic has the management of servers' "$(has generic IPMI_HANDLER IPMI_SI EDAC \
	EDAC_AMD64 EDAC_SKX HWMON SENSORS_CORETEMP USB)"
check_empty 'generic has both IOMMUs and both hypervisors' "$(has generic AMD_IOMMU INTEL_IOMMU \
	KVM_INTEL KVM_AMD VFIO_PCI)"
check_empty 'generic-arm64 is an EFI program for ACPI, with 4 KiB pages' "$(builtin generic-arm64 \
	EFI_STUB ACPI ARM64_4K_PAGES ARM64_CONTPTE ARM64_HW_AFDBM ARM64_USE_LSE_ATOMICS NUMA
	grep -qx CONFIG_NR_CPUS=512 "$BUILD/generic-arm64/.config" || echo 'not 512 CPUs')"
check_empty 'the image of generic-arm64 is the kernel itself, as it takes a certificate' "$(
	grep -x CONFIG_EFI_ZBOOT=y "$BUILD/generic-arm64/.config")"
check_empty 'generic-arm64 has the console, interrupts and IOMMU of servers, and KVM' "$(builtin generic-arm64 \
	SERIAL_AMBA_PL011_CONSOLE ARM_GIC_V3_ITS ARM_SMMU_V3 ACPI_APEI_GHES KVM
	has generic-arm64 VFIO_PCI IPMI_SSIF HNS3)"
check_empty 'generic-arm64 has the storage controllers and network cards of servers' "$(has generic-arm64 \
	MEGARAID_SAS SCSI_MPT3SAS SCSI_SMARTPQI SATA_AHCI BLK_DEV_MD DM_CRYPT I40E ICE IXGBE BNXT \
	TIGON3)"
check_empty 'powerpc64le is for bare metal, partitions and guests, with both MMUs' "$(builtin powerpc64le \
	PPC_POWERNV PPC_PSERIES CPU_LITTLE_ENDIAN PPC_RADIX_MMU PPC_64S_HASH_MMU PPC_4K_PAGES NUMA
	grep -qx CONFIG_NR_CPUS=2048 "$BUILD/powerpc64le/.config" || echo 'not 2048 CPUs')"
check_empty 'powerpc64le has the consoles and disks of the hypervisors' "$(has powerpc64le HVC_OPAL \
	HVC_CONSOLE HVC_RTAS IBMVETH SCSI_IBMVSCSI SCSI_IBMVFC VIRTIO_CONSOLE)"
check_empty 'powerpc64le has the storage controllers and network cards of servers' "$(has powerpc64le \
	SCSI_IPR SCSI_LPFC MEGARAID_SAS SCSI_MPT3SAS SCSI_AACRAID SATA_AHCI BLK_DEV_MD DM_CRYPT \
	BNX2X TIGON3 I40E MLX4_EN)"
check_empty 'powerpc64le has errors, sensors and firmware of servers, and KVM' "$(has powerpc64le EEH \
	IPMI_POWERNV SENSORS_IBMPOWERNV OPAL_PRD RTAS_ERROR_LOGGING HW_RANDOM_POWERNV \
	POWERNV_CPUIDLE KVM_BOOK3S_64_HV VFIO_PCI)"
done_testing
