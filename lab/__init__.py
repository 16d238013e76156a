"""The workbench builds add2, times it, trains with it and examines the machine. The operator does not use it, and it is
not shipped. Imports run one way: programs, lesson or train, bench, then cli, files, build and toolchain. Start reading
at build.py, bench/clock.py or train/loop.py. (Without this file another package called lab would hide this one.)"""
