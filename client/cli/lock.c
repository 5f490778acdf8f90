// SPDX-License-Identifier: Apache-2.0
// One cluster for each run directory: <run dir>/lock, of which `assay up` holds one byte for as long
// as it lives and another while it starts.
//
// The kernel drops both when the process ends, however it ends; no pid is trusted, which another
// process may have by now. Locks are of the open file: a child that exec closes it for does not keep
// them, and who only looks (is_held) takes none, so that looking never makes a start fail.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"

#define BYTE_ALIVE    0
#define BYTE_STARTING 1
#define GRACE_MS      2000   // an `assay up &` of the line before may not have come this far yet
#define START_MS      610000 // its own limit, and a little
#define POLL_MS       50

static int lock_fd = -1; // of `assay up`, until it ends

static void lock_path(const char *run_dir, char path[CLI_PATH_BYTES])
{
    snprintf(path, CLI_PATH_BYTES, "%.950s/lock", run_dir);
}

static int set_byte(int fd, int byte, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &range);
}

static bool is_held(const char *run_dir, int byte)
{
    char path[CLI_PATH_BYTES];
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    lock_path(run_dir, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool held = fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
    close(fd);
    return held;
}

static void complain_held(const char *run_dir)
{
    cli_cluster_t cluster;
    if (cli_cluster_read(run_dir, &cluster)) {
        cli_complain(
            "a cluster is running in %s already (pid %d): end it, or choose another --run-dir",
            run_dir, (int)cluster.pid);
    } else {
        cli_complain("a cluster is being %s in %s already: wait, or choose another --run-dir",
                     is_held(run_dir, BYTE_STARTING) ? "started" : "ended", run_dir);
    }
}

bool cli_lock(const char *run_dir)
{
    char path[CLI_PATH_BYTES];
    lock_path(run_dir, path);
    lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_fd >= 0 && set_byte(lock_fd, BYTE_ALIVE, F_WRLCK) == 0) {
        if (set_byte(lock_fd, BYTE_STARTING, F_WRLCK) == 0) {
            return true;
        }
    }
    if (lock_fd >= 0 && (errno == EAGAIN || errno == EACCES)) {
        complain_held(run_dir);
    } else {
        cli_complain("cannot lock %s: %s", path, strerror(errno));
    }
    return false;
}

void cli_lock_started(void)
{
    set_byte(lock_fd, BYTE_STARTING, F_UNLCK);
}

bool cli_is_alive(const char *run_dir)
{
    return is_held(run_dir, BYTE_ALIVE);
}

bool cli_cluster_await(const char *run_dir, const char *elsewhere, cli_cluster_t *cluster)
{
    const struct timespec wait = {.tv_nsec = POLL_MS * 1000000};
    double begun_ms = cli_now_ms();
    bool told = false;
    for (;;) {
        double waited_ms = cli_now_ms() - begun_ms;
        // Asked before the file is read: a start that ends in between has written it.
        bool starting = is_held(run_dir, BYTE_STARTING);
        if (cli_cluster_read(run_dir, cluster)) {
            return true;
        }
        if (starting ? waited_ms > START_MS : told || waited_ms > GRACE_MS) {
            cli_complain("no cluster is running in %s: start one with `assay up --model FILE`, or "
                         "name one that was started otherwise: %s",
                         run_dir, elsewhere);
            return false;
        }
        if (starting && !told) {
            cli_complain("the cluster of %s is starting: waiting for it", run_dir);
            told = true;
        }
        nanosleep(&wait, NULL);
    }
}
