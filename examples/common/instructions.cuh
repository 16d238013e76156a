// Instructions of PTX by subject: a small function for each, whose comment begins with the
// instruction's name. Where CUDA 13.0 has a function that compiles to the same code, it is called;
// where it has one that does not, the comment names it. Otherwise it has none.
#pragma once
#include "common/barriers.cuh"
#include "common/copies.cuh"
#include "common/mma.cuh"
#include "common/registers.cuh"
#include "common/wgmma.cuh"
