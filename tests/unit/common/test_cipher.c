// SPDX-License-Identifier: Apache-2.0
// Encryption of extents: a vector, what is the same and what differs, and all that must not be decrypted.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cipher.h"

#define BYTES  64u
#define STORED (BYTES + AS_CIPHER_EXTRA_BYTES)

static as_cipher_t *cipher, *other;
static as_key_t key;
static uint8_t plain[BYTES], stored[STORED], back[BYTES];

static int begin(void **state)
{
    (void)state;
    uint8_t secret[AS_CIPHER_KEY_BYTES];
    for (uint32_t i = 0; i < sizeof(secret); i++) {
        secret[i] = (uint8_t)i;
    }
    memset(key.bytes, 0xa5, sizeof(key.bytes));
    for (uint32_t i = 0; i < BYTES; i++) {
        plain[i] = (uint8_t)(7 * i + 3);
    }
    assert_int_equal(as_cipher_alloc(secret, &cipher), AS_OK);
    secret[31] ^= 1;
    assert_int_equal(as_cipher_alloc(secret, &other), AS_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    as_cipher_free(cipher);
    as_cipher_free(other);
    as_cipher_free(NULL);
    return 0;
}

static as_cipher_extent_t extent_of(const as_cipher_t *of, uint32_t layer)
{
    as_cipher_extent_t extent = {.layer = layer, .bytes = BYTES};
    as_cipher_name(of, &key, &extent.name);
    return extent;
}

static void assert_hex(const uint8_t *bytes, size_t count, const char *hex)
{
    char text[2 * STORED + 1] = "";
    for (size_t i = 0; i < count; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    assert_string_equal(text, hex);
}

// Computed by AES-GCM written out over single AES blocks, and Python's HMAC.
static void a_vector_holds(void **state)
{
    (void)state;
    as_cipher_extent_t extent = extent_of(cipher, 5);
    assert_hex(extent.name.bytes, sizeof(extent.name.bytes),
               "1f4a5a1ec74fbb6c6b1a464cc6bc3418ea9b9639a18f1d2b85a26605ccd3c75b");
    assert_int_equal(as_cipher_encrypt(cipher, &extent, plain, stored), AS_OK);
    assert_hex(stored, STORED,
               "f4a57cc98ef3175c44299989c7a31be6e506ca83fc3aa671d685038af70eb18c"
               "2c5f365b5e38d11592eb4cc8ec9a91ed075631dd937cb53f03f75d99973960c5"
               "1e48134c882d955ee25e53c27d2d119877577d97e5d135567d697b39");
    assert_int_equal(as_cipher_decrypt(cipher, &extent, stored, back), AS_OK);
    assert_memory_equal(back, plain, BYTES);
}

static void the_same_is_the_same_and_all_else_differs(void **state)
{
    (void)state;
    uint8_t again[STORED];
    as_cipher_extent_t extent = extent_of(cipher, 0), next = extent_of(cipher, 1);
    assert_int_equal(as_cipher_encrypt(cipher, &extent, plain, stored), AS_OK);
    assert_int_equal(as_cipher_encrypt(cipher, &extent, plain, again), AS_OK);
    assert_memory_equal(again, stored, STORED);
    const uint8_t *nonce = stored + BYTES;
    assert_int_equal(as_cipher_encrypt(cipher, &next, plain, again), AS_OK); // another layer
    assert_memory_not_equal(again + BYTES, nonce, 12);
    assert_memory_not_equal(again, stored, BYTES);
    plain[9] ^= 1; // other bytes
    assert_int_equal(as_cipher_encrypt(cipher, &extent, plain, again), AS_OK);
    assert_memory_not_equal(again + BYTES, nonce, 12);
    plain[9] ^= 1;
    as_cipher_extent_t foreign = extent_of(other, 0); // another key
    assert_memory_not_equal(foreign.name.bytes, extent.name.bytes, sizeof(extent.name.bytes));
    assert_int_equal(as_cipher_encrypt(other, &extent, plain, again), AS_OK);
    assert_memory_not_equal(again + BYTES, nonce, 12);
}

static void what_was_changed_or_is_elsewhere_is_not_decrypted(void **state)
{
    (void)state;
    as_cipher_extent_t extent = extent_of(cipher, 3), wrong;
    assert_int_equal(as_cipher_encrypt(cipher, &extent, plain, stored), AS_OK);
    for (size_t bit = 0; bit < STORED * 8; bit++) {
        stored[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(as_cipher_decrypt(cipher, &extent, stored, back), AS_ERR_CHECKSUM);
        stored[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    wrong = extent;
    wrong.layer = 4;
    assert_int_equal(as_cipher_decrypt(cipher, &wrong, stored, back), AS_ERR_CHECKSUM);
    wrong = extent;
    wrong.name.bytes[31] ^= 1; // another block
    assert_int_equal(as_cipher_decrypt(cipher, &wrong, stored, back), AS_ERR_CHECKSUM);
    wrong = extent;
    wrong.bytes -= 4;
    assert_int_equal(as_cipher_decrypt(cipher, &wrong, stored, back), AS_ERR_CHECKSUM);
    assert_int_equal(as_cipher_decrypt(other, &extent, stored, back), AS_ERR_CHECKSUM);
    assert_int_equal(as_cipher_decrypt(cipher, &extent, stored, back), AS_OK);
}

static void a_key_file_is_read_or_refused_with_the_reason(void **state)
{
    (void)state;
    char path[] = "/tmp/assay_cipher_XXXXXX", why[AS_CLUSTER_KEY_WHY_BYTES] = "";
    int file = mkstemp(path);
    assert_true(file >= 0);
    as_cipher_t *read;
    assert_int_equal(as_cipher_alloc_file(path, &read, why), AS_ERR_INVALID);
    assert_non_null(strstr(why, "holds no key"));
    static const char text[] = "# of our blocks\n"
                               "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    assert_int_equal(write(file, text, sizeof(text) - 1), sizeof(text) - 1);
    close(file);
    assert_int_equal(as_cipher_alloc_file(path, &read, why), AS_OK);
    as_cipher_extent_t ours = extent_of(cipher, 0), same = extent_of(read, 0);
    assert_memory_equal(&ours.name, &same.name, sizeof(ours.name));
    as_cipher_free(read);
    unlink(path);
    assert_int_not_equal(as_cipher_alloc_file(path, &read, why), AS_OK);
    assert_non_null(strstr(why, "No such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vector_holds),
        cmocka_unit_test(the_same_is_the_same_and_all_else_differs),
        cmocka_unit_test(what_was_changed_or_is_elsewhere_is_not_decrypted),
        cmocka_unit_test(a_key_file_is_read_or_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
