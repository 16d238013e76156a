// Plain C++, so that tests can compile the plan of a launch without a GPU.
#pragma once

#ifndef __CUDACC__
#define __host__
#define __device__
#endif

template <typename X, typename Y>
__host__ __device__ constexpr auto divide_up(X x, Y y) {
  return (x + y - 1) / y;
}
