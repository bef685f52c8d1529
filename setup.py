"""Build the compiled twins where a compiler is found, and go on without them where it is not.

A machine without gcc gets a working, slower package. SKYLARK_REQUIRE_COMPILED=1 turns a failed
build into an error: continuous integration and benchmarks set it.
"""

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

_BUILD_FAILURES = (CCompilerError, ExecError, PlatformError, OSError)
_DIRECTIVES = {"language_level": 3, "embedsignature": True}


class OptionalBuildExt(build_ext):
    """Drops the extensions that do not compile, so that an editable install still works."""

    def build_extensions(self) -> None:
        built = []
        with ThreadPoolExecutor(os.cpu_count()) as compilers:
            builds = [compilers.submit(self.build_extension, one) for one in self.extensions]
        for extension, build in zip(self.extensions, builds, strict=True):
            try:
                build.result()
                built.append(extension)
            except _BUILD_FAILURES as error:
                if os.environ.get("SKYLARK_REQUIRE_COMPILED"):
                    raise
                self.warn(f"not compiled, the pure twin will serve: {extension.name}: {error}")
        self.extensions[:] = built


def _extensions() -> list[Extension]:
    if os.environ.get("SKYLARK_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    sources = sorted(pathlib.Path("src").rglob("_*.pyx"))
    modules = [
        Extension(
            ".".join(source.relative_to("src").with_suffix("").parts),
            [source.as_posix()],
            include_dirs=["src/skylark/protocol"],
            extra_compile_args=["-O3", "-fno-plt"],
        )
        for source in sources
    ]
    return cythonize(modules, compiler_directives=_DIRECTIVES, build_dir="build/cython")


setup(ext_modules=_extensions(), cmdclass={"build_ext": OptionalBuildExt})
