/// In the place of peers.cc in a static command: what it would open needs the C library that it was built with.

#include "peers.h"

namespace narrow::command {

std::vector<Peer> find_peers(int) { return {}; }

}  // namespace narrow::command
