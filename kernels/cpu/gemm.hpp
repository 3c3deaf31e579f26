// bfloat16 matrix products with float32 sums on AVX-512 BF16: x [rows, K] times a packed weight.
//
// A weight is packed in blocks of BLOCK outputs: [block][K / 2][BLOCK][2], so that one instruction multiplies a pair of
// inputs with 16 outputs. A row tile of up to 12 rows keeps its sums in registers while a block goes by once.
#pragma once

#if defined(__AVX512BF16__)
#define BATCHSCOPE_GEMM 1

#include "simd.hpp"

namespace {

constexpr int BLOCK = 32, MOST_ROWS = 12;

inline __m512bh pair_of(const bf16* x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

// finish(row, low, high): sums of outputs 0..15 and 16..31 of the block.
template <int ROWS, class Finish>
inline void gemm_tile(const bf16* x, int64_t stride, const bf16* weight, int64_t inputs, int64_t row, Finish finish) {
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

template <int ROWS, class Finish>
inline void gemm_rows(int rows, const bf16* x, int64_t stride, const bf16* weight, int64_t inputs, int64_t row, Finish finish) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return gemm_rows<ROWS - 1>(rows, x, stride, weight, inputs, row, finish);
    }
    gemm_tile<ROWS>(x, stride, weight, inputs, row, finish);
}

// All rows of one block of outputs. Tiles are of nearly equal height: 13 rows are 7 and 6, not 12 and 1.
template <class Finish>
inline void gemm_block(const bf16* x, int64_t stride, int64_t rows, const bf16* weight, int64_t inputs, Finish finish) {
    const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t i = 0, row = 0; i < tiles; i++) {
        const int64_t end = rows * (i + 1) / tiles;
        gemm_rows<MOST_ROWS>(int(end - row), x + row * stride, stride, weight, inputs, row, finish);
        row = end;
    }
}

}  // namespace

#endif
