// The kernels for float16.
#include "starts.cuh"

template const char* four_bit::start<__half>(const Int4Call&, const Plan&, cudaStream_t);
