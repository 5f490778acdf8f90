// SPDX-License-Identifier: Apache-2.0
// Shapes, offsets and keys. The expected keys were computed by another program from the table in
// block.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/block.h"

static const as_shape_t shape_good = {.layers = 30,
                                      .q_heads = 9,
                                      .kv_heads = 3,
                                      .head_dim = 64,
                                      .block_tokens = 64,
                                      .element = AS_ELEMENT_F16};

static as_namespace_t namespace_good(void)
{
    as_namespace_t ns = {.shape = shape_good,
                         .numerics_id = "cpu-f16-1",
                         .tensor_parallel_size = 1,
                         .tenant_salt = "tenant",
                         .weight_epoch = 7};
    for (uint8_t i = 0; i < 32; i++) {
        ns.model_fingerprint.bytes[i] = i;
    }
    return ns;
}

static void assert_key(const as_key_t *key, const char *expected)
{
    char hex[65];
    as_key_hex(key, hex);
    assert_string_equal(hex, expected);
}

static void sizes_follow_from_the_shape(void **state)
{
    (void)state;
    assert_int_equal(as_extent_bytes(&shape_good), 2 * 3 * 64 * 64 * 2);
    assert_int_equal(as_block_bytes(&shape_good), 30 * 2 * 3 * 64 * 64 * 2);
    as_shape_t f32 = shape_good;
    f32.element = AS_ELEMENT_F32;
    assert_int_equal(as_extent_bytes(&f32), 2 * as_extent_bytes(&shape_good));
}

static void an_extent_is_k_then_v_by_head_by_token(void **state)
{
    (void)state;
    size_t expected = 0;
    for (uint32_t part = 0; part < 2; part++) {
        for (uint32_t head = 0; head < 3; head++) {
            for (uint32_t token = 0; token < 64; token++) {
                assert_int_equal(as_extent_offset(&shape_good, part, head, token), expected);
                expected += 64;
            }
        }
    }
    assert_int_equal(expected * 2, as_extent_bytes(&shape_good));
}

static void a_bad_shape_is_refused(void **state)
{
    (void)state;
    assert_int_equal(as_shape_check(&shape_good), AS_OK);
    as_shape_t shape = shape_good;
#define REFUSED(field, value, status)                                                              \
    shape = shape_good;                                                                            \
    shape.field = value;                                                                           \
    assert_int_equal(as_shape_check(&shape), status)
    REFUSED(layers, 0, AS_ERR_INVALID);
    REFUSED(q_heads, 0, AS_ERR_INVALID);
    REFUSED(kv_heads, 0, AS_ERR_INVALID);
    REFUSED(head_dim, 0, AS_ERR_INVALID);
    REFUSED(block_tokens, 0, AS_ERR_INVALID);
    REFUSED(kv_heads, 2, AS_ERR_INVALID);
    REFUSED(kv_heads, 18, AS_ERR_INVALID);
    REFUSED(head_dim, 24, AS_ERR_INVALID);
    REFUSED(element, 0, AS_ERR_INVALID);
    REFUSED(element, 3, AS_ERR_INVALID);
    REFUSED(layers, AS_LAYERS_MAX + 1, AS_ERR_LIMIT);
    REFUSED(block_tokens, AS_BLOCK_TOKENS_MAX + 1, AS_ERR_LIMIT);
    REFUSED(q_heads, 0xffffffffu, AS_ERR_LIMIT);
    REFUSED(head_dim, 0xfffffff0u, AS_ERR_LIMIT);
#undef REFUSED
}

static void the_largest_shape_has_an_extent_that_fits_32_bits(void **state)
{
    (void)state;
    as_shape_t shape = {AS_LAYERS_MAX, 1024, 1024, 1024, AS_BLOCK_TOKENS_MAX, AS_ELEMENT_F32};
    assert_int_equal(as_shape_check(&shape), AS_OK);
    assert_true(as_extent_bytes(&shape) <= 0xffffffffu);
    assert_int_equal(as_block_bytes(&shape) / as_extent_bytes(&shape), AS_LAYERS_MAX);
}

static void the_namespace_key_is_the_hash_of_its_fields(void **state)
{
    (void)state;
    as_namespace_t ns = namespace_good();
    as_key_t key;
    as_namespace_key(&ns, &key);
    assert_key(&key, "a60cd7b14b95a13bbff406badfc2ebadb34a6f63444293871d77d80b9511fb53");
    ns.lora_id = "";
    as_namespace_key(&ns, &key);
    assert_key(&key, "a60cd7b14b95a13bbff406badfc2ebadb34a6f63444293871d77d80b9511fb53");
}

static void every_field_changes_the_namespace_key(void **state)
{
    (void)state;
    as_key_t base, key;
    as_namespace_t ns = namespace_good();
    as_namespace_key(&ns, &base);
#define CHANGED(field, value)                                                                      \
    ns = namespace_good();                                                                         \
    ns.field = value;                                                                              \
    as_namespace_key(&ns, &key);                                                                   \
    assert_false(as_key_equal(&base, &key))
    CHANGED(model_fingerprint.bytes[31], 0);
    CHANGED(shape.layers, 31);
    CHANGED(shape.q_heads, 12);
    CHANGED(shape.kv_heads, 9);
    CHANGED(shape.head_dim, 80);
    CHANGED(shape.block_tokens, 32);
    CHANGED(shape.element, AS_ELEMENT_F32);
    CHANGED(numerics_id, "cpu-f16-2");
    CHANGED(lora_id, "a");
    CHANGED(tensor_parallel_rank, 1);
    CHANGED(tensor_parallel_size, 2);
    CHANGED(tenant_salt, NULL);
    CHANGED(weight_epoch, 8);
    CHANGED(weight_epoch, 7ull << 32);
#undef CHANGED
}

static void text_does_not_slip_from_one_field_to_the_next(void **state)
{
    (void)state;
    as_key_t first, second;
    as_namespace_t ns = namespace_good();
    ns.numerics_id = "ab";
    ns.lora_id = "c";
    as_namespace_key(&ns, &first);
    ns.numerics_id = "a";
    ns.lora_id = "bc";
    as_namespace_key(&ns, &second);
    assert_false(as_key_equal(&first, &second));
}

static void block_keys_are_chained(void **state)
{
    (void)state;
    int32_t tokens[150];
    as_key_t namespace_key, keys[3], key;
    as_namespace_t ns = namespace_good();
    as_namespace_key(&ns, &namespace_key);
    for (int32_t i = 0; i < 150; i++) {
        tokens[i] = i * 7 - 5;
    }
    assert_int_equal(as_chain_keys(&namespace_key, tokens, 150, 64, keys, 3), 2);
    assert_key(&keys[0], "143e1eb1eb726c2216900a308b426dc8dfd3a7ae907fac50cc54dd94378c2f0a");
    assert_key(&keys[1], "9518670360a1b921ec560260e61af6756afd3a841bc973665856c510d49a69d2");
    as_block_key(&keys[0], tokens + 64, 64, &key);
    assert_true(as_key_equal(&key, &keys[1]));
    tokens[0]++; // a change in the first block changes every key after it
    as_key_t other[2];
    assert_int_equal(as_chain_keys(&namespace_key, tokens, 150, 64, other, 2), 2);
    assert_false(as_key_equal(&other[0], &keys[0]));
    assert_false(as_key_equal(&other[1], &keys[1]));
}

static void block_keys_hold_for_any_count_of_tokens(void **state)
{
    (void)state;
    as_key_t parent = {{0}}, key;
    int32_t tokens[150];
    as_block_key(&parent, (const int32_t[]){1, -2, 3}, 3, &key);
    assert_key(&key, "0cbdd9c30a10960dd3e55209373ae1881aaf316d21343d29e11e3b96aae8b760");
    for (int32_t i = 0; i < 150; i++) {
        tokens[i] = i;
    }
    as_block_key(&parent, tokens, 150, &key);
    assert_key(&key, "71fb77d28c21df2fb1e441c8effab06806e9a22be1bee2f073f3ea0b447af96d");
}

static void a_chain_has_only_full_blocks_and_stays_in_its_array(void **state)
{
    (void)state;
    int32_t tokens[64] = {0};
    as_key_t root = {{0}}, keys[4];
    memset(keys, 0xee, sizeof(keys));
    assert_int_equal(as_chain_keys(&root, tokens, 0, 16, keys, 4), 0);
    assert_int_equal(as_chain_keys(&root, tokens, 15, 16, keys, 4), 0);
    assert_int_equal(as_chain_keys(&root, tokens, 16, 16, keys, 4), 1);
    assert_int_equal(as_chain_keys(&root, tokens, 64, 16, keys, 3), 3);
    assert_int_equal(keys[3].bytes[0], 0xee);
    assert_int_equal(as_chain_keys(&root, tokens, 64, 16, keys, 0), 0);
}

static void keys_are_written_and_read_as_hex(void **state)
{
    (void)state;
    as_key_t key, back;
    char hex[65];
    for (int i = 0; i < 32; i++) {
        key.bytes[i] = (uint8_t)(i * 37);
    }
    as_key_hex(&key, hex);
    assert_int_equal(strlen(hex), 64);
    assert_int_equal(as_key_parse(hex, &back), AS_OK);
    assert_true(as_key_equal(&key, &back));
    for (char *c = hex; *c; c++) {
        *c = (char)(*c >= 'a' ? *c - 'a' + 'A' : *c);
    }
    assert_int_equal(as_key_parse(hex, &back), AS_OK);
    assert_true(as_key_equal(&key, &back));
    hex[63] = 'g';
    assert_int_equal(as_key_parse(hex, &back), AS_ERR_INVALID);
    hex[63] = '\0';
    assert_int_equal(as_key_parse(hex, &back), AS_ERR_INVALID);
    assert_int_equal(as_key_parse("", &back), AS_ERR_INVALID);
    char longer[66];
    memset(longer, 'a', 65);
    longer[65] = '\0';
    assert_int_equal(as_key_parse(longer, &back), AS_ERR_INVALID);
    assert_true(as_key_equal(&key, &back)); // untouched by what failed
}

static void equal_keys_have_equal_hashes(void **state)
{
    (void)state;
    as_key_t a = {{1, 2, 3}}, b = {{1, 2, 3}}, c = {{2, 2, 3}};
    assert_int_equal(as_key_hash(&a), as_key_hash(&b));
    assert_true(as_key_hash(&a) != as_key_hash(&c));
}

static void a_tenants_key_is_the_hash_of_tenant_and_key(void **state)
{
    (void)state;
    as_key_t keys[2], scoped[2], other;
    for (uint8_t i = 0; i < 32; i++) {
        keys[0].bytes[i] = i;
    }
    keys[1] = keys[0];
    keys[1].bytes[31] ^= 1;
    as_keys_scope(keys, 2, 7, scoped);
    assert_key(&scoped[0], "001f1491347b0655a16d5b2c07cd345808bcb1ebe7a7e8d5d7159f9070bb3536");
    assert_false(as_key_equal(&scoped[0], &scoped[1]));
    as_key_scope(&keys[0], 8, &other);
    assert_false(as_key_equal(&scoped[0], &other));
    as_key_scope(&keys[0], 0, &other); // where there are no tenants
    assert_true(as_key_equal(&keys[0], &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_from_the_shape),
        cmocka_unit_test(an_extent_is_k_then_v_by_head_by_token),
        cmocka_unit_test(a_bad_shape_is_refused),
        cmocka_unit_test(the_largest_shape_has_an_extent_that_fits_32_bits),
        cmocka_unit_test(the_namespace_key_is_the_hash_of_its_fields),
        cmocka_unit_test(every_field_changes_the_namespace_key),
        cmocka_unit_test(text_does_not_slip_from_one_field_to_the_next),
        cmocka_unit_test(block_keys_are_chained),
        cmocka_unit_test(block_keys_hold_for_any_count_of_tokens),
        cmocka_unit_test(a_chain_has_only_full_blocks_and_stays_in_its_array),
        cmocka_unit_test(keys_are_written_and_read_as_hex),
        cmocka_unit_test(equal_keys_have_equal_hashes),
        cmocka_unit_test(a_tenants_key_is_the_hash_of_tenant_and_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
