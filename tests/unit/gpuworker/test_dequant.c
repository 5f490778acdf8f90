// SPDX-License-Identifier: Apache-2.0
// Every tensor type gives the values of the `gguf` Python package, bit for bit:
// tests/golden/dequant_blocks.txt.
#include "gpuworker/model/dequant.h"
#include "model_fixture.h"

#define LINE_BYTES_MAX 8192u

// Parses `text` of hex digits into bytes; returns how many.
static size_t parse_hex(const char *text, uint8_t *bytes)
{
    size_t count = 0;
    unsigned byte;
    for (; sscanf(text, "%2x", &byte) == 1 && text[0] != ' '; text += 2) {
        bytes[count++] = (uint8_t)byte;
    }
    return count;
}

static void check_block(char *line, uint32_t *seen_p)
{
    uint8_t block[512];
    float values[256];
    char *rest = strchr(line, ' ') + 1;
    uint32_t type = (uint32_t)strtoul(line, NULL, 10);
    size_t bytes = parse_hex(rest, block);
    assert_true(gpw_dequant_block_bytes(type) > 0);
    size_t count = bytes / gpw_dequant_block_bytes(type) * gpw_dequant_block_elements(type);
    gpw_dequant(type, block, count, values);
    rest = strchr(rest, ' ');
    for (size_t i = 0; i < count; i++) {
        uint32_t bits, expected = (uint32_t)strtoul(rest, &rest, 16);
        memcpy(&bits, &values[i], sizeof(bits));
        if (bits != expected) {
            fail_msg("%s, element %zu: %08x, expected %08x", gpw_dequant_type_name(type), i, bits,
                     expected);
        }
    }
    *seen_p |= 1u << type;
}

static void gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    char path[512];
    static char line[LINE_BYTES_MAX];
    FILE *file = fopen(fixture_golden("dequant_blocks.txt", path), "r");
    assert_non_null(file);
    uint32_t seen = 0;
    while (fgets(line, sizeof(line), file)) {
        if (line[0] != '#') {
            check_block(line, &seen);
        }
    }
    fclose(file);
    for (uint32_t type = 0; type < 32; type++) {
        assert_int_equal(gpw_dequant_block_bytes(type) > 0,
                         seen >> type & 1); // every supported type was there
    }
}

static void takes_several_blocks_from_an_unaligned_place(void **state)
{
    (void)state;
    uint8_t memory[1 + 2 * 34];
    float values[64];
    memset(memory, 0, sizeof(memory));
    memory[1] = 0x00, memory[2] = 0x3c; // 1.0
    memory[3] = 5;
    memory[35] = 0x00, memory[36] = 0x40; // 2.0
    memory[37] = 0xff;
    gpw_dequant(GPW_TENSOR_Q8_0, memory + 1, 64, values);
    assert_true(values[0] == 5.0f && values[32] == -2.0f && values[63] == 0.0f);
}

static void knows_the_names_of_types_it_does_not_support(void **state)
{
    (void)state;
    assert_string_equal(gpw_dequant_type_name(10), "Q2_K");
    assert_int_equal(gpw_dequant_block_bytes(10), 0);
    assert_int_equal(gpw_dequant_block_elements(10), 0);
    assert_string_equal(gpw_dequant_type_name(4096), "unknown");
    assert_int_equal(gpw_dequant_block_elements(4096), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_bits_of_the_reference),
        cmocka_unit_test(takes_several_blocks_from_an_unaligned_place),
        cmocka_unit_test(knows_the_names_of_types_it_does_not_support),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
