"""Every number to text, said once: counts, bytes, times, rates, shares, prices.

The same in both languages: digits in threes by narrow spaces, binary units of bytes, SI of the
rest. Where a number may be missing, None is `-`. It knows nothing of what the numbers mean.

Try it: `python -c "from viz_engine.numbers import mib; print(mib(2**31))"`
"""

NONE = "-"
BINARY = ("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


# ---- counts --------------------------------------------------------------------------------------


def grouped(number: float) -> str:
    """A count with narrow spaces: 131 072."""
    return f"{number:,.0f}".replace(",", "\u202f")


def three(number: float) -> str:
    """A number with three significant digits and never an exponent: 0.482, 35.6, 1 023."""
    return grouped(number) if number >= 999.5 else f"{number:.3g}"


def short_count(number: float) -> str:
    """A count as an axis shows it: whole binary thousands as 4K, 128K, 1M, others as grouped."""
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if number >= size and number % size == 0:
            return f"{number // size:.0f}{unit}"
    return grouped(number)


def billions(num: int) -> str:
    """Parameters: 8.03 B, 135 M."""
    return f"{three(num / 1e9)} B" if num >= 1e9 else f"{three(num / 1e6)} M"


def scientific(number: float) -> str:
    """A number of at least 1 as 1.06·10⁸."""
    mantissa, power = f"{number:.2e}".split("e")
    return f"{mantissa}·10{str(int(power)).translate(SUPERSCRIPTS)}"


# ---- bytes ---------------------------------------------------------------------------------------


def mib(num_bytes: float | None) -> str:
    """A size in the binary unit that keeps it short: 13.4 MiB, 1.25 GiB, 2.10 TiB, 23 040 bytes
    under 100 KiB."""
    if num_bytes is None:
        return NONE
    if num_bytes < 100 * 1024:
        return f"{grouped(num_bytes)} B"
    for unit, size in (("KiB", 1024), ("MiB", 1024**2)):
        if num_bytes < 1000 * size:
            return f"{num_bytes / size:.1f} {unit}"
    for unit, size in (("GiB", 1024**3), ("TiB", 1024**4)):
        if num_bytes < 1000 * size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{three(num_bytes / 1024**5)} PiB"


def bytes_text(num_bytes: float) -> str:
    """A size without needless digits, as a tick or a bar shows it: 512 KiB, 1.5 GiB, 1 023 GiB."""
    for unit, size in BINARY:
        if num_bytes >= size:
            return f"{three(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


# ---- times, rates, shares, prices ----------------------------------------------------------------


def ms(seconds: float | None) -> str:
    """Milliseconds with three digits or so."""
    if seconds is None:
        return NONE
    value = seconds * 1e3
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return grouped(value) if digits == 0 else f"{value:.{digits}f}"


def time_text(seconds: float) -> str:
    """A duration in the unit that keeps it short."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for unit, size, most in (("s", 1, 999.5), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{three(seconds / size)} {unit}"
    return f"{three(seconds / 86400)} d"


def giga(value: float | None) -> str:
    """A rate in giga-units."""
    return NONE if value is None else f"{value / 1e9:.1f}" if value < 1e12 else f"{value / 1e9:.0f}"


def flops_text(flops: float) -> str:
    """Work in the unit that keeps it short."""
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def share(value: float | None) -> str:
    """A share as a percentage, `<1%` where it would round to none."""
    return NONE if value is None else "<1%" if 0 < value < 0.005 else f"{value:.0%}"


def amount(value: float, unit: str) -> str:
    """A price or a number of tokens with its unit."""
    return f"{grouped(value) if value >= 1000 else f'{value:.4g}'} {unit}"


def in_unit(value: float, unit: str) -> str:
    """A number in a unit that goes by name: `bytes`, `times`, or what is counted."""
    if unit == "bytes":
        return mib(value)
    if unit == "times":
        return f"{value:.2f} ×"
    return grouped(value)
