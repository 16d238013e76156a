# nvcc where CMake does not look for it: in CUDA_HOME, among the packages of torch's Python, or in /usr/local/cuda.
if(DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
else()
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME "${TORCH_DIR}/../nvidia/cu13" PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
endif()

# nvcc 13.0 of PyPI tells the linker to look in lib64, but its libraries are in lib; later releases agree with
# themselves. CMake's check of the compiler then misses -lcudadevrt and -lcudart_static.
get_filename_component(lib "${CMAKE_CUDA_COMPILER}/../../lib" ABSOLUTE)
if(EXISTS "${lib}/libcudart_static.a" AND NOT EXISTS "${lib}64")
  set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -L\"${lib}\"")
endif()
