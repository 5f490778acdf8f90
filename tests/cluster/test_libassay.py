# SPDX-License-Identifier: Apache-2.0
"""libassay as other programs meet it: what the shared library shows, and programs built against an installed one."""
import os
import re
import shutil
import subprocess

import pytest

from harness import BIN, Cluster

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
BUILD = os.path.dirname(os.path.abspath(BIN))
LIBRARY = os.path.join(BUILD, "lib", "libassay.so")

PROGRAM = r"""
#include <assay.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const assay_shape_t shape = {2, 2, 1, 16, 16, 2};
    assay_config_t config = {.scheduler = argv[argc - 1]};
    assay_t *assay;
    if (assay_open(&config, &assay) != ASSAY_OK) {
        puts(assay_last_error());
        return 1;
    }
    uint8_t fingerprint[32] = {1}, namespace_key[32], key[32], block[2048], back[2048];
    int32_t tokens[16] = {1, 2, 3};
    uint32_t hit = 0;
    memset(block, 0x5a, sizeof(block));
    assay_namespace(fingerprint, &shape, "program", NULL, namespace_key);
    assay_chain(namespace_key, tokens, 16, 16, key, 1);
    int put = assay_put(assay, &shape, namespace_key, key, 0, block);
    int get = assay_get(assay, &shape, key, 1, back, &hit);
    assay_close(assay);
    printf("%s %d %d\n", assay_result_name(put), get, memcmp(block, back, sizeof(block)));
    return 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C)
find_package(assay 0.1 REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE assay::assay)
"""


def declared():
    with open(os.path.join(ROOT, "client", "assay.h"), encoding="utf-8") as handle:
        text = re.sub(r"//[^\n]*", "", handle.read())
    return set(re.findall(r"\b(assay_\w+)\((?=[^;{}]*\);)", text))


def shown():
    listed = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", LIBRARY],
                            capture_output=True, text=True, check=True).stdout.split("\n")
    return {line.split()[-1] for line in listed if line and " A " not in line}


def test_the_library_shows_what_the_header_declares_and_nothing_else():
    names = declared()
    assert "assay_open" in names and len(names) > 20
    assert shown() == {f"{name}@@ASSAY_1" for name in names}


def test_the_library_has_a_versioned_name():
    listed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "[libassay.so.1]" in listed


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    where = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", where, "--component", "libassay"], check=True,
                   capture_output=True)
    (where / "program.c").write_text(PROGRAM)
    return where


def test_all_that_is_installed_is_programs_and_library(tmp_path):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path], check=True, capture_output=True)
    programs = {"assay", "assay-gpuworker", "assay-kvstore", "assay-scheduler"}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    rest = found - {f"bin/{name}" for name in programs} - {"include/assay.h"}
    assert len(found) == len(rest) + len(programs) + 1
    assert {re.sub("-[a-z]+(?=.cmake$)", "", path.split("/", 1)[1]) for path in rest if path.startswith("lib")} == {
        "libassay.so", "libassay.so.1", "libassay.so.1.0.0", "pkgconfig/assay.pc", "cmake/assay/assayConfig.cmake",
        "cmake/assay/assayConfigVersion.cmake", "cmake/assay/assayTargets.cmake"}
    assert all(path.startswith("lib") for path in rest)
    for name in sorted(programs):
        done = subprocess.run([tmp_path / "bin" / name, "--version"], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 and re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", done.stdout), done


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=0, store_options=["--ram=32MiB"]) as cluster:
        yield cluster.scheduler.address["rpc"]


def check(program, scheduler, prefix):
    library = next(prefix.rglob("libassay.so")).parent
    done = subprocess.run([program, scheduler], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    assert done.stdout.split()[0] in ("ok", "exists"), done.stdout + done.stderr
    assert done.stdout.split()[1:] == ["0", "0"]


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="no pkg-config")
def test_a_program_is_built_with_pkg_config(prefix, scheduler):
    found = next(prefix.rglob("assay.pc")).parent
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "assay"], capture_output=True, text=True, check=True,
                           env={**os.environ, "PKG_CONFIG_PATH": str(found)}).stdout.split()
    program = prefix / "by-pkg-config"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", prefix / "program.c", "-o", program, *flags], check=True)
    check(program, scheduler, prefix)


def test_a_program_is_built_with_find_package(prefix, scheduler):
    (prefix / "CMakeLists.txt").write_text(CMAKE)
    subprocess.run(["cmake", "-S", prefix, "-B", prefix / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], check=True,
                   capture_output=True)
    subprocess.run(["cmake", "--build", prefix / "build"], check=True, capture_output=True)
    check(prefix / "build" / "program", scheduler, prefix)


def test_a_program_in_cpp_takes_the_header(prefix):
    source = prefix / "header.cpp"
    source.write_text("#include <assay.h>\nint main() { assay_request_t r{}; return r.kind; }\n")
    subprocess.run(["c++", "-Wall", "-Werror", "-fsyntax-only", f"-I{prefix / 'include'}", source], check=True)
