// Operations of a warp.
#pragma once
#include "machine.h"

namespace emulator {

uint64_t join_warp(WarpRequest request, const void* pc);
bool try_warp(Thread& waiting);  // does what a thread waits for, if all lanes wait that must
bool try_active_mask(Thread& waiting);
unsigned find_partners(const Thread& waiting);  // lanes that wait for the same

// Whether a thread that has ended passed by a place where others wait, and did not end before it.
bool has_passed(const Thread& thread, const void* pc);

// matrix.cpp: what a warp computes together with its lanes' registers.
void multiply_matrices(const WarpRequest* const (&lanes)[kLanes]);
void ldmatrix(const WarpRequest* const (&lanes)[kLanes]);
void transpose_matrix(const WarpRequest* const (&lanes)[kLanes]);

}  // namespace emulator
