// The products of gemm.hpp with weights of four bits, for few rows: there a product is as fast as its weight is read.
//
// A weight is packed in blocks of BLOCK outputs and groups of GROUP inputs: [block][input group] of scales [BLOCK] and
// minima [BLOCK] in float16, then [GROUP / 2][BLOCK] bytes, each with an even input's bits in its low half and the next
// one's in its high half. A weight is scale * bits + minimum, exactly in float32, rounded for a bfloat16 x: the very
// number that gemm.hpp reads, multiplied in the same order, so both give the same sums to the last bit.
#pragma once

#include "gemm.hpp"

namespace {

constexpr int GROUP = 32, GROUP_BYTES = 2 * 2 * BLOCK + GROUP / 2 * BLOCK;
constexpr int FEW_ROWS = W == 16 ? 8 : 4;  // more do not fit the registers beside scales and minima

// W scales or minima. float16 -> float32 without the instruction for it: exponents shifted, then scaled by 2^112.
inline vf halves_at(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    vh h;
    std::memcpy(&h, p, sizeof h);
    const vu bits = __builtin_convertvector(h, vu);
    const vf magnitude = (vf)((bits & 0x7fff) << 13) * 0x1p112f;
    return (vf)((vu)magnitude | (bits & 0x8000) << 16);
#endif
}

inline vi bytes_at(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    vb bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return (vi)__builtin_convertvector(__builtin_convertvector(bytes, vh), vu);  // in one go, GCC takes byte by byte
#endif
}

// An even and an odd input's weights for W outputs.
struct WeightPair {
    vf even, odd;
    WeightPair(const uint8_t* p, vf scale, vf minimum) {
        const vi both = bytes_at(p);
        even = __builtin_convertvector(both & 15, vf) * scale + minimum;
        odd = __builtin_convertvector(both >> 4, vf) * scale + minimum;
    }
};

template <int ROWS, class Finish>
inline void gemm_tile_q4(const float* x, int64_t stride, const uint8_t* weight, int64_t inputs, const Finish& finish) {
    static_assert(SPAN % GROUP == 0);
    vf totals[ROWS][2] = {};
    for (int64_t k = 0; k < inputs;) {
        vf sums[ROWS][2] = {};
        for (const int64_t end = std::min(k + SPAN, inputs); k < end; k += GROUP, weight += GROUP_BYTES) {
            const vf scales[2] = {halves_at(weight), halves_at(weight + 2 * W)};
            const vf minima[2] = {halves_at(weight + 4 * W), halves_at(weight + 6 * W)};
            const uint8_t* bits = weight + 4 * BLOCK;
            for (int j = 0; j < GROUP; j += 2, bits += BLOCK) {
                const WeightPair low(bits, scales[0], minima[0]), high(bits + W, scales[1], minima[1]);
#pragma GCC unroll 16
                for (int i = 0; i < ROWS; i++) {
                    const float* input = x + i * stride + k + j;
                    sums[i][0] += low.even * splat(input[0]);
                    sums[i][1] += high.even * splat(input[0]);
                    sums[i][0] += low.odd * splat(input[1]);
                    sums[i][1] += high.odd * splat(input[1]);
                }
            }
        }
        for (int i = 0; i < ROWS; i++) totals[i][0] += sums[i][0], totals[i][1] += sums[i][1];
    }
    for (int i = 0; i < ROWS; i++) finish(i, totals[i][0], totals[i][1]);
}

#ifdef BATCHSCOPE_MULTIPLIES_BFLOAT16

inline __m512bh rounded_pairs(const WeightPair& pair) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512bh halves = _mm512_cvtne2ps_pbh((__m512)pair.odd, (__m512)pair.even);
    return (__m512bh)_mm512_permutexvar_epi16(order, (__m512i)halves);
}

template <int ROWS, class Finish>
inline void gemm_tile_q4(const bf16* x, int64_t stride, const uint8_t* weight, int64_t inputs, const Finish& finish) {
    __m512 sums[ROWS][2];
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += GROUP, weight += GROUP_BYTES) {
        const vf scales[2] = {halves_at(weight), halves_at(weight + 2 * W)};
        const vf minima[2] = {halves_at(weight + 4 * W), halves_at(weight + 6 * W)};
        const uint8_t* bits = weight + 4 * BLOCK;
        for (int j = 0; j < GROUP; j += 2, bits += BLOCK) {
            const __m512bh low = rounded_pairs({bits, scales[0], minima[0]}), high = rounded_pairs({bits + W, scales[1], minima[1]});
            for (int i = 0; i < ROWS; i++) {
                const __m512bh pair = pair_of(x + i * stride + k + j);
                sums[i][0] = _mm512_dpbf16_ps(sums[i][0], low, pair);
                sums[i][1] = _mm512_dpbf16_ps(sums[i][1], high, pair);
            }
        }
    }
    for (int i = 0; i < ROWS; i++) finish(i, (vf)sums[i][0], (vf)sums[i][1]);
}

#endif

// All of at most FEW_ROWS rows of one block of outputs.
template <int ROWS = FEW_ROWS, class X, class Finish>
inline void gemm_block_q4(const X* x, int64_t stride, int64_t rows, const uint8_t* weight, int64_t inputs, const Finish& finish) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return gemm_block_q4<ROWS - 1>(x, stride, rows, weight, inputs, finish);
    }
    gemm_tile_q4<ROWS>(x, stride, weight, inputs, finish);
}

}  // namespace
