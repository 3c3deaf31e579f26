// Matrix products with float32 sums: x [rows, K] times a packed weight.
//
// A weight is packed in blocks of BLOCK outputs, so that one goes by while a tile of rows keeps its sums in registers:
//   float32 x: [block][K][BLOCK], in float32 or, where they are the same numbers, in bfloat16;
//   bfloat16 x: [block][K / 2][BLOCK][2], for AVX-512 BF16, which multiplies a pair of inputs with W outputs at once.
#pragma once

#include "simd.hpp"

#if defined(__AVX512BF16__)
#define BATCHSCOPE_MULTIPLIES_BFLOAT16 1
#endif

namespace {

constexpr int BLOCK = 2 * W;
constexpr int MOST_ROWS = W == 16 ? 12 : 6;  // of a tile: two sums a row, in 32 or 16 registers

// float32 products are summed up over this many inputs at a time, then in all: one long sum of 1,536 products is off by
// 2.5 times as much. (bfloat16 inputs are off by far more than their sums.)
constexpr int64_t SPAN = 128;

// finish(row, low, high): sums of outputs 0..W - 1 and W..2 W - 1 of the block.
template <int ROWS, class Weight, class Finish>
inline void gemm_tile(const float* x, int64_t stride, const Weight* weight, int64_t inputs, int64_t row, const Finish& finish) {
    vf totals[ROWS][2] = {};
    for (int64_t k = 0; k < inputs;) {
        vf sums[ROWS][2] = {};
        for (const int64_t end = std::min(k + SPAN, inputs); k < end; k++, weight += BLOCK) {
            const vf low = load(weight), high = load(weight + W);
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++) {
                const vf input = splat(x[i * stride + k]);
                sums[i][0] += low * input;
                sums[i][1] += high * input;
            }
        }
        for (int i = 0; i < ROWS; i++) totals[i][0] += sums[i][0], totals[i][1] += sums[i][1];
    }
    for (int i = 0; i < ROWS; i++) finish(row + i, totals[i][0], totals[i][1]);
}

#ifdef BATCHSCOPE_MULTIPLIES_BFLOAT16

inline __m512bh pair_of(const bf16* x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

template <int ROWS, class Finish>
inline void gemm_tile(const bf16* x, int64_t stride, const bf16* weight, int64_t inputs, int64_t row, const Finish& finish) {
    __m512 sums[ROWS][2];
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += 2, weight += 2 * BLOCK) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(weight), high = (__m512bh)_mm512_loadu_si512(weight + BLOCK);
        for (int i = 0; i < ROWS; i++) {
            const __m512bh pair = pair_of(x + i * stride + k);
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], low, pair);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], high, pair);
        }
    }
    for (int i = 0; i < ROWS; i++) finish(row + i, (vf)sums[i][0], (vf)sums[i][1]);
}

#endif

template <int ROWS, class X, class Weight, class Finish>
inline void gemm_rows(int rows, const X* x, int64_t stride, const Weight* weight, int64_t inputs, int64_t row, const Finish& finish) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return gemm_rows<ROWS - 1>(rows, x, stride, weight, inputs, row, finish);
    }
    gemm_tile<ROWS>(x, stride, weight, inputs, row, finish);
}

// All rows of one block of outputs. Tiles are of nearly equal height: 13 rows are 7 and 6, not 12 and 1.
template <class X, class Weight, class Finish>
inline void gemm_block(const X* x, int64_t stride, int64_t rows, const Weight* weight, int64_t inputs, const Finish& finish) {
    const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t i = 0, row = 0; i < tiles; i++) {
        const int64_t end = rows * (i + 1) / tiles;
        gemm_rows<MOST_ROWS>(int(end - row), x + row * stride, stride, weight, inputs, row, finish);
        row = end;
    }
}

}  // namespace
