#pragma once
/// Memory that goes back to the system when it is freed.

namespace narrow::command {

/// glibc keeps what was freed for later calls, more the longer a program runs, and each thread keeps its own. After this call blocks of
/// 64 KiB and more are the system's again at once, so that peak memory is what is in use at one time, for any length of a run. Fresh
/// memory costs a page fault per 4 KiB: for long passes whose memory must be bounded, not for quick ones.
void return_freed_memory();

}  // namespace narrow::command
