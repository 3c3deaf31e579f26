// The small operations between the matrix products: KV write, rotary, RMS norm, the step to a residual, SiLU-mul.
// Rows may be strided (slices of a fused projection); the elements of a row are contiguous.

#include <cmath>

#include "rows.hpp"

namespace {

// Below this many elements a call is over before a second thread has woken up. Costly elements are counted more than once.
constexpr int64_t PARALLEL_FROM = 65536;

template <class Body>
void over_rows(int64_t rows, int64_t elements, int threads, Body body) {
    threads = elements < PARALLEL_FROM ? 1 : int(std::min<int64_t>(threads, rows));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) body(row);
}

template <class T>
T from_float(float x) {
    vf v = splat(x);
    T lanes[W];
    store(lanes, v);
    return lanes[0];
}

template <class S, class T>
void write_rows(const S* key, const S* value, T* key_cache, T* value_cache, const int64_t* slots, int64_t tokens,
                int64_t heads, int64_t dim, int64_t block_size, int64_t key_stride, int64_t value_stride, int threads) {
    over_rows(tokens, tokens * heads * dim * 8, threads, [&](int64_t t) {
        write_token(key + t * key_stride, value + t * value_stride, key_cache, value_cache, slots[t], heads, dim, block_size);
    });
}

template <class T>
void norm_row(const T* x, const T* residual, const T* weight, T* y, T* total, int64_t width, float eps) {
    vf squares = {};
    in_vectors(width, [&](int64_t i, int lanes) {
        vf v = load_lanes(x + i, lanes);
        if (residual) {
            v = rounded<T>(v + load_lanes(residual + i, lanes));
            store_lanes(total + i, v, lanes);
        }
        squares += v * v;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
    const T* source = residual ? total : x;
    in_vectors(width, [&](int64_t i, int lanes) {
        vf scaled = rounded<T>(load_lanes(source + i, lanes) * scale);
        store_lanes(y + i, scaled * load_lanes(weight + i, lanes), lanes);
    });
}

// The same sums as norm_row<float> of a residual to which x was added; only what is stored is rounded.
template <class T>
void add_norm_row(const T* x, float* residual, const float* weight, T* y, int64_t width, float eps) {
    vf squares = {};
    in_vectors(width, [&](int64_t i, int lanes) {
        vf v = load_lanes(residual + i, lanes);
        if (x) {
            v = v + load_lanes(x + i, lanes);
            store_lanes(residual + i, v, lanes);
        }
        squares += v * v;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
    in_vectors(width, [&](int64_t i, int lanes) {
        store_lanes(y + i, load_lanes(residual + i, lanes) * scale * load_lanes(weight + i, lanes), lanes);
    });
}

template <class T>
void silu_row(const T* gate, const T* up, T* y, int64_t width) {
    in_vectors(width, [&](int64_t i, int lanes) {
        vf g = load_lanes(gate + i, lanes);
        store_lanes(y + i, rounded<T>(silu(g)) * load_lanes(up + i, lanes), lanes);
    });
}

template <class S, class T>
void write_as(const void* key, const void* value, void* key_cache, void* value_cache, const int64_t* slots,
              int64_t tokens, int64_t heads, int64_t dim, int64_t block_size, int64_t key_stride, int64_t value_stride,
              int threads) {
    write_rows((const S*)key, (const S*)value, (T*)key_cache, (T*)value_cache, slots, tokens, heads, dim, block_size,
               key_stride, value_stride, threads);
}

}  // namespace

// 0, or 2 where a slot is not in the cache.
extern "C" int batchscope_write_kv(const void* key, const void* value, void* key_cache, void* value_cache,
                                   const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim, int64_t num_blocks,
                                   int64_t block_size, int64_t key_stride, int64_t value_stride, int source_dtype,
                                   int cache_dtype, int threads) {
    for (int64_t t = 0; t < tokens; t++)
        if (slots[t] < 0 || slots[t] >= num_blocks * block_size) return 2;
    auto write = source_dtype == BFLOAT16 ? (cache_dtype == BFLOAT16 ? write_as<bf16, bf16> : write_as<bf16, float>)
                                          : (cache_dtype == BFLOAT16 ? write_as<float, bf16> : write_as<float, float>);
    write(key, value, key_cache, value_cache, slots, tokens, heads, dim, block_size, key_stride, value_stride, threads);
    return 0;
}

extern "C" void batchscope_rotary(void* query, void* key, const float* cos, const float* sin, int64_t tokens,
                                  int64_t heads, int64_t kv_heads, int64_t half, int64_t query_stride,
                                  int64_t key_stride, int dtype, int threads) {
    over_rows(tokens, tokens * (heads + kv_heads) * half * 2, threads, [&](int64_t t) {
        const float *c = cos + t * half, *s = sin + t * half;
        if (dtype == BFLOAT16) {
            rotate((bf16*)query + t * query_stride, heads, half, c, s);
            rotate((bf16*)key + t * key_stride, kv_heads, half, c, s);
        } else {
            rotate((float*)query + t * query_stride, heads, half, c, s);
            rotate((float*)key + t * key_stride, kv_heads, half, c, s);
        }
    });
}

template <class T>
static void norm_rows(const void* x, const void* residual, const void* weight, void* y, void* total, int64_t tokens,
                      int64_t width, int64_t x_stride, int64_t residual_stride, float eps, int threads) {
    over_rows(tokens, tokens * width, threads, [&](int64_t t) {
        norm_row((const T*)x + t * x_stride, residual ? (const T*)residual + t * residual_stride : nullptr,
                 (const T*)weight, (T*)y + t * width, residual ? (T*)total + t * width : nullptr, width, eps);
    });
}

extern "C" void batchscope_rms_norm(const void* x, const void* residual, const void* weight, void* y, void* total,
                                    int64_t tokens, int64_t width, int64_t x_stride, int64_t residual_stride, float eps,
                                    int dtype, int threads) {
    auto norm = dtype == BFLOAT16 ? norm_rows<bf16> : norm_rows<float>;
    norm(x, residual, weight, y, total, tokens, width, x_stride, residual_stride, eps, threads);
}

template <class T>
static void add_norm_rows(const void* x, float* residual, const float* weight, void* y, int64_t tokens, int64_t width,
                          int64_t x_stride, int64_t residual_stride, float eps, int threads) {
    over_rows(tokens, tokens * width, threads, [&](int64_t t) {
        add_norm_row(x ? (const T*)x + t * x_stride : nullptr, residual + t * residual_stride, weight, (T*)y + t * width,
                     width, eps);
    });
}

extern "C" void batchscope_add_norm(const void* x, float* residual, const float* weight, void* y, int64_t tokens,
                                    int64_t width, int64_t x_stride, int64_t residual_stride, float eps, int dtype,
                                    int threads) {
    auto add_norm = dtype == BFLOAT16 ? add_norm_rows<bf16> : add_norm_rows<float>;
    add_norm(x, residual, weight, y, tokens, width, x_stride, residual_stride, eps, threads);
}

template <class T>
static void silu_rows(const void* gate_up, void* y, int64_t tokens, int64_t width, int64_t stride, int threads) {
    over_rows(tokens, tokens * width * 2, threads, [&](int64_t t) {
        const T* row = (const T*)gate_up + t * stride;
        silu_row(row, row + width, (T*)y + t * width, width);
    });
}

extern "C" void batchscope_silu_mul(const void* gate_up, void* y, int64_t tokens, int64_t width, int64_t stride,
                                    int dtype, int threads) {
    (dtype == BFLOAT16 ? silu_rows<bf16> : silu_rows<float>)(gate_up, y, tokens, width, stride, threads);
}
