# SPDX-License-Identifier: GPL-2.0-only
"""Put a certificate into the kernel's built-in keyring after the build.

CONFIG_SYSTEM_EXTRA_CERTIFICATE keeps room for it in vmlinux, full of noise that does not
compress. The compressed vmlinux in the bzImage is unpacked, the certificate takes the place of
the noise as the kernel's own scripts/insert-sys-cert would do it, and the result is packed
again. It is shorter than before, so it fits its old place: no offset and no size in the bzImage
changes, and neither does an address or the build ID of the kernel.

That is the bzImage of x86; arm64's Image is the kernel itself, as it is in memory, and the
certificate is written to its place.

A frame that zstd skips fills the rest of the place. The kernel unpacks itself in place, with a
margin that must also cover this frame: zstd needs 128 KiB and 3 bytes per 128 KiB, and there are
128 KiB and 1 byte per 256 (ZO_z_extra_bytes in arch/x86/boot/header.S).
"""
from __future__ import annotations

import re
import struct
import zlib

from ..common import Fail, call
from ..stage_env import AGAIN

# Documentation/arch/x86/boot.rst: setup_sects, "HdrS", version, payload_offset and _length.
SETUP_SECTS, MAGIC, VERSION, PAYLOAD = 0x1f1, 0x202, 0x206, 0x248
SECTOR = 512
# The places of the offset of the PE header, and of the checksum in that header.
PE, CHECKSUM = 0x3c, 0x58
CERT, USED, LIST = ("system_extra_cert", "system_extra_cert_used", "system_certificate_list_size")
# Documentation/arch/arm64/booting.rst: the place of the magic number; the address of the
# first byte is that of a symbol.
ARM64, ARM64_PLACE, FIRST = b"ARM\x64", 0x38, "_text"
# As the kernel's scripts/Makefile.lib packs it (zstd22).
PACK = ("zstd", "-q", "-c", "-22", "--ultra")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# The header of a frame that decompressors skip; the size of its contents follows.
SKIPPED = struct.pack("<I", 0x184d2a50)


def without_checksum(data: bytes) -> bytes:
    """An EFI program with the checksum that the build leaves 0, and sbsign writes."""
    place = int.from_bytes(data[PE:PE + 4], "little") + CHECKSUM
    return data[:place] + bytes(4) + data[place + 4:]


def crc(data: bytes) -> int:
    """The CRC of arch/x86/boot/tools/build.c; 0 for an image with its CRC at the end."""
    return zlib.crc32(data) ^ 0xffffffff


class Image:
    """A bzImage without an EFI signature, and the kernel in it."""

    def __init__(self, data: bytes, what: str) -> None:
        self.what = what
        if data[MAGIC:MAGIC + 4] != b"HdrS" or int.from_bytes(
                data[VERSION:VERSION + 2], "little") < 0x208:
            raise Fail(f"{what} is not a bzImage: {AGAIN}")
        self.data = data = without_checksum(data)
        if crc(data):
            raise Fail(f"{what} is damaged, its CRC is wrong: {AGAIN}")
        offset, size = struct.unpack_from("<II", data, PAYLOAD)
        self.start = (data[SETUP_SECTS] + 1) * SECTOR + offset
        # The size of the unpacked kernel follows it.
        self.end = self.start + size - 4
        payload = data[self.start:self.end]
        if not payload.startswith(ZSTD_MAGIC):
            raise Fail(f"{what} is not compressed by zstd: build the kernel with "
                       "CONFIG_KERNEL_ZSTD=y, as the flavours generic and cloud are")
        self.kernel = call("zstd", "-q", "-dc", data=payload, what=f"unpacking {what}")

    def offset(self, address: int, _: dict[str, int]) -> int | None:
        """The offset of an address in the kernel."""
        return offset_of(self.kernel, address)

    def with_kernel(self, kernel: bytes) -> bytes:
        """The image with another kernel of the same size."""
        packed = call(*PACK, data=kernel, what=f"packing {self.what}")
        rest = self.end - self.start - len(packed) - len(SKIPPED) - 4
        if not 0 <= rest <= len(kernel) // 512:
            raise Fail(f"{self.what}: packed by the zstd of this host, the kernel with the "
                       f"certificate is {abs(rest)} bytes too {'long' if rest < 0 else 'short'} "
                       f"for its place: {AGAIN} on this host")
        data = b"".join((self.data[:self.start], packed, SKIPPED, struct.pack("<I", rest),
                         bytes(rest), self.data[self.end:-4]))
        return data + struct.pack("<I", crc(data))


class FlatImage:
    """The Image of arm64 without an EFI signature: the kernel, from its symbol _text on."""

    def __init__(self, data: bytes) -> None:
        self.kernel = without_checksum(data)

    def offset(self, address: int, symbols: dict[str, int]) -> int | None:
        """The offset of an address in the kernel."""
        offset = address - symbols.get(FIRST, address + 1)
        return offset if 0 <= offset < len(self.kernel) else None

    def with_kernel(self, kernel: bytes) -> bytes:
        """The image with another kernel of the same size."""
        return kernel


def offset_of(kernel: bytes, address: int) -> int | None:
    """The offset of an address in a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", kernel, 0x28)
    size, count = struct.unpack_from("<HH", kernel, 0x3a)
    for number in range(1, count):
        kind, _, start, offset, length = struct.unpack_from("<4xIQQQQ", kernel,
                                                            table + number * size)
        # SHT_PROGBITS; some others have addresses that count from 0.
        if kind == 1 and start and start <= address < start + length:
            return int(address - start + offset)
    return None


def insert(vmlinuz: bytes, system_map: str, room: int, der: bytes, what: str) -> bytes:
    """The image with the certificate in place of the noise, or of another certificate."""
    arm64 = vmlinuz[ARM64_PLACE:ARM64_PLACE + len(ARM64)] == ARM64
    image: FlatImage | Image = FlatImage(vmlinuz) if arm64 else Image(vmlinuz, what)
    symbols = {name: int(address, 16) for address, name in re.findall(
        rf"(?m)^([0-9a-f]+) \w ({FIRST}|{CERT}|{USED}|{LIST})$", system_map)}
    places = []
    for name in (CERT, USED, LIST):
        place = image.offset(symbols[name], symbols) if name in symbols else None
        if place is None:
            raise Fail(f"{what} has no {name} where System.map says: {AGAIN}")
        places.append(place)
    cert, used, size = places
    kernel = bytearray(image.kernel)
    before, = struct.unpack_from("<i", kernel, used)
    total, = struct.unpack_from("<Q", kernel, size)
    if not 0 <= before <= min(room, total) or len(der) > room:
        raise Fail(f"{what} does not fit its System.map: {AGAIN}")
    kernel[cert:cert + room] = der.ljust(room, b"\0")
    struct.pack_into("<i", kernel, used, len(der))
    struct.pack_into("<Q", kernel, size, total - before + len(der))
    return image.with_kernel(bytes(kernel))
