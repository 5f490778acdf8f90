// SPDX-License-Identifier: Apache-2.0
// The CUDA twins of the operations of kernels.h: the same bits, on device memory, in the order of a
// stream.
//
// A caller needs no CUDA header: streams and device pointers are void pointers and pointers to
// elements. Every launcher puts its work on `stream` (NULL is the default stream) and returns at
// once; AS_OK says that the work was accepted, and a fault of the device shows at
// krn_cuda_stream_wait. Nothing here allocates but krn_cuda_alloc; work space is the caller's, and
// a question of its own says how much.
//
// Unless said otherwise every pointer, also inside krn_weight_t, krn_rope_t, krn_partials_t and
// krn_attention_args_t, points to device memory, aligned to 16 bytes; the structs themselves are
// read before the call returns. Shapes, layouts and formulas are those of kernels.h.
//
// Errors: AS_ERR_INVALID for a shape that kernels.h does not allow, AS_ERR_LIMIT for one larger
// than a grid, AS_ERR_DEVICE (logged) when the driver refuses. Threads: any thread whose current
// device is the stream's (krn_cuda_device_use).
#ifndef KRN_CUDA_CUDA_H
#define KRN_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

// ---- Devices, memory and streams ----------------------------------------------------
typedef struct krn_cuda_device {
    char name[128];
    uint32_t capability; // 10 * major + minor: 80 is sm_80, the least that is supported
    uint32_t multiprocessors;
    size_t memory_bytes;
} krn_cuda_device_t;

// Whether device `index` can run these kernels, and what it is. AS_ERR_DEVICE (logged as
// information: a machine without a GPU is no fault) without a driver, without that device, or when
// it is older than sm_80.
as_status_t krn_cuda_available(uint32_t index, krn_cuda_device_t *device_p) AS_MUST_USE;
// Makes `index` the calling thread's device.
as_status_t krn_cuda_device_use(uint32_t index) AS_MUST_USE;

as_status_t krn_cuda_alloc(size_t bytes, void **memory_p) AS_MUST_USE; // AS_ERR_NO_MEMORY when full
void krn_cuda_free(void *memory);                                      // waits for the device
// Copies to and from host memory, in the stream's order. Truly asynchronous only when the host's
// memory is pinned; until the stream is done it must stay as it is.
as_status_t krn_cuda_copy_to(void *stream, void *device, const void *host,
                             size_t bytes) AS_MUST_USE;
as_status_t krn_cuda_copy_from(void *stream, void *host, const void *device,
                               size_t bytes) AS_MUST_USE;

as_status_t krn_cuda_stream_alloc(void **stream_p) AS_MUST_USE;
void krn_cuda_stream_free(void *stream);
// AS_OK when all work so far is done, AS_ERR_BUSY when not, AS_ERR_DEVICE when some of it failed.
as_status_t krn_cuda_stream_poll(void *stream) AS_MUST_USE;
// Polls until done or `timeout_ms` have passed (AS_ERR_DEADLINE). Blocks: for start-up and tests.
as_status_t krn_cuda_stream_wait(void *stream, uint32_t timeout_ms) AS_MUST_USE;

// ---- Operations of krn_ops_t --------------------------------------------------------
as_status_t krn_cuda_matmul(void *stream, const krn_weight_t *w, const float *x, uint32_t rows,
                            float *out) AS_MUST_USE;
// Rows `ids` of w as f32, out[count][k]: krn_weight_row of many. An id not below w->n gives zeros.
as_status_t krn_cuda_weight_rows(void *stream, const krn_weight_t *w, const uint32_t *ids,
                                 uint32_t count, float *out) AS_MUST_USE;

typedef struct krn_cuda_rmsnorm_args {
    const float *x, *weight;
    uint32_t rows, n;
    float eps;
    float *out; // may be x
} krn_cuda_rmsnorm_args_t;
as_status_t krn_cuda_rmsnorm(void *stream, const krn_cuda_rmsnorm_args_t *args) AS_MUST_USE;

typedef struct krn_cuda_rope_args {
    float *x; // [rows][heads][dim], in place
    uint32_t rows, heads, dim;
    krn_rope_t rope;
    const int32_t *positions; // [rows]; a row whose position is not in the table is left as it is
} krn_cuda_rope_args_t;
as_status_t krn_cuda_rope(void *stream, const krn_cuda_rope_args_t *args) AS_MUST_USE;

as_status_t krn_cuda_swiglu(void *stream, const float *gate, const float *up, size_t count,
                            float *out) AS_MUST_USE;
as_status_t krn_cuda_add(void *stream, float *a, const float *b, size_t count) AS_MUST_USE;
as_status_t krn_cuda_f32_to_f16(void *stream, const float *in, size_t count,
                                krn_f16 *out) AS_MUST_USE;
as_status_t krn_cuda_f16_to_f32(void *stream, const krn_f16 *in, size_t count,
                                float *out) AS_MUST_USE;

// ---- Attention over pages -----------------------------------------------------------
as_status_t krn_cuda_partials_clear(void *stream, const krn_partials_t *partials, uint32_t count,
                                    uint32_t dim) AS_MUST_USE;
// args->pages is an array on the device, of pages whose k and v are on the device. All pages lie in
// one run of KRN_RUN_PAGES; io is folded on the left.
as_status_t krn_cuda_attention_run(void *stream, const krn_attention_args_t *args,
                                   const krn_partials_t *io) AS_MUST_USE;
as_status_t krn_cuda_merge(void *stream, const krn_partials_t *a, const krn_partials_t *b,
                           uint32_t count, uint32_t dim) AS_MUST_USE;
as_status_t krn_cuda_normalise(void *stream, const krn_partials_t *partials, uint32_t count,
                               uint32_t dim, float *out) AS_MUST_USE;

// The runs of `count` pages (host memory): run i is pages [starts[i], starts[i + 1]). `starts`
// (host memory) has room for count + 1. Returns the number of runs.
uint32_t krn_cuda_runs(const krn_page_t *pages, uint32_t count, uint32_t *starts);

typedef struct krn_cuda_attention_args {
    krn_attention_args_t args;
    const uint32_t *run_starts; // [run_count + 1], as krn_cuda_runs gives them
    uint32_t run_count;
    float *out;      // [rows][q_heads][dim], normalised
    float *lse;      // [rows][q_heads], or NULL
    void *workspace; // krn_cuda_attention_workspace_bytes; NULL when that is 0
} krn_cuda_attention_args_t;

// Twin of krn_attention: any number of pages.
as_status_t krn_cuda_attention(void *stream,
                               const krn_cuda_attention_args_t *attention) AS_MUST_USE;
// Depends on the shape alone, never on the device.
size_t krn_cuda_attention_workspace_bytes(const krn_attention_args_t *args, uint32_t run_count);

#ifdef __cplusplus
}
#endif

#endif
