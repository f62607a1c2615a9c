"""KERNEL_FLAG=-march=x86-64-v3 compiles the kernels for another processor than this one: one
without AVX-512, whose code is then tested too."""

import os

if flag := os.environ.get("KERNEL_FLAG"):
    from viz_engine.engine.kernels import build

    build.FLAGS = (flag,)
