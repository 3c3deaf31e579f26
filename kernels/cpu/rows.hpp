// What the small operations do with one row: for calls of their own (elementwise.cpp) and for whole layers (decoder.cpp).
#pragma once

#include "simd.hpp"

namespace {

// A token's key and value [heads, dim] into its slot of the cache.
template <class S, class T>
inline void write_token(const S* key, const S* value, T* key_cache, T* value_cache, int64_t slot, int64_t heads, int64_t dim,
                        int64_t block_size) {
    const int64_t block = slot / block_size, offset = slot % block_size;
    for (int64_t h = 0; h < heads; h++) {
        const S *k = key + h * dim, *v = value + h * dim;
        T* keys = key_cache + (block * heads + h) * dim * block_size + offset;
        T* values = value_cache + ((block * heads + h) * block_size + offset) * dim;
        in_vectors(dim, [&](int64_t d, int lanes) {
            T column[W];
            store(column, load_lanes(k + d, lanes));
            for (int i = 0; i < lanes; i++) keys[(d + i) * block_size] = column[i];
            store_lanes(values + d, load_lanes(v + d, lanes), lanes);
        });
    }
}

template <class T>
inline void rotate(T* x, int64_t heads, int64_t half, const float* cos, const float* sin) {
    for (int64_t h = 0; h < heads; h++, x += 2 * half)
        in_vectors(half, [&](int64_t d, int lanes) {
            vf first = load_lanes(x + d, lanes), second = load_lanes(x + half + d, lanes);
            vf c = load_lanes(cos + d, lanes), s = load_lanes(sin + d, lanes);
            store_lanes(x + d, first * c - second * s, lanes);
            store_lanes(x + half + d, second * c + first * s, lanes);
        });
}

inline vf silu(vf g) {
    vf e = exp_nonpositive(g < 0.0f ? g : -g);
    return g * (g < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}

}  // namespace
