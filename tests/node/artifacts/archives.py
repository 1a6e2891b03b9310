"""Archives that take long to unpack."""

import tarfile
import zlib

MB = 1 << 20


def build_endless_archive() -> bytes:
    """Return a compressed tar archive of 64 GB in 64 MB: the file `in/x`, then the file `out` with zeros."""
    small, large = tarfile.TarInfo("in/x"), tarfile.TarInfo("out")
    large.size = 64 << 30
    block = zlib.compressobj(wbits=-15)
    zeros = block.compress(bytes(16 * MB)) + block.flush(zlib.Z_FULL_FLUSH)
    start = zlib.compressobj(wbits=31)
    headers = small.tobuf(tarfile.GNU_FORMAT) + large.tobuf(tarfile.GNU_FORMAT)
    return start.compress(headers) + start.flush(zlib.Z_FULL_FLUSH) + zeros * (large.size // (16 * MB))
