// SPDX-License-Identifier: Apache-2.0
// What codecs have in common: attention straight from codes is the same to the bit on every instruction set.
#include "compressor_fixture.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/turbo.h"

// Of one block of a shape's first KV head.
static void attend_with(const sample_t *s, const gpw_codes_layout_t *layout, const uint8_t *codes,
                        gpw_codec_attend_fn *fn, float *memory)
{
    uint32_t heads = s->shape.q_heads / s->shape.kv_heads, pairs = s->rows * s->shape.q_heads;
    gpw_codec_part_t part = {.layout = layout,
                             .blocks = &codes,
                             .block_count = 1,
                             .rows = s->rows,
                             .group_heads = heads,
                             .q_heads = s->shape.q_heads,
                             .scale = 0.125f,
                             .q = s->q,
                             .out = gpw_partials_carve(memory, pairs, s->shape.head_dim)};
    krn_partials_clear(&part.out, pairs, s->shape.head_dim);
    fn(&part);
}

typedef struct codec_parts {
    const char *name;
    as_status_t (*layout)(const gpw_segment_options_t *options, gpw_codes_layout_t *layout_p);
    void (*pack)(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head);
    void (*attends)(gpw_codec_attend_fn *fns_p[4]);
} codec_parts_t;

static const codec_parts_t codecs[] = {
    {"kivi4", gpw_kivi_layout, gpw_kivi_pack, gpw_kivi_attends},
    {"kivi2", gpw_kivi_layout, gpw_kivi_pack, gpw_kivi_attends},
    {"turbo4", gpw_turbo_layout, gpw_turbo_pack, gpw_turbo_attends},
    {"turbo3", gpw_turbo_layout, gpw_turbo_pack, gpw_turbo_attends},
};

static void compare_instruction_sets(const sample_t *s, const codec_parts_t *codec)
{
    gpw_codec_attend_fn *fns[4];
    uint32_t last = 0;
    codec->attends(fns);
    gpw_segment_options_t options = options_for(s, &gpw_compressor_find(codec->name)->params);
    gpw_codes_layout_t layout;
    assert_int_equal(codec->layout(&options, &layout), AS_OK);
    uint8_t *codes = as_mem_zalloc(1, layout.head_bytes);
    uint32_t head = layout.tokens * layout.dim;
    float *kv = as_mem_alloc(2 * head * sizeof(float));
    krn_cpu()->f16_to_f32(s->extents, 2 * head, kv);
    codec->pack(&layout, kv, kv + head, codes);
    size_t bytes = s->rows * s->shape.q_heads * (s->shape.head_dim + 2) * sizeof(float);
    float *truth = as_mem_alloc(bytes), *other = as_mem_alloc(bytes);
    while (fns[last + 1]) {
        last++;
    }
    attend_with(s, &layout, codes, fns[last], truth); // portable
    for (uint32_t f = 0; f < last; f++) {
        attend_with(s, &layout, codes, fns[f], other);
        assert_memory_equal(truth, other, bytes);
    }
    as_mem_free(truth);
    as_mem_free(other);
    as_mem_free(kv);
    as_mem_free(codes);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (uint32_t queries = 1; queries <= 2; queries++) {
            sample_t s = sample_make(shapes[i], 1, queries);
            for (size_t c = 0; c < sizeof(codecs) / sizeof(codecs[0]); c++) {
                compare_instruction_sets(&s, &codecs[c]);
            }
            sample_free(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
