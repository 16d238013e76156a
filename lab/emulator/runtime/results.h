// What a run hands to Python.
#pragma once

namespace emulator {

void keep_counts();  // of a launch that has ended

}  // namespace emulator
