// What a run hands to Python.
#pragma once

namespace emulator {

void begin_counts();  // of a launch
void end_counts();

}  // namespace emulator
