// Which accesses surely came before others: by barriers, by __syncwarp, by a fence and a flag.
#pragma once
#include "memory.h"

namespace emulator {

bool is_before(const Touch& touch);     // what the current thread does now
bool is_same_warp(const Touch& touch);  // as the current thread
bool may_meet(const Touch& touch, const Access& access, const Region& region);

// __syncwarp: what each of these lanes knows of the others, all of them know now.
void order_lanes(Thread* lanes, unsigned mask);
void on_fence(bool is_device);
void on_release(uintptr_t address);  // an atomic or volatile store
void on_acquire(uintptr_t address);  // an atomic or volatile load
void forget_releases();

void note_block(uint32_t time);    // one starts
uint64_t block_at(uint32_t time);  // number of the block that ran then

}  // namespace emulator
