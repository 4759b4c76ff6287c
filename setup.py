"""Builds the C++ extension `optimized._core` from csrc/. Everything else about the package is in pyproject.toml.

Knows nothing about torch, CUDA or kernels: the core speaks NumPy only.
"""

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

ROOT = Path(__file__).parent
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").glob("*.cpp"))
HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").glob("*.hpp"))

ParallelCompile("NPY_NUM_BUILD_JOBS", default=2).install()

setup(
    ext_modules=[
        Pybind11Extension(
            "optimized._core",
            SOURCES,
            depends=HEADERS,
            include_dirs=["csrc"],
            cxx_std=20,
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-Werror=return-type"],
        )
    ],
    cmdclass={"build_ext": build_ext},
)
