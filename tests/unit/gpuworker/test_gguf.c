// SPDX-License-Identifier: Apache-2.0
// GGUF files are read as written, and damaged ones are refused with the place and the reason: never
// read beyond.
//
// Files are parsed from heap copies of their exact size, so that a sanitizer sees a read of one
// byte too many.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"
#include "gguf_builder.h"

#define RANDOM_SEED 77u

static as_status_t parse(const void *data, size_t bytes, char *error, gpw_gguf_t **gguf_p,
                         void **copy_p)
{
    *copy_p = malloc(bytes > 0 ? bytes : 1);
    memcpy(*copy_p, data, bytes);
    return gpw_gguf_open_memory(*copy_p, bytes, error, gguf_p);
}

static builder_t sample(void)
{
    builder_t builder = {0};
    const float values[4] = {1, 2, 3, 4};
    builder_u32(&builder, "a.number", 42);
    builder_f32(&builder, "a.float", 0.5f);
    builder_bool(&builder, "a.bool", 1);
    builder_text(&builder, "a.text", "hello");
    builder_array(&builder, "a.list", GPW_GGUF_STRING, 2);
    buffer_text(&builder.entries, "one");
    buffer_text(&builder.entries, "");
    builder_array(&builder, "a.numbers", GPW_GGUF_I32, 3);
    for (uint32_t i = 0; i < 3; i++) {
        buffer_u32(&builder.entries, i - 1);
    }
    builder_tensor(&builder, "z.tensor", 0, 2, 2, values, sizeof(values));
    builder_tensor(&builder, "b.tensor", 0, 4, 0, values, sizeof(values));
    builder_finish(&builder);
    return builder;
}

static void reads_what_was_written(void **state)
{
    (void)state;
    builder_t builder = sample();
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    void *copy = NULL;
    assert_int_equal(parse(builder.file.data, builder.file.bytes, error, &gguf, &copy), AS_OK);
    uint32_t number = 0;
    double real = 0;
    bool flag = false;
    gpw_gguf_string_t text = {"", 0};
    assert_true(gpw_gguf_u32(gguf, "a.number", &number) && number == 42);
    assert_true(gpw_gguf_f64(gguf, "a.float", &real) && real == 0.5);
    assert_true(gpw_gguf_bool(gguf, "a.bool", &flag) && flag);
    assert_true(gpw_gguf_text(gguf, "a.text", &text) && gpw_gguf_string_is(text, "hello"));
    const gpw_gguf_entry_t *list = gpw_gguf_find(gguf, "a.list");
    assert_int_equal(list->count, 2);
    const uint8_t *cursor = list->data;
    assert_true(gpw_gguf_string_is(gpw_gguf_next_string(&cursor), "one"));
    assert_true(gpw_gguf_string_is(gpw_gguf_next_string(&cursor), ""));
    const gpw_gguf_entry_t *numbers = gpw_gguf_find(gguf, "a.numbers");
    assert_int_equal(gpw_gguf_element_i32(numbers, 0), -1);
    assert_int_equal(gpw_gguf_element_i32(numbers, 2), 1);
    assert_int_equal(gpw_gguf_tensor_count(gguf), 2);
    const gpw_gguf_tensor_t *tensor = gpw_gguf_find_tensor(gguf, "z.tensor");
    assert_true(tensor->size[0] == 2 && tensor->size[1] == 2 && tensor->size[2] == 1);
    assert_int_equal((tensor->data - (const uint8_t *)copy) % 32, 0);
    float first;
    memcpy(&first, tensor->data, sizeof(first));
    assert_true(first == 1.0f);
    gpw_gguf_close(gguf);
    free(copy);
    builder_free(&builder);
}

static void gives_nothing_for_absent_keys_and_other_types(void **state)
{
    (void)state;
    builder_t builder = sample();
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    void *copy = NULL;
    uint32_t number = 5;
    double real = 5;
    bool flag = true;
    gpw_gguf_string_t text = {"x", 1};
    assert_int_equal(parse(builder.file.data, builder.file.bytes, error, &gguf, &copy), AS_OK);
    assert_null(gpw_gguf_find(gguf, "a.numbe"));
    assert_null(gpw_gguf_find(gguf, "a.number2"));
    assert_null(gpw_gguf_find_tensor(gguf, ""));
    assert_false(gpw_gguf_u32(gguf, "a.float", &number));
    assert_false(gpw_gguf_u32(gguf, "a.list", &number));
    assert_false(gpw_gguf_f64(gguf, "a.number", &real));
    assert_false(gpw_gguf_bool(gguf, "a.number", &flag));
    assert_false(gpw_gguf_text(gguf, "a.number", &text));
    assert_true(number == 5 && real == 5.0 && flag && text.bytes == 1);
    gpw_gguf_close(gguf);
    free(copy);
    builder_free(&builder);
}

static void a_file_cut_anywhere_is_refused_or_keeps_its_tensors_inside(void **state)
{
    (void)state;
    builder_t builder = sample();
    size_t whole = builder.file.bytes;
    for (size_t bytes = 0; bytes < whole; bytes++) {
        char error[GPW_GGUF_ERROR_BYTES] = "";
        gpw_gguf_t *gguf = NULL;
        void *copy = NULL;
        as_status_t status = parse(builder.file.data, bytes, error, &gguf, &copy);
        if (status != AS_OK) {
            assert_true(error[0] != '\0');
            free(copy);
            continue;
        }
        for (uint32_t i = 0; i < gpw_gguf_tensor_count(gguf); i++) {
            const gpw_gguf_tensor_t *tensor = gpw_gguf_tensor(gguf, i);
            assert_true((size_t)(tensor->data - (const uint8_t *)copy) + tensor->bytes_max ==
                        bytes);
        }
        gpw_gguf_close(gguf);
        free(copy);
    }
    builder_free(&builder);
}

static void random_damage_is_never_read_beyond(void **state)
{
    (void)state;
    builder_t builder = sample();
    uint32_t seed = RANDOM_SEED;
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        char error[GPW_GGUF_ERROR_BYTES] = "";
        gpw_gguf_t *gguf = NULL;
        void *copy = malloc(builder.file.bytes);
        memcpy(copy, builder.file.data, builder.file.bytes);
        for (int change = 0; change < 1 + round % 4; change++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t at = (seed >> 8) % builder.file.bytes;
            ((uint8_t *)copy)[at] = round % 2 ? 0xff : (uint8_t)(seed >> 3);
        }
        if (gpw_gguf_open_memory(copy, builder.file.bytes, error, &gguf) == AS_OK) {
            gpw_gguf_close(gguf);
        }
        free(copy);
    }
    builder_free(&builder);
}

static void expect(const builder_t *builder, as_status_t expected, const char *part)
{
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    void *copy = NULL;
    assert_int_equal(parse(builder->file.data, builder->file.bytes, error, &gguf, &copy), expected);
    if (!strstr(error, part)) {
        fail_msg("\"%s\" does not say \"%s\"", error, part);
    }
    free(copy);
}

static void names_what_is_wrong_with_a_header(void **state)
{
    (void)state;
    builder_t builder = sample();
    uint8_t *file = builder.file.data;
    file[0] = 'X';
    expect(&builder, AS_ERR_INVALID, "not a GGUF file");
    file[0] = 'G';
    file[4] = 4;
    expect(&builder, AS_ERR_UNSUPPORTED, "version 4");
    file[4] = 1;
    expect(&builder, AS_ERR_UNSUPPORTED, "version 1");
    file[4] = 0, file[7] = 3;
    expect(&builder, AS_ERR_UNSUPPORTED, "big-endian");
    file[4] = 3, file[7] = 0;
    file[8 + 6] = 1; // tensor count 2^48
    expect(&builder, AS_ERR_LIMIT, "tensors");
    file[8 + 6] = 0;
    file[8 + 1] = 0x10; // 4098 tensors
    expect(&builder, AS_ERR_INVALID, "do not fit");
    builder_free(&builder);
}

static void names_what_is_wrong_with_an_entry(void **state)
{
    (void)state;
    builder_t builder = {0};
    builder_u32(&builder, "twice", 1);
    builder_u32(&builder, "twice", 2);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "twice is there twice");
    builder_free(&builder);
    builder_key(&builder, "strange", (gpw_gguf_type_t)99);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "strange has the unknown type 99");
    builder_free(&builder);
    builder_array(&builder, "nested", GPW_GGUF_ARRAY, 1);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "nested");
    builder_free(&builder);
    builder_array(&builder, "endless", GPW_GGUF_F64, UINT64_MAX / 4); // times 8 overflows
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "ends inside an array");
    builder_free(&builder);
    builder_array(&builder, "strings", GPW_GGUF_STRING, UINT64_MAX);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "ends inside");
    builder_free(&builder);
    builder_u32(&builder, "general.alignment", 48);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, "alignment 48");
    builder_free(&builder);
}

static void expect_tensor(uint32_t dims, uint64_t size, uint64_t offset, const char *part)
{
    builder_t builder = {0};
    buffer_text(&builder.directory, "t");
    buffer_u32(&builder.directory, dims);
    for (uint32_t i = 0; i < dims && i < 8; i++) {
        buffer_u64(&builder.directory, size);
    }
    buffer_u32(&builder.directory, 0);
    buffer_u64(&builder.directory, offset);
    builder.tensor_count = 1;
    buffer_put(&builder.payload, "12345678", 8);
    builder_finish(&builder);
    expect(&builder, AS_ERR_INVALID, part);
    builder_free(&builder);
}

static void names_what_is_wrong_with_a_tensor(void **state)
{
    (void)state;
    expect_tensor(0, 1, 0, "0 dimensions");
    expect_tensor(5, 1, 0, "5 dimensions");
    expect_tensor(2, 0, 0, "impossible size");
    expect_tensor(2, UINT64_C(1) << 40, 0, "impossible size"); // the product overflows
    expect_tensor(1, 2, 7, "not aligned");
    expect_tensor(1, 2, 4096, "beyond the end");
    expect_tensor(1, 2, UINT64_MAX - 31, "beyond the end");
}

static void a_path_that_cannot_be_read_is_an_io_error(void **state)
{
    (void)state;
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    assert_int_equal(gpw_gguf_open("/nonexistent/x.gguf", error, &gguf), AS_ERR_IO);
    assert_non_null(strstr(error, "No such file"));
    assert_int_equal(gpw_gguf_open("/tmp", error, &gguf), AS_ERR_IO);
    assert_int_equal(gpw_gguf_open("/dev/null", error, &gguf), AS_ERR_IO);
    assert_null(gguf);
}

static void a_fifo_is_refused_without_waiting_for_its_writer(void **state)
{
    (void)state;
    char folder[] = "/tmp/assay-gguf-XXXXXX", path[sizeof(folder) + 8];
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(10); // ends a test that hangs
    assert_int_equal(gpw_gguf_open(path, error, &gguf), AS_ERR_IO);
    alarm(0);
    assert_non_null(strstr(error, "not a regular file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    builder_t builder = sample();
    bool finished = false;
    for (uint64_t nth = 1; !finished; nth++) {
        char error[GPW_GGUF_ERROR_BYTES] = "";
        gpw_gguf_t *gguf = NULL;
        as_mem_fail_nth(nth);
        as_status_t status =
            gpw_gguf_open_memory(builder.file.data, builder.file.bytes, error, &gguf);
        finished = as_mem_fail_nth(0) < nth;
        assert_int_equal(status, finished ? AS_OK : AS_ERR_NO_MEMORY);
        gpw_gguf_close(gguf);
    }
    builder_free(&builder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written),
        cmocka_unit_test(gives_nothing_for_absent_keys_and_other_types),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_or_keeps_its_tensors_inside),
        cmocka_unit_test(random_damage_is_never_read_beyond),
        cmocka_unit_test(names_what_is_wrong_with_a_header),
        cmocka_unit_test(names_what_is_wrong_with_an_entry),
        cmocka_unit_test(names_what_is_wrong_with_a_tensor),
        cmocka_unit_test(a_path_that_cannot_be_read_is_an_io_error),
        cmocka_unit_test(a_fifo_is_refused_without_waiting_for_its_writer),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
