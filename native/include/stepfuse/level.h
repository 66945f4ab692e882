// Which levels this processor and this build can run, and the choice among them.
#pragma once

#include "stepfuse/kernels.h"

namespace stepfuse {

// True when the processor and the operating system (saved registers) support the level.
bool level_supported(Level level);
// The best supported level that is compiled in.
Level level_best();
// The table of a level; null when the level is not compiled in or not supported here.
const KernelTable* level_table(Level level);
const char* level_name(Level level);

}  // namespace stepfuse
