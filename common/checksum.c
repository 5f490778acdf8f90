// SPDX-License-Identifier: Apache-2.0
// CRC32C three ways: tables, the crc32 instruction in three streams, and folding by 512-bit
// carry-less products.
//
// Every byte that crosses the wire or the disk is checksummed, so this must run at the speed of
// memory, and the copy that fills a pool must cost one pass and not two.
//
// Notation. A polynomial is kept with its highest power in the lowest bit ("reflected"), as CRC32C
// demands. For words a, b of 64 bits, clmul(a, b) read as 128 reflected bits is a * b * x; for
// words of 32 bits read as 64 bits likewise. power(n) is x^n mod P as a reflected 32-bit word. The
// crc32 instruction maps (crc, word) to (crc * x^64 + word * x^32) mod P, so crc32(0, w) reduces
// any 64-bit word. All constants are powers of x, computed once at load time from the polynomial:
// there is no table of unexplained numbers to trust.
#include "common/checksum.h"

#include <string.h>

#include "common/checksum_impl.h"

#define POLYNOMIAL 0x82f63b78u // x^32 + ... of CRC32C, reflected, without x^32

static uint32_t tables[8][256]; // slicing by 8: tables[k][b] is byte b followed by k zero bytes

// ---- Tables

static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        }
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        for (int k = 1; k < 8; k++) {
            uint32_t before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][before & 255];
        }
    }
}

static uint64_t load_le64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint32_t table_crc(uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word = load_le64(data) ^ crc;
        crc = tables[7][word & 255] ^ tables[6][word >> 8 & 255] ^ tables[5][word >> 16 & 255] ^
              tables[4][word >> 24 & 255] ^ tables[3][word >> 32 & 255] ^
              tables[2][word >> 40 & 255] ^ tables[1][word >> 48 & 255] ^ tables[0][word >> 56];
    }
    for (; bytes > 0; data++, bytes--) {
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
    }
    return ~crc;
}

static uint32_t table_copy(uint32_t crc, uint8_t *destination, const uint8_t *source, size_t bytes)
{
    // In pieces that stay in the first-level cache. The source is read once: it may be memory that
    // another process changes, and what is summed is to be what is kept.
    uint8_t piece[8192];
    while (bytes > 0) {
        size_t some = bytes < sizeof(piece) ? bytes : sizeof(piece);
        memcpy(piece, source, some);
        crc = table_crc(crc, piece, some);
        memcpy(destination, piece, some);
        destination += some;
        source += some;
        bytes -= some;
    }
    return crc;
}

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
#include <immintrin.h>

// ---- Constants

#define LONG_BYTES  2048u // one of three streams in a long round of the crc32 instruction
#define SHORT_BYTES 256u  // and in a short one

static uint32_t long_shift[2], short_shift[2]; // to move a crc by one and by two streams
static uint64_t fold_64[2], fold_128[2], fold_192[2],
    fold_256[2]; // to move 128 bits by that many bytes

static uint32_t power(uint64_t n)
{
    uint32_t value = 0x80000000u; // x^0
    for (; n > 0; n--) {
        value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
    }
    return value;
}

// (low * x^64 + high) * x^D = clmul(low, x^(D+63)) + clmul(high, x^(D-1)), each product bringing
// one x of its own.
static void set_fold(uint64_t fold[2], uint64_t bytes)
{
    fold[0] = (uint64_t)power(8 * bytes + 63) << 32;
    fold[1] = (uint64_t)power(8 * bytes - 1) << 32;
}

// crc32(0, clmul(a, b)) = a * b * x^33, so a shift by n bytes is a product with x^(8n-33).
static void set_shift(uint32_t shift[2], uint64_t bytes)
{
    shift[0] = power(8 * bytes - 33);
    shift[1] = power(16 * bytes - 33);
}

static void fill_constants(void)
{
    set_shift(long_shift, LONG_BYTES);
    set_shift(short_shift, SHORT_BYTES);
    set_fold(fold_64, 64);
    set_fold(fold_128, 128);
    set_fold(fold_192, 192);
    set_fold(fold_256, 256);
}

// ---- The crc32 instruction, three streams

#define TARGET_SSE    __attribute__((target("sse4.2,pclmul")))
#define TARGET_AVX512 __attribute__((target("sse4.2,pclmul,prfchw,avx512f,vpclmulqdq")))

static bool sse_supported(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static inline void store_word(uint8_t *destination, uint64_t word)
{
    if (destination) {
        memcpy(destination, &word, sizeof(word));
    }
}

// The short ends: at most a few hundred bytes. `destination` NULL: no copy.
TARGET_SSE static inline uint64_t sse_serial(uint64_t state, uint8_t *destination,
                                             const uint8_t *data, size_t bytes)
{
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word = load_le64(data);
        state = _mm_crc32_u64(state, word);
        store_word(destination, word);
        destination = destination ? destination + 8 : NULL;
    }
    for (; bytes > 0; data++, bytes--) {
        uint8_t byte = *data; // once, as above
        state = _mm_crc32_u8((uint32_t)state, byte);
        if (destination) {
            *destination++ = byte;
        }
    }
    return state;
}

TARGET_SSE static inline uint64_t shifted(uint64_t state, uint32_t shift)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)state), _mm_cvtsi32_si128((int)shift), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

// One round: three neighbouring streams of `stream_bytes`, whose sums do not wait for each other
// (the instruction takes one cycle to start and three to end).
TARGET_SSE static inline uint64_t sse_round(uint64_t state, const uint8_t *data,
                                            size_t stream_bytes, const uint32_t shift[2])
{
    uint64_t second = 0, third = 0;
    for (size_t line = 0; line < stream_bytes; line += 64) {
        // Three streams defeat the hardware's prefetch in part: ask for the next round's.
        __builtin_prefetch(data + 3 * stream_bytes + line, 0, 3);
        __builtin_prefetch(data + 4 * stream_bytes + line, 0, 3);
        __builtin_prefetch(data + 5 * stream_bytes + line, 0, 3);
        for (size_t i = line; i < line + 64; i += 8) {
            state = _mm_crc32_u64(state, load_le64(data + i));
            second = _mm_crc32_u64(second, load_le64(data + stream_bytes + i));
            third = _mm_crc32_u64(third, load_le64(data + 2 * stream_bytes + i));
        }
    }
    return shifted(state, shift[1]) ^ shifted(second, shift[0]) ^ third;
}

TARGET_SSE static uint32_t sse_crc(uint32_t crc, const uint8_t *data, size_t bytes)
{
    uint64_t state = (uint32_t)~crc;
    for (; bytes >= 3 * LONG_BYTES; data += 3 * LONG_BYTES, bytes -= 3 * LONG_BYTES) {
        state = sse_round(state, data, LONG_BYTES, long_shift);
    }
    for (; bytes >= 3 * SHORT_BYTES; data += 3 * SHORT_BYTES, bytes -= 3 * SHORT_BYTES) {
        state = sse_round(state, data, SHORT_BYTES, short_shift);
    }
    return ~(uint32_t)sse_serial(state, NULL, data, bytes);
}

// From this size on a copy goes past the caches: the lines of the destination are not read before
// they are overwritten, which makes a copy of cold memory 1.4 times as fast as memcpy.
#define STREAM_BYTES_MIN 16384u

static inline size_t bytes_to_line(const uint8_t *at)
{
    return (64 - (uintptr_t)at % 64) % 64;
}

// bytes: a multiple of 64; destination: at the start of a line.
static void sse_stream(uint8_t *destination, const uint8_t *source, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 16) {
        _mm_stream_si128((__m128i *)(void *)(destination + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(source + i)));
    }
}

static uint32_t sse_copy(uint32_t crc, uint8_t *destination, const uint8_t *source, size_t bytes)
{
    // The copy of a piece brings it into the first-level cache, where three streams then find it. The
    // source is read once, as above.
    _Alignas(64) uint8_t piece[3 * LONG_BYTES];
    const size_t piece_bytes = sizeof(piece);
    bool stream = bytes >= STREAM_BYTES_MIN;
    size_t some = stream ? bytes_to_line(destination) : 0;
    while (bytes > 0) {
        if (some == 0) {
            some = bytes < piece_bytes ? bytes : piece_bytes;
        }
        memcpy(piece, source, some);
        crc = sse_crc(crc, piece, some);
        if (stream && some == piece_bytes) {
            sse_stream(destination, piece, some);
        } else {
            memcpy(destination, piece, some);
        }
        destination += some;
        source += some;
        bytes -= some;
        some = 0;
    }
    if (stream) {
        _mm_sfence(); // streaming stores are ordered with nothing else
    }
    return crc;
}

// ---- Folding by 512-bit carry-less products

static bool avx512_supported(void)
{
    return sse_supported() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

TARGET_AVX512 static inline __m512i load_fold(const uint64_t fold[2])
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)fold[1], (int64_t)fold[0]));
}

// sum moved by the fold's distance, plus `next`; 0x96 is the exclusive or of three.
TARGET_AVX512 static inline __m512i folded(__m512i sum, __m512i fold, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(sum, fold, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(sum, fold, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

// Cold memory is read 20 to 40 % faster when asked for this far ahead than by the hardware's own
// prefetch (13 to 15 GB/s on one core). Asking beyond the end of a buffer is harmless.
#define AHEAD_BYTES 2048

TARGET_AVX512 static inline void ask_ahead(const uint8_t *source)
{
    for (size_t line = 0; line < 256; line += 64) {
        __builtin_prefetch(source + AHEAD_BYTES + line, 0, 3);
    }
}

// What happens to the bytes that are summed.
typedef enum keep { KEEP_NOTHING, KEEP_COPY, KEEP_STREAM } keep_t;

TARGET_AVX512 static inline __m512i take(keep_t keep, uint8_t *destination, const uint8_t *source)
{
    __m512i data = _mm512_loadu_si512(source);
    if (keep == KEEP_STREAM) {
        _mm512_stream_si512((void *)destination, data);
    } else if (keep == KEEP_COPY) {
        _mm512_storeu_si512(destination, data);
    }
    return data;
}

TARGET_AVX512 static inline uint64_t sum_lane(uint64_t state, __m128i lane)
{
    state = _mm_crc32_u64(state, (uint64_t)_mm_cvtsi128_si64(lane));
    return _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(lane, 1));
}

// Sums `bytes` bytes (a multiple of 64, at least 256) in four accumulators of 64 bytes.
TARGET_AVX512 static inline __attribute__((always_inline)) uint64_t
avx512_fold(uint64_t state, keep_t keep, uint8_t *destination, const uint8_t *source, size_t bytes)
{
#define AT(offset) take(keep, keep ? destination + (offset) : NULL, source + (offset))
    __m512i sum0 = _mm512_xor_si512(AT(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    __m512i sum1 = AT(64), sum2 = AT(128), sum3 = AT(192);
    const __m512i by_64 = load_fold(fold_64), by_256 = load_fold(fold_256);
    size_t done = 256;
    for (; done + 256 <= bytes; done += 256) {
        ask_ahead(source + done);
        sum0 = folded(sum0, by_256, AT(done));
        sum1 = folded(sum1, by_256, AT(done + 64));
        sum2 = folded(sum2, by_256, AT(done + 128));
        sum3 = folded(sum3, by_256, AT(done + 192));
    }
    __m512i sum = folded(sum0, load_fold(fold_192), sum3);
    sum = folded(sum1, load_fold(fold_128), sum);
    sum = folded(sum2, by_64, sum);
    for (; done < bytes; done += 64) {
        sum = folded(sum, by_64, AT(done));
    }
#undef AT
    // Not through an array on the stack: gcc 12 stores to it as aligned to 64 bytes, which the address
    // sanitizer's own stack is not.
    state = sum_lane(0, _mm512_extracti32x4_epi32(sum, 0));
    state = sum_lane(state, _mm512_extracti32x4_epi32(sum, 1));
    state = sum_lane(state, _mm512_extracti32x4_epi32(sum, 2));
    return sum_lane(state, _mm512_extracti32x4_epi32(sum, 3));
}

TARGET_AVX512 static uint32_t avx512_crc(uint32_t crc, const uint8_t *data, size_t bytes)
{
    uint64_t state = (uint32_t)~crc;
    if (bytes >= 256) {
        size_t whole = bytes / 64 * 64;
        state = avx512_fold(state, KEEP_NOTHING, NULL, data, whole);
        data += whole;
        bytes -= whole;
    }
    return ~(uint32_t)sse_serial(state, NULL, data, bytes);
}

TARGET_AVX512 static uint32_t avx512_copy(uint32_t crc, uint8_t *destination, const uint8_t *source,
                                          size_t bytes)
{
    uint64_t state = (uint32_t)~crc;
    bool stream = bytes >= STREAM_BYTES_MIN;
    if (stream) {
        size_t some = bytes_to_line(destination);
        state = sse_serial(state, destination, source, some);
        destination += some;
        source += some;
        bytes -= some;
    }
    if (bytes >= 256) {
        size_t whole = bytes / 64 * 64;
        state = stream ? avx512_fold(state, KEEP_STREAM, destination, source, whole)
                       : avx512_fold(state, KEEP_COPY, destination, source, whole);
        destination += whole;
        source += whole;
        bytes -= whole;
    }
    if (stream) {
        _mm_sfence(); // streaming stores are ordered with nothing else
    }
    return ~(uint32_t)sse_serial(state, destination, source, bytes);
}
#endif

// ---- Dispatch

const as_crc32c_impl_t as_crc32c_impls[] = {
    {"table", always, table_crc, table_copy},
#if defined(__x86_64__)
    {"sse4.2", sse_supported, sse_crc, sse_copy},
    {"avx512", avx512_supported, avx512_crc, avx512_copy},
#endif
};
const size_t as_crc32c_impl_count = sizeof(as_crc32c_impls) / sizeof(as_crc32c_impls[0]);

static const as_crc32c_impl_t *chosen = &as_crc32c_impls[0];

// Before main, so that no call pays for asking whether it has been done.
__attribute__((constructor)) static void choose(void)
{
    fill_tables();
#if defined(__x86_64__)
    __builtin_cpu_init();
    fill_constants();
#endif
    for (size_t i = 0; i < as_crc32c_impl_count; i++) {
        if (as_crc32c_impls[i].supported()) {
            chosen = &as_crc32c_impls[i];
        }
    }
}

uint32_t as_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return chosen->crc(crc, data, bytes);
}

uint32_t as_crc32c_copy(uint32_t crc, void *destination, const void *source, size_t bytes)
{
    return chosen->copy(crc, destination, source, bytes);
}
