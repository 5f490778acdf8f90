# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of assay-client (PEP 517, PEP 660), with the standard library and CMake alone.

Where libassay comes from, the first of:
    ASSAY_LIBRARY   a libassay.so that was built already; it goes into the wheel
    the repository  that this folder is in: CMake compiles it, and it goes into the wheel
    pkg-config      one that is installed on this machine; the package looks for it when it is imported
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "libassay.so.1"


def _project(name):
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as handle:
        return re.search(rf'^{name} = "(.*)"$', handle.read(), re.M).group(1)


VERSION = _project("version")
DISTRIBUTION = "assay_client"
METADATA = f"""Metadata-Version: 2.1
Name: {_project("name")}
Version: {VERSION}
Summary: {_project("description")}
License: Apache-2.0
Requires-Python: {_project("requires-python")}
"""


def _run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"assay-client: this failed: {' '.join(command)}\n{done.stdout[-4000:]}\n"
                         "install what libassay is built with (./dev setup), or name a library that was built: "
                         "ASSAY_LIBRARY=.../libassay.so pip install ...")


def _compile(folder):
    for tool in ("cmake", "pkg-config"):
        if not shutil.which(tool):
            raise SystemExit(f"assay-client: {tool} is needed to compile libassay, and is not here: install it, or name a "
                             "library that was built: ASSAY_LIBRARY=.../libassay.so pip install ...")
    _run(["cmake", "-S", ROOT, "-B", folder, "-DASSAY_TESTS=OFF", *(["-G", "Ninja"] if shutil.which("ninja") else [])])
    _run(["cmake", "--build", folder, "--target", "assay_shared", "--parallel", str(os.cpu_count() or 1)])
    return os.path.join(folder, "lib", LIBRARY)


def _library(folder):
    """The file for the wheel; None: one is installed."""
    given = os.environ.get("ASSAY_LIBRARY")
    if given:
        if not os.path.isfile(given):
            raise SystemExit(f"assay-client: ASSAY_LIBRARY={given}: there is no such file")
        return os.path.realpath(given)
    if os.path.isfile(os.path.join(ROOT, "client", "assay.map")):
        return _compile(folder)
    if shutil.which("pkg-config") and subprocess.run(["pkg-config", "--exists", "assay"]).returncode == 0:
        return None
    raise SystemExit("assay-client: no libassay: install it (cmake --install build --component libassay), or name one: "
                     "ASSAY_LIBRARY=.../libassay.so pip install ...")


def _platform():
    # Of this machine alone: the library stands on shared libraries of its distribution.
    return re.sub(r"[^A-Za-z0-9]", "_", sysconfig.get_platform())


class _Wheel:
    """A wheel that is being written."""

    def __init__(self, folder, tag):
        self.name = f"{DISTRIBUTION}-{VERSION}-{tag}.whl"
        self.tag, self.records = tag, []
        self.zip = zipfile.ZipFile(os.path.join(folder, self.name), "w", zipfile.ZIP_DEFLATED)

    def add(self, name, content, mode=0o644):
        info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same sources give the same wheel
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(content)}")
        self.zip.writestr(info, content)

    def close(self):
        folder = f"{DISTRIBUTION}-{VERSION}.dist-info"
        self.add(f"{folder}/METADATA", METADATA.encode())
        self.add(f"{folder}/WHEEL", f"Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: false\nTag: {self.tag}\n".encode())
        self.records.append(f"{folder}/RECORD,,")
        self.zip.writestr(f"{folder}/RECORD", "\n".join(self.records) + "\n")
        self.zip.close()
        return self.name


def _read(*path):
    with open(os.path.join(*path), "rb") as handle:
        return handle.read()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        library = _library(folder)
        wheel = _Wheel(wheel_directory, f"py3-none-{_platform()}")
        for name in sorted(os.listdir(os.path.join(HERE, "assay"))):
            if name.endswith((".py", ".typed")):
                wheel.add(f"assay/{name}", _read(HERE, "assay", name))
        if library:
            wheel.add(f"assay/{LIBRARY}", _read(library), 0o755)
        return wheel.close()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The package is imported from here; the library comes from ASSAY_LIBRARY or the repository's build folder."""
    wheel = _Wheel(wheel_directory, f"py3-none-{_platform()}")
    wheel.add("assay_client.pth", (HERE + "\n").encode())
    return wheel.close()


def build_sdist(sdist_directory, config_settings=None):
    name = f"{DISTRIBUTION}-{VERSION}"
    with tarfile.open(os.path.join(sdist_directory, name + ".tar.gz"), "w:gz") as tar:
        for file in ("pyproject.toml", "backend.py", "README.md"):
            tar.add(os.path.join(HERE, file), f"{name}/{file}")
        for file in sorted(os.listdir(os.path.join(HERE, "assay"))):
            if file.endswith((".py", ".typed")):
                tar.add(os.path.join(HERE, "assay", file), f"{name}/assay/{file}")
    return name + ".tar.gz"
