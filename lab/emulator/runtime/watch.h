// The check before each access: is it inside of something, was that written, does it race?
#pragma once
#include "memory.h"

namespace emulator {

// Watches and counts an access of the current thread. Ends the thread if it is not allowed.
void on_access(const Access& access, const void* pc);
void on_host_access(const Access& access, const void* pc);  // of a launcher, to a tensor
void check_arrival(const Copy& copy);                       // a copy writes its bytes
void settle();  // did the last write that raced change anything? Known when the thread has written

}  // namespace emulator
