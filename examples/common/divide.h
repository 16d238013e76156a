// For kernels, launchers, and the plan of a launch, which tests compile as plain C++.
#pragma once

// The quotient, rounded up. (cuda::ceil_div comes with the toolkit, and this is also compiled where
// there is none.)
template <typename X, typename Y>
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr auto divide_up(X x, Y y) {
  return (x + y - 1) / y;
}
