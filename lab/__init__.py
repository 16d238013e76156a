"""The workbench builds add2, times it, trains with it and examines the machine. The operator does not use it, and it is
not shipped. The lessons' operators take only toolchain.py, for their builds. Imports run one way: programs, lesson or
train, bench, then cli, files, build and toolchain. Start reading at build.py, bench/clock.py or train/loop.py. (Without
this file another package called lab would hide this one.)"""

import logging

# torch.utils.cpp_extension warns as it is imported where there is nvcc and no GPU. Here that is nothing unusual.
logging.getLogger("torch.utils.cpp_extension").addFilter(
    lambda record: "No CUDA runtime is found" not in record.getMessage()
)
