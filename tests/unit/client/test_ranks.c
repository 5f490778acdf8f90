// SPDX-License-Identifier: Apache-2.0
// The ranks of one tensor-parallel model, or the KV of a model and other state that it keeps for each
// block: each has blocks of its own, and a prefix is a hit as far as all of them have it, which one
// question tells for all.
#include "tests/unit/client/assay_world.h"

#define RANKS          3u
#define BLOCKS_OF_RANK 6u

static uint8_t rank_keys[RANKS][BLOCKS_OF_RANK * 32], rank_namespace[RANKS][32];
static uint8_t turn_keys[RANKS * BLOCKS_OF_RANK * 32]; // block by block, rank by rank

static void put_all_ranks(void)
{
    uint8_t fingerprint[32] = {9};
    int32_t tokens[BLOCKS_OF_RANK * 16] = {1, 2, 3};
    uint8_t *block = malloc(block_bytes);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        char numerics[32];
        snprintf(numerics, sizeof(numerics), "test, rank %u of %u", rank, RANKS);
        assert_int_equal(assay_namespace(fingerprint, &shape, numerics, NULL, rank_namespace[rank]),
                         ASSAY_OK);
        assert_int_equal(assay_chain(rank_namespace[rank], tokens, BLOCKS_OF_RANK * 16, 16,
                                     rank_keys[rank], BLOCKS_OF_RANK),
                         BLOCKS_OF_RANK);
        for (uint32_t i = 0; i < BLOCKS_OF_RANK; i++) {
            fill(block, rank * 10 + i);
            assert_int_equal(
                assay_put(assay, &shape, rank_namespace[rank], rank_keys[rank], i, block),
                ASSAY_OK);
            memcpy(turn_keys + (i * RANKS + rank) * 32, rank_keys[rank] + i * 32, 32);
        }
    }
    free(block);
}

static bool has_disk(void)
{
    return cluster.folder[0] != '\0';
}

// Blocks of a chain that are there, as a look says, and as reading them shows.
static uint32_t hit_of(const assay_shape_t *of, const uint8_t *chain, uint32_t count)
{
    uint32_t hit = 0, got = 0;
    uint8_t *buffer = malloc(count * assay_block_bytes(of));
    assert_int_equal(assay_exists(assay, chain, count, &hit), ASSAY_OK);
    assert_int_equal(assay_get(assay, of, chain, count, buffer, &got),
                     hit == count ? ASSAY_OK : ASSAY_MISS);
    assert_int_equal(got, hit);
    free(buffer);
    return hit;
}

// Blocks of the prefix that every rank has.
static uint32_t common_hit(void)
{
    return hit_of(&shape, turn_keys, RANKS * BLOCKS_OF_RANK) / RANKS;
}

static void ranks_share_no_block(void **state)
{
    (void)state;
    put_all_ranks();
    for (uint32_t a = 0; a < RANKS * BLOCKS_OF_RANK; a++) {
        for (uint32_t b = 0; b < a; b++) {
            assert_memory_not_equal(turn_keys + a * 32, turn_keys + b * 32, 32);
        }
    }
}

static void a_prefix_is_a_hit_as_far_as_every_rank_has_it(void **state)
{
    (void)state;
    put_all_ranks();
    if (has_disk()) {
        cluster_leave_on_disk(RANKS * BLOCKS_OF_RANK);
    }
    assert_int_equal(common_hit(), BLOCKS_OF_RANK);
    static const struct {
        uint32_t rank, block;
    } lost[] = {{1, 5}, {2, 3}, {0, 4}, {0, 1}};
    uint32_t expected = BLOCKS_OF_RANK;
    for (uint32_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        if (has_disk()) { // what was read is in RAM again
            cluster_leave_on_disk(RANKS * BLOCKS_OF_RANK - i);
        }
        cluster_drop(rank_keys[lost[i].rank] + lost[i].block * 32);
        expected = lost[i].block < expected ? lost[i].block : expected;
        assert_int_equal(common_hit(), expected);
        uint32_t alone = hit_of(&shape, rank_keys[2], BLOCKS_OF_RANK);
        assert_int_equal(alone, i == 0 ? BLOCKS_OF_RANK : 3); // whatever the others have
    }
}

// Of another shape than the KV, and under a namespace of its own.
static const assay_shape_t side = {2, 2, 2, 32, 16, 2};
static uint8_t side_keys[BLOCKS_OF_RANK * 32];
static uint8_t both[2 * BLOCKS_OF_RANK * 32]; // block by block, the KV and what goes with it

static void put_side_state(uint8_t side_namespace[32])
{
    uint8_t fingerprint[32] = {9}, block[2 * 4096] = {0};
    int32_t tokens[BLOCKS_OF_RANK * 16] = {1, 2, 3};
    assert_int_equal(assay_namespace(fingerprint, &side, "test, index", NULL, side_namespace),
                     ASSAY_OK);
    assert_int_equal(
        assay_chain(side_namespace, tokens, BLOCKS_OF_RANK * 16, 16, side_keys, BLOCKS_OF_RANK),
        BLOCKS_OF_RANK);
    for (uint32_t i = 0; i < BLOCKS_OF_RANK; i++) {
        assert_int_equal(assay_put(assay, &side, side_namespace, side_keys, i, block), ASSAY_OK);
        memcpy(both + 2 * i * 32, keys + i * 32, 32);
        memcpy(both + (2 * i + 1) * 32, side_keys + i * 32, 32);
    }
}

static uint32_t hit_of_both(void)
{
    uint32_t hit = 0;
    assert_int_equal(assay_exists(assay, both, 2 * BLOCKS_OF_RANK, &hit), ASSAY_OK);
    return hit / 2;
}

static void side_state_that_is_evicted_shortens_the_hit(void **state)
{
    (void)state;
    kvs_owner_t owner = {.tenant = 0};
    put_all(BLOCKS_OF_RANK);
    put_side_state(owner.namespace_key.bytes);
    assert_int_equal(hit_of_both(), BLOCKS_OF_RANK);
    cluster_hold();
    assert_int_equal(kvs_store_set_quota(cluster.store, &owner, 40000), AS_OK); // some of them
    cluster_go_on();
    uint32_t left = BLOCKS_OF_RANK;
    for (uint32_t asked = 0; left == BLOCKS_OF_RANK && asked < 10000; asked++) {
        left = hit_of_both();
    }
    assert_in_range(left, 1, BLOCKS_OF_RANK - 1);
    assert_int_equal(hit_of(&shape, keys, BLOCKS_OF_RANK), BLOCKS_OF_RANK);
    assert_int_equal(hit_of(&side, side_keys, BLOCKS_OF_RANK), hit_of_both());
}

static void side_state_that_is_lost_on_disk_shortens_the_hit(void **state)
{
    (void)state;
    uint8_t side_namespace[32];
    put_all(BLOCKS_OF_RANK);
    put_side_state(side_namespace);
    cluster_leave_on_disk(2 * BLOCKS_OF_RANK);
    assert_int_equal(hit_of_both(), BLOCKS_OF_RANK);
    cluster_drop(side_keys + 3 * 32);
    assert_int_equal(hit_of_both(), 3);
    assert_int_equal(hit_of(&shape, keys, BLOCKS_OF_RANK), BLOCKS_OF_RANK);
    assert_int_equal(hit_of(&side, side_keys, BLOCKS_OF_RANK), 3);
}

#define TEST(name)         cmocka_unit_test_setup_teardown(name, begin, end)
#define TEST_ON_DISK(name) cmocka_unit_test_setup_teardown(name, begin_with_disk, end_with_disk)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ranks_share_no_block),
        TEST(a_prefix_is_a_hit_as_far_as_every_rank_has_it),
        TEST(side_state_that_is_evicted_shortens_the_hit),
        TEST_ON_DISK(a_prefix_is_a_hit_as_far_as_every_rank_has_it),
        TEST_ON_DISK(side_state_that_is_lost_on_disk_shortens_the_hit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
