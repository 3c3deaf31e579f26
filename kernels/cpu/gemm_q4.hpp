// The product of gemm.hpp with weights of four bits, for few rows: there a product is as fast as its weight is read.
//
// A weight is packed in blocks of BLOCK outputs and groups of GROUP inputs: [block][input group] of scales [BLOCK] and
// minima [BLOCK] in float16, then [GROUP / 2][BLOCK] bytes, each with an even input's bits in its low half and the next
// one's in its high half. A weight is scale * bits + minimum, rounded to bfloat16: the very number that gemm.hpp reads,
// multiplied in the same order, so both give the same sums to the last bit.
#pragma once

#include "gemm.hpp"

#ifdef BATCHSCOPE_GEMM

namespace {

constexpr int GROUP = 32, GROUP_BYTES = 2 * 2 * BLOCK + GROUP / 2 * BLOCK, FEW_ROWS = 8;

inline __m512 halves_at(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }

// 16 bytes -> 16 pairs of bfloat16.
inline __m512bh weights_of(const uint8_t* bits, __m512 scale, __m512 minimum) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bits));
    const __m512 even = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
    const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_fmadd_ps(odd, scale, minimum), _mm512_fmadd_ps(even, scale, minimum));
    return (__m512bh)_mm512_permutexvar_epi16(order, (__m512i)halves);
}

template <int ROWS, class Finish>
inline void gemm_tile_q4(const bf16* x, int64_t stride, const uint8_t* weight, int64_t inputs, Finish finish) {
    __m512 sums[ROWS][2];
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += GROUP, weight += GROUP_BYTES) {
        const __m512 low_scale = halves_at(weight), high_scale = halves_at(weight + 32);
        const __m512 low_minimum = halves_at(weight + 64), high_minimum = halves_at(weight + 96);
        const uint8_t* bits = weight + 4 * BLOCK;
        for (int j = 0; j < GROUP; j += 2, bits += BLOCK) {
            const __m512bh low = weights_of(bits, low_scale, low_minimum), high = weights_of(bits + 16, high_scale, high_minimum);
            for (int i = 0; i < ROWS; i++) {
                const __m512bh pair = pair_of(x + i * stride + k + j);
                sums[i][0] = _mm512_dpbf16_ps(sums[i][0], low, pair);
                sums[i][1] = _mm512_dpbf16_ps(sums[i][1], high, pair);
            }
        }
    }
    for (int i = 0; i < ROWS; i++) finish(i, (vf)sums[i][0], (vf)sums[i][1]);
}

// All of at most FEW_ROWS rows of one block of outputs.
template <int ROWS = FEW_ROWS, class Finish>
inline void gemm_block_q4(const bf16* x, int64_t stride, int64_t rows, const uint8_t* weight, int64_t inputs, Finish finish) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return gemm_block_q4<ROWS - 1>(x, stride, rows, weight, inputs, finish);
    }
    gemm_tile_q4<ROWS>(x, stride, weight, inputs, finish);
}

}  // namespace

#endif
