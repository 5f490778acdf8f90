// SPDX-License-Identifier: Apache-2.0
// The text of a calibration: written and read again, and refused whatever is wrong with it.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "gpuworker/resident/calibration.h"

#include <openssl/sha.h>

static char text[GPW_CALIBRATION_BYTES_MAX], why[GPW_CALIBRATION_WHY_BYTES];

static gpw_calibration_t sample(void)
{
    gpw_calibration_t c = {
        .model = {{0xab, 1, 2, 3}}, .layers = 30, .q_heads = 9, .kv_heads = 3, .head_dim = 64};
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        c.source[l] = (uint16_t)l;
    }
    c.source[17] = 5;
    c.source[21] = 5;
    c.source[29] = 0;
    return c;
}

static as_status_t parse(const char *of, size_t bytes, gpw_calibration_t *c_p)
{
    memset(why, 0, sizeof(why));
    as_status_t status = gpw_calibration_parse(of, bytes, c_p, why);
    assert_true((status == AS_OK) == (why[0] == '\0'));
    return status;
}

// Adds the checksum that is right for what stands there.
static size_t sign(char *of)
{
    as_key_t sum;
    char hex[65];
    size_t bytes = strlen(of);
    SHA256((const uint8_t *)of, bytes, sum.bytes);
    as_key_hex(&sum, hex);
    return bytes + (size_t)sprintf(of + bytes, "checksum %s\n", hex);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    gpw_calibration_t c = sample(), again;
    size_t bytes = gpw_calibration_format(&c, text);
    assert_int_equal(parse(text, bytes, &again), AS_OK);
    assert_memory_equal(&c, &again, sizeof(c));
    assert_int_equal(gpw_calibration_held(&again), 27);
    assert_non_null(strstr(text, "shape 30 9 3 64\nshare 17 5\nshare 21 5\nshare 29 0\nchecksum "));
}

// The most that there may be fits.
static void the_longest_fits(void **state)
{
    (void)state;
    gpw_calibration_t c = sample(), again;
    c.layers = AS_LAYERS_MAX;
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        c.source[l] = l < 128 ? (uint16_t)l : 127;
    }
    size_t bytes = gpw_calibration_format(&c, text);
    assert_int_equal(parse(text, bytes, &again), AS_OK);
    assert_memory_equal(&c, &again, sizeof(c));
}

static void other_calibrations_have_other_ids(void **state)
{
    (void)state;
    gpw_calibration_t a = sample(), b = sample(), c = sample();
    b.source[29] = 1;
    c.model.bytes[31] = 1;
    gpw_calibration_format(&a, text);
    gpw_calibration_format(&b, text);
    gpw_calibration_format(&c, text);
    assert_false(as_key_equal(&a.id, &b.id) || as_key_equal(&a.id, &c.id));
}

static void a_damaged_file_is_refused(void **state)
{
    (void)state;
    gpw_calibration_t c = sample(), again;
    char damaged[GPW_CALIBRATION_BYTES_MAX + 1];
    size_t bytes = gpw_calibration_format(&c, text);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_not_equal(parse(text, i, &again), AS_OK); // cut
        for (uint32_t bit = 0; bit < 8; bit++) {
            memcpy(damaged, text, bytes);
            damaged[i] = (char)(damaged[i] ^ 1 << bit);
            assert_int_not_equal(parse(damaged, bytes, &again), AS_OK);
        }
    }
    memcpy(damaged, text, bytes);
    damaged[bytes] = '\n';
    assert_int_equal(parse(damaged, bytes + 1, &again), AS_ERR_INVALID); // longer
}

#define HASH  "ab01020300000000000000000000000000000000000000000000000000000000"
#define MODEL "model ab01020300000000000000000000000000000000000000000000000000000000\n"
#define HEAD  "assay-calibration 2\n" MODEL "shape 30 9 3 64\n"

// With a checksum that is right, so that only what is said can be wrong.
static void a_wrong_line_is_named_with_what_is_right(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        as_status_t status;
    } wrong[] = {
        {"assay-calibration 1\n" MODEL, "version 1, this worker knows 2", AS_ERR_UNSUPPORTED},
        {"assay-calibration 01\n" MODEL, "is no calibration", AS_ERR_INVALID},
        {"GGUF", "is no calibration", AS_ERR_INVALID},
        {"", "is no calibration", AS_ERR_INVALID},
        {"assay-calibration 2\nmodel AB\n", "line 2 must be `model`", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 30 9 3\n", "line 3 must be `shape`", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 30 9 3 +64\n", "line 3 must be", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 30 9 3 64 \n", "line 3 must be", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 30 9 2 64\n", "shape of no model", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 300 9 3 64\n", "shape of no model", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 999999999999 9 3 64\n", "line 3", AS_ERR_INVALID},
        {HEAD "share 5\n", "line 4 must be `share`", AS_ERR_INVALID},
        {HEAD "share 5 05\n", "line 4 must be `share`", AS_ERR_INVALID},
        {HEAD "share 5 5\n", "line 4 is wrong", AS_ERR_INVALID},
        {HEAD "share 5 6\n", "line 4 is wrong", AS_ERR_INVALID},
        {HEAD "share 0 0\n", "line 4 is wrong", AS_ERR_INVALID},
        {HEAD "share 30 1\n", "line 4 is wrong", AS_ERR_INVALID},
        {HEAD "share 6 1\nshare 6 2\n", "line 5 is wrong", AS_ERR_INVALID},
        {HEAD "share 6 1\nshare 5 1\n", "line 5 is wrong", AS_ERR_INVALID},
        {HEAD "share 6 1\nshare 7 6\n", "line 5 is wrong", AS_ERR_INVALID}, // a chain
        {HEAD "\n", "line 4 must be `share`", AS_ERR_INVALID},
        {HEAD "summary 8 ab\n", "line 4 must be `summary 8`", AS_ERR_INVALID},
        {HEAD "summary 9 " HASH "\n", "line 4 must be `summary 8`", AS_ERR_INVALID},
        {HEAD "summary 8 " HASH "\nshare 6 1\n", "line 5 must be the checksum", AS_ERR_INVALID},
        {HEAD "summary 8 " HASH "\nsummary 8 " HASH "\n", "line 5 must be the checksum",
         AS_ERR_INVALID},
        {HEAD "summary 8 " HASH "\n", "maps behind its text are others", AS_ERR_INVALID},
        {"assay-calibration 2\n" MODEL "shape 256 256 256 256\nsummary 8 " HASH "\n", "too large",
         AS_ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        gpw_calibration_t c;
        snprintf(text, sizeof(text), "%s", wrong[i].text);
        size_t bytes = sign(text);
        assert_int_equal(parse(text, bytes, &c), wrong[i].status);
        if (!strstr(why, wrong[i].says)) {
            fail_msg("case %zu says: %s", i, why);
        }
    }
    gpw_calibration_t c;
    snprintf(text, sizeof(text), "%s", HEAD "share 6 1\n");
    assert_int_equal(parse(text, sign(text), &c), AS_OK); // what is tried is not always refused
}

static void files_are_written_whole_and_read_again(void **state)
{
    (void)state;
    char path[] = "/tmp/assay_calibration_XXXXXX";
    gpw_calibration_t c = sample(), again;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_ERR_INVALID); // empty
    assert_int_equal(gpw_calibration_write(path, &c), AS_OK);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_OK);
    assert_memory_equal(&c, &again, sizeof(c));
    FILE *file = fopen(path, "w");
    for (uint32_t i = 0; i <= GPW_CALIBRATION_BYTES_MAX; i++) {
        fputc('x', file);
    }
    fclose(file);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_ERR_INVALID);
    assert_non_null(strstr(why, "is no calibration"));
    assert_int_equal(
        truncate(path, (off_t)GPW_CALIBRATION_MAPS_MAX + 2 * GPW_CALIBRATION_BYTES_MAX), 0);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_ERR_INVALID);
    assert_non_null(strstr(why, "longer than"));
    unlink(path);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_ERR_IO);
    assert_non_null(strstr(why, "No such file"));
    assert_int_equal(gpw_calibration_write("/nowhere/at/all", &c), AS_ERR_IO);
}

// The maps behind the text: as they were, and refused if one bit, one byte or one number is wrong.
static void maps_are_read_as_they_were_written(void **state)
{
    (void)state;
    gpw_calibration_t c = sample(), again;
    c.layers = 2;
    c.q_heads = c.kv_heads = 1;
    c.head_dim = 16;
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        c.source[l] = (uint16_t)l;
    }
    size_t bytes = gpw_calibration_maps_bytes(&c), count = bytes / sizeof(float);
    assert_int_equal(count, 2 * 2 * 8 * 17);
    float *maps = malloc(bytes);
    for (size_t i = 0; i < count; i++) {
        maps[i] = (float)i - 7.5f;
    }
    c.maps = maps;
    assert_ptr_equal(gpw_calibration_map(&c, 1, 1), maps + 3 * 8 * 17);
    for (int wrong = 0; wrong < 2; wrong++) {
        maps[5] = wrong ? NAN : 3;
        char *file = malloc(GPW_CALIBRATION_BYTES_MAX + bytes + 1);
        size_t head = gpw_calibration_format(&c, text);
        memcpy(file, text, head);
        memcpy(file + head, maps, bytes);
        if (wrong) {
            assert_int_equal(parse(file, head + bytes, &again), AS_ERR_INVALID);
            assert_non_null(strstr(why, "no number"));
            free(file);
            continue;
        }
        assert_int_equal(parse(file, head + bytes, &again), AS_OK);
        assert_memory_equal(again.maps, maps, bytes);
        assert_true(as_key_equal(&again.id, &c.id));
        gpw_calibration_fini(&again);
        assert_null(again.maps);
        assert_int_equal(parse(file, head + bytes - 4, &again), AS_ERR_INVALID);
        assert_int_equal(parse(file, head, &again), AS_ERR_INVALID);
        file[head + bytes] = 0;
        assert_int_equal(parse(file, head + bytes + 1, &again), AS_ERR_INVALID);
        file[head + bytes / 2] ^= 1;
        assert_int_equal(parse(file, head + bytes, &again), AS_ERR_INVALID);
        assert_non_null(strstr(why, "maps behind its text are others"));
        free(file);
    }
    // Through a file.
    char path[] = "/tmp/assay_calibration_XXXXXX";
    maps[5] = 3;
    close(mkstemp(path));
    assert_int_equal(gpw_calibration_write(path, &c), AS_OK);
    assert_int_equal(gpw_calibration_read(path, &again, why), AS_OK);
    assert_memory_equal(again.maps, maps, bytes);
    gpw_calibration_fini(&again);
    as_key_t with = c.id;
    c.maps = NULL;
    gpw_calibration_format(&c, text);
    assert_false(as_key_equal(&with, &c.id));
    unlink(path);
    free(maps);
}

static void it_fits_its_model_only(void **state)
{
    (void)state;
    gpw_calibration_t c = sample();
    as_shape_t shape = {30, 9, 3, 64, 64, AS_ELEMENT_F16};
    as_key_t other = c.model;
    assert_true(gpw_calibration_fits(&c, &c.model, &shape));
    other.bytes[9] ^= 1;
    assert_false(gpw_calibration_fits(&c, &other, &shape));
    shape.layers = 31;
    assert_false(gpw_calibration_fits(&c, &c.model, &shape));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(the_longest_fits),
        cmocka_unit_test(other_calibrations_have_other_ids),
        cmocka_unit_test(a_damaged_file_is_refused),
        cmocka_unit_test(a_wrong_line_is_named_with_what_is_right),
        cmocka_unit_test(files_are_written_whole_and_read_again),
        cmocka_unit_test(maps_are_read_as_they_were_written),
        cmocka_unit_test(it_fits_its_model_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
