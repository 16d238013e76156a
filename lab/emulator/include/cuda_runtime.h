// CUDA's words for a host compiler: nvcc includes this file at the head of each .cu file, and so
// does the emulator.
#pragma once
#include <assert.h>
#include <limits.h>
#include <stdio.h>

#include "cuda_runtime_api.h"
#include "emulator/atomics.h"
#include "emulator/functions.h"
#include "emulator/launch.h"
#include "emulator/warp.h"
