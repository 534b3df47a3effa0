#pragma once
/// How the threads of this program wait for each other.

namespace narrow::command {

/// Threads spin a little and then sleep. OpenMP's runtime spins for milliseconds by default: where other programs want the same cores, that
/// takes the time from the thread that is waited for (five times slower was seen), and gains nothing where they do not. The runtime reads
/// its settings when it is loaded, so the program starts itself once more with them. What the user set stays.
void wait_politely(char** argv);

}  // namespace narrow::command
