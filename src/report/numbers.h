#pragma once
/// Numbers as people read them.

#include <cstdint>
#include <string>

namespace narrow::report {

/// "512 B", "1.50 KiB", "24.0 MiB": powers of 1024, three digits.
std::string bytes_text(std::uint64_t bytes);
/// "412 MB/s", "1.25 GB/s": powers of 1000, three digits, as memory and disk makers count.
std::string rate_text(double bytes_per_second);
/// "0.42 s", "12.3 s", "3:07", "1:02:03".
std::string duration_text(double seconds);
/// "12,587,904".
std::string count_text(std::int64_t count);
/// Up to four significant digits: "0.02131", "-1.5", "3.403e+38", "inf", "nan".
std::string value_text(double value);
/// All digits that tell the number from its neighbours in fp32.
std::string exact_text(double value);
/// The value, or 2^k where it is a power of two too small or too large to be read as digits.
std::string power_text(double value);
/// "42.13 dB"; "exact" for an infinite ratio.
std::string decibel_text(double decibels);
/// "0.13 %", "100 %".
std::string percent_text(double share);

}  // namespace narrow::report
