// SPDX-License-Identifier: Apache-2.0
// Tokens and the key files under which they are signed. The token of the vector was made by another
// program from the table in token.h; the HMACs are those of RFC 4231.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/small_file.h"
#include "common/token.h"
#include "tests/unit/common/temporary_folder.h"

#define VECTOR                                                                                     \
    "QVNUSwEAAwAHAAAAYw3NKYDY23AAAAAAZGVmZ2hpamtsbW5vcHFycwssDvVLJ7NBO0vvwwBNtSPiIZvl04VMo-"       \
    "svrvkwupuh"
#define VECTOR_KEY     "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define VECTOR_EXPIRES 1893456000u
#define OTHER_KEY      "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static as_cluster_keys_t keys_of(const char *text)
{
    as_cluster_keys_t keys;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    assert_int_equal(as_cluster_keys_parse(text, strlen(text), &keys, why), AS_OK);
    return keys;
}

static as_token_sealed_t sealed_of(const char *text)
{
    as_token_sealed_t sealed;
    assert_int_equal(as_token_read(text, strlen(text), &sealed), AS_OK);
    return sealed;
}

static void assert_mac(const char *key, size_t key_bytes, const char *data, const char *expected)
{
    uint8_t mac[32];
    char hex[65];
    as_hmac_sha256(key, key_bytes, data, strlen(data), mac);
    for (size_t i = 0; i < sizeof(mac); i++) {
        snprintf(hex + 2 * i, 3, "%02x", mac[i]);
    }
    assert_string_equal(hex, expected);
}

static void macs_are_those_of_rfc_4231(void **state)
{
    (void)state;
    static const char eleven[20] = {11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
                                    11, 11, 11, 11, 11, 11, 11, 11, 11, 11};
    assert_mac(eleven, sizeof(eleven), "Hi There",
               "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_mac("Jefe", 4, "what do ya want for nothing?",
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    char long_key[131];
    memset(long_key, 0xaa, sizeof(long_key));
    assert_mac(long_key, sizeof(long_key), "Test Using Larger Than Block-Size Key - Hash Key First",
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void a_token_of_another_program_is_good(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(OTHER_KEY "\n" VECTOR_KEY "\n");
    as_token_sealed_t sealed = sealed_of("  " VECTOR "\r\n");
    as_token_t token;
    assert_int_equal(
        as_token_check(&keys, sealed.bytes, AS_TOKEN_BYTES, VECTOR_EXPIRES - 1, &token),
        AS_TOKEN_GOOD);
    assert_int_equal(token.tenant, 7);
    assert_int_equal(token.rights, AS_TOKEN_READ | AS_TOKEN_WRITE);
    assert_int_equal(token.key_id, 0x29cd0d63);
    assert_int_equal(token.not_after_s, VECTOR_EXPIRES);
    assert_int_equal(token.nonce[15], 115);
    char text[AS_TOKEN_TEXT_BYTES];
    as_token_format(&sealed, text);
    assert_string_equal(text, VECTOR);
}

static void a_token_holds_until_its_second(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(VECTOR_KEY);
    as_token_sealed_t sealed = sealed_of(VECTOR);
    as_token_t token;
    assert_int_equal(as_token_check(&keys, sealed.bytes, AS_TOKEN_BYTES, VECTOR_EXPIRES, &token),
                     AS_TOKEN_EXPIRED);
    assert_int_equal(as_token_check(&keys, sealed.bytes, AS_TOKEN_BYTES, UINT64_MAX, &token),
                     AS_TOKEN_EXPIRED);
}

static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(VECTOR_KEY);
    for (size_t bit = 0; bit < 8 * AS_TOKEN_BYTES; bit++) {
        as_token_sealed_t sealed = sealed_of(VECTOR);
        as_token_t token;
        sealed.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        as_token_fault_t fault = as_token_check(&keys, sealed.bytes, AS_TOKEN_BYTES, 0, &token);
        bool of_key_id = bit / 8 >= 12 && bit / 8 < 16;
        assert_true(fault == AS_TOKEN_FORGED || fault == AS_TOKEN_MALFORMED ||
                    (of_key_id && fault == AS_TOKEN_UNKNOWN_KEY));
    }
}

static void another_length_is_no_token(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(VECTOR_KEY);
    as_token_sealed_t sealed = sealed_of(VECTOR);
    as_token_t token;
    for (size_t bytes = 0; bytes < AS_TOKEN_BYTES; bytes++) {
        assert_int_equal(as_token_check(&keys, sealed.bytes, bytes, 0, &token), AS_TOKEN_MALFORMED);
    }
    as_token_sealed_t read;
    for (size_t bytes = 0; bytes < strlen(VECTOR); bytes++) {
        assert_int_equal(as_token_read(VECTOR, bytes, &read), AS_ERR_INVALID);
    }
    assert_int_equal(as_token_read(VECTOR "A", strlen(VECTOR) + 1, &read), AS_ERR_INVALID);
    char text[] = VECTOR;
    text[5] = '+'; // of another alphabet
    assert_int_equal(as_token_read(text, strlen(text), &read), AS_ERR_INVALID);
    text[5] = '\0';
    assert_int_equal(as_token_read(text, sizeof(text) - 1, &read), AS_ERR_INVALID);
}

static void what_is_signed_is_good_and_never_twice_the_same(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(VECTOR_KEY "\n" OTHER_KEY);
    as_token_t token = {.tenant = 9, .rights = AS_TOKEN_READ, .not_after_s = 100}, read;
    as_token_sealed_t one, two;
    assert_int_equal(as_token_sign(&keys, &token, &one), AS_OK);
    assert_int_equal(as_token_sign(&keys, &token, &two), AS_OK);
    assert_memory_not_equal(one.bytes, two.bytes, AS_TOKEN_BYTES);
    assert_int_equal(as_token_check(&keys, one.bytes, AS_TOKEN_BYTES, 99, &read), AS_TOKEN_GOOD);
    assert_int_equal(read.key_id, keys.keys[0].id);
    as_cluster_keys_t others = keys_of(OTHER_KEY);
    assert_int_equal(as_token_check(&others, one.bytes, AS_TOKEN_BYTES, 99, &read),
                     AS_TOKEN_UNKNOWN_KEY);
}

static void a_token_without_sense_is_not_signed(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of(VECTOR_KEY);
    static const as_token_t bad[] = {
        {.tenant = 1, .rights = 0},
        {.tenant = 0, .rights = AS_TOKEN_READ},                 // of no tenant
        {.tenant = 1, .rights = AS_TOKEN_READ | AS_TOKEN_PEER}, // of all, and of one
        {.tenant = 1, .rights = 16},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        as_token_t token = bad[i];
        as_token_sealed_t sealed;
        assert_int_equal(as_token_sign(&keys, &token, &sealed), AS_ERR_INVALID);
    }
}

static void rights_have_names(void **state)
{
    (void)state;
    char text[AS_TOKEN_RIGHTS_BYTES];
    for (uint32_t rights = 1; rights <= AS_TOKEN_RIGHTS; rights++) {
        uint32_t again = 0;
        as_token_rights_format(rights, text);
        assert_int_equal(as_token_rights_parse(text, &again), AS_OK);
        assert_int_equal(again, rights);
    }
    uint32_t rights;
    assert_int_equal(as_token_rights_parse("", &rights), AS_ERR_INVALID);
    assert_int_equal(as_token_rights_parse("read,wrote", &rights), AS_ERR_INVALID);
    assert_int_equal(as_token_rights_parse("rea", &rights), AS_ERR_INVALID);
    assert_int_equal(as_token_rights_parse(",read", &rights), AS_ERR_INVALID);
}

static void assert_no_keys(const char *text, const char *why_expected)
{
    as_cluster_keys_t keys;
    char why[AS_CLUSTER_KEY_WHY_BYTES] = "";
    assert_int_not_equal(as_cluster_keys_parse(text, strlen(text), &keys, why), AS_OK);
    if (!strstr(why, why_expected)) {
        fail_msg("'%s' does not say '%s'", why, why_expected);
    }
}

static void a_key_file_says_what_is_wrong_with_it(void **state)
{
    (void)state;
    as_cluster_keys_t keys = keys_of("# keys\n\n \t" VECTOR_KEY " \r\n" OTHER_KEY);
    assert_int_equal(keys.count, 2);
    assert_int_equal(keys.keys[0].secret[31], 31);
    assert_no_keys("", "holds no key");
    assert_no_keys("# only words\n", "holds no key");
    assert_no_keys(VECTOR_KEY "\nsecret\n", "line 2 is no key");
    assert_no_keys(VECTOR_KEY "0\n", "line 1 is no key");
    assert_no_keys(VECTOR_KEY "\n\n" VECTOR_KEY, "line 3 is a key of the id");
    char many[17 * 65 + 1], *at = many;
    for (int i = 0; i < 17; i++) {
        at += snprintf(at, 66, "%02x%s\n", i, VECTOR_KEY + 2);
    }
    assert_no_keys(many, "line 17 is one key too many");
}

static void files_are_read_again_when_they_change(void **state)
{
    (void)state;
    char folder[TEMPORARY_FOLDER_BYTES], path[64], aside[64], why[AS_CLUSTER_KEY_WHY_BYTES];
    temporary_folder_make(folder);
    snprintf(path, sizeof(path), "%s/keys", folder);
    snprintf(aside, sizeof(aside), "%s/new", folder);
    as_file_stamp_t stamp = {0};
    as_cluster_keys_t keys;
    assert_false(as_file_changed(path, &stamp));
    assert_int_equal(as_cluster_keys_read(path, &keys, why), AS_ERR_IO);
    assert_string_equal(why, "No such file or directory");
    temporary_file_write(path, VECTOR_KEY "\n");
    assert_int_equal(chmod(path, 0600), 0);
    assert_true(as_file_changed(path, &stamp));
    assert_false(as_file_changed(path, &stamp));
    assert_int_equal(as_cluster_keys_read(path, &keys, why), AS_OK);
    temporary_file_write(aside, OTHER_KEY "\n"); // of the same length, maybe of the same time
    assert_int_equal(chmod(aside, 0644), 0);
    assert_int_equal(rename(aside, path), 0);
    assert_true(as_file_changed(path, &stamp));
    unsigned long warnings = as_log_count(AS_LOG_WARN);
    assert_int_equal(as_cluster_keys_read(path, &keys, why), AS_OK);
    assert_int_equal(as_log_count(AS_LOG_WARN), warnings + 1); // everybody can read it
    assert_int_equal(keys.keys[0].secret[0], 0xff);
    as_token_sealed_t sealed;
    assert_int_equal(as_token_file(path, &sealed), AS_ERR_INVALID);
    temporary_file_write(path, VECTOR "\n");
    assert_int_equal(as_token_file(path, &sealed), AS_OK);
    temporary_folder_remove(folder);
}

static void of_a_file_that_is_too_long_nothing_is_left(void **state)
{
    (void)state;
    char folder[TEMPORARY_FOLDER_BYTES], path[64], text[17], nothing[17] = {0};
    temporary_folder_make(folder);
    snprintf(path, sizeof(path), "%s/keys", folder);
    temporary_file_write(path, VECTOR_KEY "\n");
    size_t bytes;
    assert_int_equal(as_file_read(path, text, sizeof(text) - 1, &bytes), AS_ERR_LIMIT);
    assert_int_equal(errno, EFBIG);
    assert_memory_equal(text, nothing, sizeof(text));
    temporary_folder_remove(folder);
}

static void new_keys_differ(void **state)
{
    (void)state;
    as_cluster_key_t one, two;
    char hex[65];
    assert_int_equal(as_cluster_key_make(&one), AS_OK);
    assert_int_equal(as_cluster_key_make(&two), AS_OK);
    assert_memory_not_equal(one.secret, two.secret, sizeof(one.secret));
    as_cluster_key_hex(&one, hex);
    as_cluster_keys_t keys = keys_of(hex);
    assert_int_equal(keys.keys[0].id, one.id);
    assert_memory_equal(keys.keys[0].secret, one.secret, sizeof(one.secret));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(macs_are_those_of_rfc_4231),
        cmocka_unit_test(a_token_of_another_program_is_good),
        cmocka_unit_test(a_token_holds_until_its_second),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(another_length_is_no_token),
        cmocka_unit_test(what_is_signed_is_good_and_never_twice_the_same),
        cmocka_unit_test(a_token_without_sense_is_not_signed),
        cmocka_unit_test(rights_have_names),
        cmocka_unit_test(a_key_file_says_what_is_wrong_with_it),
        cmocka_unit_test(files_are_read_again_when_they_change),
        cmocka_unit_test(of_a_file_that_is_too_long_nothing_is_left),
        cmocka_unit_test(new_keys_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
